"""The split of bytes between the side that keeps whole sequences and the side that keeps windows."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvstead.errors import InvalidSize, LayoutError, MisalignedSize
from kvstead.model import MemorySplit, ModelLayout, preset_names, split_bytes, split_memory, split_slots

LAYOUTS = [ModelLayout.preset(name) for name in preset_names()]
HYBRID = [layout for layout in LAYOUTS if layout.full_bytes_per_token and layout.window_bytes_per_token]
ratios = st.fractions(min_value=Fraction(1, 50), max_value=3, max_denominator=50)
lengths = st.none() | st.integers(1, 200_000)
splits = st.tuples(st.sampled_from(HYBRID), st.integers(0, 4 * 10**10), st.sampled_from([1, 7, 16, 64, 256]))


plenty = st.tuples(st.sampled_from(HYBRID), st.integers(4 * 10**9, 4 * 10**10), st.sampled_from([1, 7, 16, 64, 256]))


def split_or_least(layout, num_bytes, page_size, **options):
    """The split, or the number of bytes that the refusal asks for."""
    try:
        return split_memory(layout, num_bytes, page_size, **options)
    except LayoutError as error:
        return int(str(error).split("Give ")[1].split(" or more")[0].replace(",", ""))


def derived_ratio(layout, page_size, length):
    return min(Fraction(1), Fraction(min(length, layout.window) + 2 * page_size, length))


@given(splits, ratios)
def test_a_given_ratio_is_obeyed(split, ratio):
    """The slots are those of `split_slots`, or the error names the fewest bytes for which both sides have a page."""
    found = split_or_least(*split, window_ratio=ratio)
    layout, num_bytes, page_size = split
    slots = split_slots(layout, num_bytes, page_size, ratio)
    if isinstance(found, MemorySplit):
        assert (found.num_slots, found.num_window_slots) == slots
        assert (found.ratio, found.source) == (float(ratio), f"window_ratio {float(ratio):g}, as given")
    else:
        assert min(slots) == 0
        assert found > num_bytes
        assert min(split_slots(layout, found, page_size, ratio)) > 0
        assert min(split_slots(layout, found - 1, page_size, ratio)) == 0


@given(splits, lengths)
def test_a_derived_split_is_the_largest(split, length):
    """It fits; a full page more, with the window pages it takes, does not, nor another window page that has a use."""
    layout, num_bytes, page_size = split
    found = split_or_least(*split, expected_length=length)
    assume(isinstance(found, MemorySplit))
    full, window = found.num_slots // page_size, found.num_window_slots // page_size
    assert (full * page_size, window * page_size) == (found.num_slots, found.num_window_slots)
    left = num_bytes - split_bytes(layout, found.num_slots, found.num_window_slots, page_size)
    ratio = derived_ratio(layout, page_size, length or 8192)
    least = layout.window_rule.pages(page_size)
    assert left >= 0

    def wanted(pages):
        """A window for each sequence, a chunk in progress (at most as much again), and one window at least."""
        windows = int(pages * ratio)
        return max(min(pages, windows + min(windows, 8192 // page_size)), min(pages, least))

    assert full >= window >= wanted(full)
    assert left < layout.window_bytes_per_token * page_size or window == full
    assert split_bytes(layout, (full + 1) * page_size, wanted(full + 1) * page_size, page_size) > num_bytes
    assert found.ratio == float(ratio)


@given(splits, lengths)
def test_too_few_bytes_name_the_least_that_do(split, length):
    """The bytes in the message give one page on each side, and a byte less is refused with the same figure."""
    layout, _, page_size = split
    least = split_or_least(layout, 0, page_size, expected_length=length)
    found = split_memory(layout, least, page_size, expected_length=length)
    assert (found.num_slots, found.num_window_slots) == (page_size, page_size)
    assert split_or_least(layout, least - 1, page_size, expected_length=length) == least


@given(plenty, st.builds(dict, window_ratio=ratios) | st.builds(dict, expected_length=lengths))
def test_bytes_are_the_inverse_of_the_split(split, options):
    """The bytes of a split give that split again, and are the least that do."""
    layout, num_bytes, page_size = split
    found = split_or_least(layout, num_bytes, page_size, **options)
    assume(isinstance(found, MemorySplit))
    needed = split_bytes(layout, found.num_slots, found.num_window_slots, page_size)
    assert needed <= num_bytes
    assert split_memory(layout, needed, page_size, **options) == found
    assert split_or_least(layout, needed - 1, page_size, **options) != found


@given(st.sampled_from(LAYOUTS), st.integers(0, 1000), st.integers(1, 64))
def test_bytes_of_one_side_are_those_of_its_layout(layout, pages, page_size):
    """Where only one side has bytes they are those of `bytes_for`, for any size of the other."""
    slots = pages * page_size
    if layout.full_bytes_per_token and layout.window_bytes_per_token:
        alone = layout.full_bytes_per_token * (slots + page_size)
        assert split_bytes(layout, slots, 0, page_size) == alone + layout.window_bytes_per_token * page_size
    elif not layout.state_bytes:
        expected = layout.bytes_for(slots, page_size)
        full_only = layout.full_bytes_per_token > 0
        assert split_bytes(layout, slots, 0 if full_only else slots, page_size) == expected
        assert split_bytes(layout, slots if full_only else 0, slots, page_size) == expected


def test_the_source_says_where_the_ratio_comes_from():
    """The source names the length, that it is assumed, and what the window side was raised to."""
    layout = ModelLayout.preset("gemma-3-12b")
    assert layout.window_rule.pages(16) == 66

    def source(num_bytes, **options):
        return split_memory(layout, num_bytes, 16, **options).source

    assert source(10**10) == "derived for sequences of 8,192 tokens, assumed"
    assert source(10**10, expected_length=12_000) == "derived for sequences of 12,000 tokens"
    long = "derived for sequences of 100,000 tokens, and raised to"
    assert source(10**9, expected_length=100_000) == f"{long} one whole window"
    assert source(10**8, expected_length=100_000) == f"{long} the pages of the full side"
    assert source(10**10, window_ratio=Fraction(1, 3)) == "window_ratio 0.333333, as given"
    assert source(10**10, window_ratio=0.25, expected_length=99) == "window_ratio 0.25, as given"


def test_a_known_split():
    """gpt-oss-120b in 10 GB: windows of 128 tokens and a chunk in progress take 4 % of the slots; 0.1 MB is left."""
    layout = ModelLayout.preset("gpt-oss-120b")
    found = split_memory(layout, 10**10, 16)
    assert (found.num_slots, found.num_window_slots, found.ratio) == (261_056, 10_176, 160 / 8192)
    assert 10**10 - split_bytes(layout, 261_056, 10_176, 16) == 123_904


def test_few_bytes_are_not_spent_on_windows_that_no_sequence_can_have():
    """Chunks of 8,192 tokens in memory for 5,056: both sides get those, though one whole chunk is more."""
    found = split_memory(ModelLayout.preset("llama-4-scout"), 10**9, 16, expected_length=100_000)
    assert found.num_slots == found.num_window_slots == 5056


@pytest.mark.parametrize("ratio", [0.3, 0.7, 0.1, 1, 3])
def test_a_ratio_is_the_decimal_that_was_written(ratio):
    """0.3 is three tenths, not the binary number below it, which would cost a window page in ten full ones."""
    layout = ModelLayout.preset("gpt-oss-20b")
    exact = Fraction(str(ratio))
    num_bytes = split_bytes(layout, 160, int(10 * exact) * 16, 16)
    found = split_memory(layout, num_bytes, 16, window_ratio=ratio)
    assert (found.num_slots, found.num_window_slots) == (160, int(10 * exact) * 16)


@pytest.mark.parametrize(
    "options",
    [
        {"num_bytes": -1},
        {"page_size": 0},
        {"window_ratio": 0},
        {"window_ratio": -0.5},
        {"window_ratio": float("nan")},
        {"window_ratio": float("inf")},
        {"window_ratio": Fraction(-1, 2)},
        {"expected_length": 0},
    ],
)
def test_figures_that_make_no_split_are_refused(options):
    """Negative bytes, no page, a ratio that is not above 0 and sequences of no token are refused by value."""
    (value,) = options.values()
    with pytest.raises(InvalidSize, match=str(value)):
        split_memory(ModelLayout.preset("gpt-oss-20b"), **{"num_bytes": 10**9, "page_size": 16, **options})


@pytest.mark.parametrize(
    ("name", "kinds"), [("qwen3-8b", "full"), ("mistral-7b-v0.1", "window"), ("deepseek-v3", "latent")]
)
def test_layouts_of_one_side_are_refused(name, kinds):
    """A layout of one pool has nothing to split, and the message says what to use."""
    for options in ({}, {"window_ratio": 0.5}):
        with pytest.raises(LayoutError, match=rf"{name} keeps {kinds}, which .* Use `slots_for`"):
            split_memory(ModelLayout.preset(name), 10**9, 16, **options)


@pytest.mark.parametrize(
    ("slots", "window_slots", "page_size", "error"),
    [
        (-16, 0, 16, InvalidSize),
        (0, -16, 16, InvalidSize),
        (0, 0, 0, InvalidSize),
        (17, 16, 16, MisalignedSize),
        (16, 15, 16, MisalignedSize),
    ],
)
def test_slots_that_have_no_bytes_are_refused(slots, window_slots, page_size, error):
    """Negative slots, pages of no token, and slots that are no whole pages are refused."""
    with pytest.raises(error):
        split_bytes(ModelLayout.preset("gpt-oss-20b"), slots, window_slots, page_size)
