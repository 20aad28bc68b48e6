import pytest

from kvstead.integrations.sglang import coverage
from kvstead.integrations.sglang.coverage import Coverage, Finding
from kvstead.integrations.sglang.differences import ABSENT, INHERITED

FINE, ODD = (Finding(coverage.SEATS[1]), Finding(coverage.SEATS[2], "alloc takes no [odd] thing"))


@pytest.fixture
def installed(monkeypatch):
    """Sets what is found of SGLang."""
    return lambda found: monkeypatch.setattr(coverage, "examine", lambda: found)


def test_a_missing_sglang_is_reported(kvstead):
    """One line on standard error, and exit status 2."""
    ended = kvstead("sglang", "check")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "kvstead: SGLang is not installed here. The plugin is for 0.5.23.\n"


def test_a_covered_version_is_listed_class_by_class(kvstead, installed):
    """Each class with what takes its place; exit status 0."""
    installed(Coverage("0.5.23", (FINE,)))
    ended = kvstead("sglang", "check")
    assert (ended.code, ended.err) == (0, "")
    assert "SGLang 0.5.23 is covered" in ended.out
    assert f"{FINE.seat.theirs}   yes" in ended.out


def test_members_that_are_left_out_are_listed_with_the_reason(kvstead, installed):
    """The table names members that SGLang's class has and ours does not; the JSON says why of each."""
    paged = Finding(next(seat for seat in coverage.SEATS if seat.name == "PagedTokenToKVPoolAllocator"))
    installed(Coverage("0.5.23", (paged,)))
    assert "yes, without free_page_ids_group, num_staged_pages" in " ".join(kvstead("sglang", "check").out.split())
    (found,) = kvstead("sglang", "check", "--json").json["classes"]
    assert found["left_out"]["staged_pages"] == "free pages are in one list; none are staged"
    assert found["inherited"] == {"get_all_free_pages": "it is read from `free_pages`, which are all there are"}


@pytest.mark.parametrize("found", [Coverage("0.5.23", (FINE, ODD)), Coverage("0.6.0", (FINE,))])
def test_a_class_that_cannot_be_replaced_sets_the_exit_code(kvstead, installed, found):
    """A class with another signature, or an untried version: exit status 1, with the reason."""
    installed(found)
    ended = kvstead("sglang", "check")
    assert ended.code == 1
    why = "alloc takes no [odd] thing" if found.is_covered else "not covered, so nothing is replaced (0.5.23 is)"
    assert why in ended.out


def test_findings_as_json(kvstead, installed):
    """The same for programs."""
    installed(Coverage("0.5.23", (FINE, ODD)))
    ended = kvstead("sglang", "check", "--json")
    assert ended.code == 1
    assert ended.json == {
        "version": "0.5.23",
        "is_covered": True,
        "classes": [
            {"class": FINE.seat.theirs, "replaced_by": FINE.seat.ours, "fault": "", "left_out": {}, "inherited": {}},
            {
                "class": ODD.seat.theirs,
                "replaced_by": ODD.seat.ours,
                "fault": ODD.fault,
                "left_out": dict(ABSENT["PagedTokenToKVPoolAllocator"]),
                "inherited": dict(INHERITED["PagedTokenToKVPoolAllocator"]),
            },
        ],
    }
