from math import inf, nan

import pytest

from kvstead.errors import InvalidSize
from kvstead.replay.options import Layout, ReplayOptions


def _options(**given):
    return ReplayOptions(("a.jsonl",), "gemma-3-1b", num_slots=64, **given)


def test_the_static_layout_is_the_default_and_the_only_one():
    """Pools are divided once, before the first request."""
    assert list(Layout) == ["static"]
    assert _options().layout is Layout.STATIC


@pytest.mark.parametrize(
    "given",
    [
        {"window_ratio": 0.5, "expected_length": 100},
        {"window_ratio": 0},
        {"window_ratio": -0.5},
        {"window_ratio": inf},
        {"window_ratio": nan},
        {"expected_length": 0},
        {"chunk_tokens": 0},
        {"max_running": 0},
    ],
)
def test_values_that_make_no_replay_are_refused(given):
    """The value is named, and what it must be."""
    with pytest.raises(InvalidSize, match=r" is -?[\w.]+.*\. (It must|Both must|Give one)"):
        _options(**given)


@pytest.mark.parametrize("given", [{"window_ratio": 1e-6}, {"window_ratio": 3}, {"expected_length": 1}])
def test_either_way_to_divide_is_taken(given):
    """A ratio above 0 or a length of at least a token, one of them."""
    assert _options(**given)
