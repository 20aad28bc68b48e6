from math import inf, nan

import pytest

from kvstead.engine.memory_plan import POOL_LAYOUTS
from kvstead.errors import InvalidSize
from kvstead.replay.options import ONLY_STATIC, Layout, ReplayOptions


def _options(**given):
    return ReplayOptions(("a.jsonl",), "gemma-3-1b", num_slots=64, **given)


def test_layouts_are_those_of_the_manager():
    """Each layout that the manager knows can be chosen, in its order, and the static one is the default."""
    assert tuple(Layout) == POOL_LAYOUTS
    assert _options().layout is Layout.STATIC


@pytest.mark.parametrize("layout", [layout for layout in Layout if layout is not Layout.STATIC])
@pytest.mark.parametrize("name", ONLY_STATIC)
def test_dividing_options_are_refused_in_layouts_that_do_not_divide(layout, name):
    """Slots, states, a ratio or a length go with the static layout alone; the message names option and layout."""
    with pytest.raises(InvalidSize, match=rf"^{name} is 2\..* {layout} layout"):
        ReplayOptions(("a.jsonl",), "gemma-3-1b", layout=layout, **{name: 2})
    assert ReplayOptions(("a.jsonl",), "gemma-3-1b", layout=layout, num_bytes=2)


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
        {"num_states": 0},
        {"state_interval": -1},
    ],
)
def test_values_that_cannot_be_replayed_are_refused(given):
    """The value is named, and what it must be."""
    with pytest.raises(InvalidSize, match=r" is -?[\w.]+.*\. (It must|Give one)"):
        _options(**given)


@pytest.mark.parametrize(
    "given",
    [{"window_ratio": 1e-6}, {"window_ratio": 3}, {"expected_length": 1}, {"num_states": 1, "expected_length": 1}],
)
def test_a_ratio_or_an_expected_length_is_accepted(given):
    """A ratio above 0 or a length of at least a token, one of them, and a number of states beside either."""
    assert _options(**given)
