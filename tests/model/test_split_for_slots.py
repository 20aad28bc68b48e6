"""The window side that goes with a number of full slots."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import InvalidSize, LayoutError
from kvstead.model import ModelLayout, preset_names, split_bytes, split_memory
from kvstead.model.sizing import split_for_slots

HYBRID = [
    layout
    for layout in map(ModelLayout.preset, preset_names())
    if layout.full_bytes_per_token and layout.window_bytes_per_token
]
options = st.builds(dict, window_ratio=st.fractions(Fraction(1, 50), 3, max_denominator=50)) | st.builds(
    dict, expected_length=st.none() | st.integers(1, 200_000)
)


@given(st.sampled_from(HYBRID), st.integers(1, 20_000), st.sampled_from([1, 7, 16, 256]), options)
def test_slots_and_their_bytes_split_alike(layout, pages, page_size, options):
    """The bytes that slots and their window side take give the same split, with the same ratio and source."""
    found = split_for_slots(layout, pages * page_size, page_size, **options)
    assert found.num_slots == pages * page_size
    if found.num_window_slots:
        num_bytes = split_bytes(layout, found.num_slots, found.num_window_slots, page_size)
        assert split_memory(layout, num_bytes, page_size, **options) == found


def test_slots_are_rounded_to_pages():
    """1,000 slots of pages of 16 are 62 pages, and their window side is whole pages too."""
    found = split_for_slots(ModelLayout.preset("gemma-3-1b"), 1000, 16, window_ratio=0.5)
    assert (found.num_slots, found.num_window_slots) == (992, 496)


def test_slots_of_layouts_of_one_side_are_refused():
    """A layout of one pool has no window side, and a negative number of slots has none either."""
    with pytest.raises(LayoutError, match="qwen3-8b keeps full"):
        split_for_slots(ModelLayout.preset("qwen3-8b"), 160, 16)
    with pytest.raises(InvalidSize, match="-16"):
        split_for_slots(ModelLayout.preset("gpt-oss-20b"), -16, 16)
