from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import AuditError, DoubleFree, ForeignPage, InvalidSize
from kvstead.kernels.host import FREE, LIVE, PADDING, PARKED
from kvstead.pages import FreeList, PageTable
from kvstead.pages.page_table import refuse_slot, require_tag, translate_in_place


@given(st.integers(0, 20))
def test_a_new_table_is_free_but_for_the_padding(num_pages):
    """Page 0 is padding from the start; all others are free and counted."""
    table = PageTable(num_pages)
    assert table.state.tolist() == [PADDING] + [FREE] * num_pages
    assert (table.num_free, table.num_live, table.num_parked) == (num_pages, 0, 0)
    assert table.owners() == {}
    table.audit()


@given(st.lists(st.tuples(st.sampled_from([FREE, LIVE, PARKED]), st.integers(-3, 3)), max_size=20))
def test_owners_count_live_pages_only(pages):
    """Free and parked pages keep their tag, but do not count for their owner."""
    table = PageTable(len(pages))
    table.state[1:] = [state for state, _ in pages]
    table.owner[1:] = [tag for _, tag in pages]
    assert table.owners() == Counter(tag for state, tag in pages if state == LIVE)


@given(st.lists(st.sampled_from([FREE, LIVE, PARKED]), max_size=20), st.integers(0, 2), st.sampled_from([-1, 1]))
def test_audit_compares_the_counts_with_the_states(states, which, drift):
    """With true counts the audit is silent; with any of them off by one it names the counts."""
    table = PageTable(len(states))
    table.state[1:] = states
    names = ("num_free", "num_live", "num_parked")
    for name, state in zip(names, (FREE, LIVE, PARKED), strict=True):
        setattr(table, name, states.count(state))
    table.audit()
    setattr(table, names[which], getattr(table, names[which]) + drift)
    with pytest.raises(AuditError, match="the counts say"):
        table.audit()


@pytest.mark.parametrize(
    ("page", "error", "words"),
    [
        (0, ForeignPage, r"page 0 is the padding page .*1\.\.4.*leave padded positions out"),
        (-1, ForeignPage, r"page -1 does not belong to this pool"),
        (5, ForeignPage, r"page 5 does not belong to this pool"),
        (2**62, ForeignPage, r"does not belong to this pool"),
        (1, DoubleFree, r"page 1 \(last owner 7\) is named twice in this call"),
        (2, DoubleFree, r"page 2 \(last owner 7\) is already parked in the open group"),
        (3, DoubleFree, r"page 3 \(last owner 7\) is already free.*Free each page once"),
        (4, DoubleFree, r"page 4 \(last owner 0\) is already free"),
    ],
)
def test_a_refusal_says_what_the_page_is_and_who_held_it(page, error, words):
    """Padding and ids outside are foreign; free, parked and repeated pages are double frees with their last owner."""
    free = FreeList(4)
    free.take(3, owner=7)
    free.leave(np.array([2]), PARKED)
    free.leave(np.array([3]))
    with pytest.raises(error, match=words):
        free.table.refuse(page)


def test_clear_makes_every_page_free():
    """After a clear nothing is live or parked, and the audit agrees."""
    free = FreeList(4)
    free.leave(free.take(2), PARKED)
    free.take(1)
    free.table.clear()
    assert free.table.state.tolist() == [PADDING] + [FREE] * 4
    free.table.audit()


@given(st.integers(-(2**40), 2**40))
def test_a_tag_fits_32_bits(tag):
    """Exactly the int32 numbers are tags."""
    if np.iinfo(np.int32).min <= tag <= np.iinfo(np.int32).max:
        require_tag(tag)
    else:
        with pytest.raises(InvalidSize, match=f"owner tag {tag} "):
            require_tag(tag)


@pytest.mark.parametrize("tag", [2**31, -(2**31) - 1])
def test_the_tags_at_the_edge(tag):
    """The first number past the end is refused, the last one before it is not."""
    require_tag(tag - 1 if tag > 0 else tag + 1)
    with pytest.raises(InvalidSize, match="does not fit 32 bits"):
        require_tag(tag)


@given(st.lists(st.sampled_from([FREE, LIVE, PARKED]), max_size=12), st.integers(1, 4), st.data())
def test_slots_of_live_pages_are_their_own_places(states, page_size, data):
    """In a pool whose pages never move, a slot of a live page is its own place; 0 stands for all others and for -1."""
    table = PageTable(len(states))
    table.state[1:] = states
    slots = np.array(data.draw(st.lists(st.integers(-1, (len(states) + 1) * page_size - 1))), dtype=np.int64)
    before = slots.tolist()
    places = translate_in_place(slots, page_size, table)
    live = [slot >= 0 and table.state[slot // page_size] == LIVE for slot in before]
    assert places.tolist() == [slot if is_live else 0 for slot, is_live in zip(before, live, strict=True)]
    assert places.dtype == np.int64
    places[:] = -7
    assert slots.tolist() == before


@pytest.mark.parametrize("page_size", [1, 3])
@pytest.mark.parametrize("wild", [-2, None, 2**62, -(2**63)])
def test_slots_outside_the_pool_have_no_place(page_size, wild):
    """A slot below -1 or past the last page is refused by its number."""
    wild = 5 * page_size if wild is None else wild
    with pytest.raises(ForeignPage, match=rf"slot {wild} does not belong to this pool \(-1 \.\. {5 * page_size - 1}\)"):
        translate_in_place(np.array([1, wild, -9]), page_size, PageTable(4))
    with pytest.raises(ForeignPage, match=rf"slot {wild} "):
        FreeList(4).translate(np.array([-1, wild]), page_size)
    with pytest.raises(ForeignPage, match=r"slot 7 .*-1 \.\. 4"):
        refuse_slot(7, 5)
