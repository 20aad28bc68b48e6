import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvstead.integrations.sglang.page_shadow import Holder, Names, PageShadow


def ints(*values):
    return np.array(values, dtype=np.int64)


CALLS = st.lists(
    st.tuples(st.sampled_from(["take", "free", "park", "end"]), st.lists(st.integers(-1, 9), max_size=4)), max_size=30
)


@given(CALLS)
def test_shadow_counts_as_a_dict_of_pages_does(calls):
    """Any calls, wrong ones too: the same faults, free pages and holders as a dict of the states of eight pages."""
    shadow, pages, owner = PageShadow(8), dict.fromkeys(range(1, 9), "free"), {}
    for number, (verb, named) in enumerate(calls):
        if verb == "end":
            shadow.end_group()
            pages = {page: "free" if state == "parked" else state for page, state in pages.items()}
            continue
        expected = "free" if verb == "take" else "live"
        inside = [page for page in named if page in pages]
        is_wrong = (
            len(inside) < len(named)
            or any(pages[page] != expected for page in inside)
            or len(set(inside)) < len(inside)
        )
        if verb == "take":
            fault = shadow.take(ints(*named), [f"r{number}"], "here")
        else:
            fault = shadow.free(ints(*named), "there", is_grouped=verb == "park")
        assert bool(fault) == is_wrong
        after = {"take": "live", "free": "free", "park": "parked"}[verb]
        pages |= dict.fromkeys(inside, after)
        owner |= dict.fromkeys(inside, f"r{number}") if verb == "take" else {}
        assert shadow.num_free == sum(state == "free" for state in pages.values())
    held = [page for page, state in pages.items() if state != "free"]
    assert {holder.owner: holder.num_pages for holder in shadow.holders()} == {
        name: sum(owner.get(page, "") == name for page in held) for name in {owner.get(page, "") for page in held}
    }


def test_faults_name_page_places_and_calls():
    """A wrong call says which page, where it was made, who took the page and who freed it first."""
    shadow = PageShadow(4)
    assert shadow.take(ints(2, 3), ["request a", "request b"], "x.py:1 f") == ""
    assert shadow.free(ints(3), "y.py:2 g", is_grouped=False) == ""
    assert shadow.free(ints(3), "z.py:3 h", is_grouped=False) == (
        "page 3 was freed while nobody held it, at z.py:3 h; "
        "it was taken by request b at x.py:1 f (call 1) and freed at y.py:2 g (call 2)"
    )
    assert shadow.free(ints(1), "z.py:3 h", is_grouped=False).endswith("it was never handed out")
    assert "page 2 was handed out while it was in use, at x" in shadow.take(ints(2), [""], "x")
    assert shadow.free(ints(0), "z", is_grouped=False) == "page 0 is padding or none of the 4 pages of the pool, at z"
    assert shadow.take(ints(4, 4), [""], "z") == "a page is named twice in one call, at z"


def test_holders_are_grouped_by_owner_and_place():
    """The largest first, each with its oldest call; pages that are accounted for are left out."""
    shadow = PageShadow(9)
    shadow.take(ints(1), ["a"], "x")
    shadow.take(ints(2, 3, 4), ["b"], "x")
    shadow.take(ints(5), ["a"], "x")
    shadow.take(ints(6), ["a"], "y")
    assert shadow.holders() == [Holder("b", "x", 3, 2), Holder("a", "x", 2, 1), Holder("a", "y", 1, 4)]
    assert shadow.holders(ints(2, 3, 4, 6, 99)) == [Holder("a", "x", 2, 1)]
    shadow.resize(2)
    assert (shadow.num_free, shadow.holders()) == (2, [])


def test_names_that_nobody_uses_are_dropped():
    """Owners come and go by the thousand; only those of pages stay, under the numbers they had."""
    names = Names()
    numbers = np.array([names.number(f"r{n}") for n in range(3000)])
    assert names.number("r7") == numbers[7]
    names.drop_unused(numbers[-2:], numbers[5:6])
    assert len(names) == 4
    assert [names.name(int(n)) for n in (numbers[-1], numbers[5])] == ["r2999", "r5"]
    assert names.number("r7") > numbers[-1]
    shadow = PageShadow(3)
    for n in range(5000):
        shadow.take(ints(1), [f"request {n}"], "x")
        shadow.free(ints(1), "y", is_grouped=False)
    assert len(shadow._owners) <= 1026
