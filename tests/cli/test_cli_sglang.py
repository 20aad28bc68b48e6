import pytest

from kvstead.integrations.sglang import coverage
from kvstead.integrations.sglang.coverage import Coverage, Finding

FINE, ODD = (Finding(coverage.SEATS[1]), Finding(coverage.SEATS[2], "alloc takes no [odd] thing"))


@pytest.fixture
def installed(monkeypatch):
    """Sets what is found of SGLang."""
    return lambda found: monkeypatch.setattr(coverage, "examine", lambda: found)


def test_a_missing_sglang_is_reported(kvstead):
    """One line on standard error, and exit status 2."""
    ended = kvstead("sglang", "check")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "kvstead: SGLang is not installed here. The plugin is for 0.5.19 and 0.5.23.\n"


def test_a_covered_version_is_listed_class_by_class(kvstead, installed):
    """Each class with what takes its place; exit status 0."""
    installed(Coverage("0.5.23", (FINE,)))
    ended = kvstead("sglang", "check")
    assert (ended.code, ended.err) == (0, "")
    assert "SGLang 0.5.23 is covered" in ended.out
    assert f"{FINE.seat.theirs}   yes" in ended.out


@pytest.mark.parametrize("found", [Coverage("0.5.23", (FINE, ODD)), Coverage("0.6.0", (FINE,))])
def test_a_class_that_cannot_be_replaced_sets_the_exit_code(kvstead, installed, found):
    """A class with another signature, or an untried version: exit status 1, with the reason."""
    installed(found)
    ended = kvstead("sglang", "check")
    assert ended.code == 1
    why = "alloc takes no [odd] thing" if found.is_covered else "not covered (0.5.19 and 0.5.23 are)"
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
            {"class": FINE.seat.theirs, "replaced_by": FINE.seat.ours, "fault": ""},
            {"class": ODD.seat.theirs, "replaced_by": ODD.seat.ours, "fault": ODD.fault},
        ],
    }
