"""The split of bytes among the full side, a window side if there is one, and states."""

from fractions import Fraction
from itertools import count, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import InvalidSize, LayoutError
from kvstead.model import (
    CacheKind,
    LayerCache,
    MemorySplit,
    ModelLayout,
    StatePart,
    TokenCache,
    concurrent_requests,
    preset_names,
    split_bytes,
    split_for_slots,
    split_memory,
)

STATEFUL = [layout for layout in map(ModelLayout.preset, preset_names()) if layout.state_bytes]
PAGE_SIZES = [1, 7, 16, 64, 256]
lengths = st.none() | st.integers(1, 200_000)
plenty = st.tuples(st.sampled_from(STATEFUL), st.integers(4 * 10**9, 8 * 10**10), st.sampled_from(PAGE_SIZES))


def made_up(full, window, state, span=3):
    """A layout of one layer for each side, with so many bytes of an entry or state; none where that is 0."""
    sides = ((CacheKind.FULL, full, None), (CacheKind.WINDOW, window, span))
    tokens = [TokenCache(kind, 1, size, 0, "uint8", size, 0, bound) for kind, size, bound in sides if size]
    layers = [LayerCache(index, entry) for index, entry in enumerate(tokens)]
    if state:
        layers.append(LayerCache(len(layers), state=(StatePart("recurrent", (state,), "uint8"),)))
    return ModelLayout("made up", tuple(layers))


sizes = st.integers(1, 12)
small_layouts = st.builds(made_up, sizes, st.just(0) | sizes, st.integers(1, 60), st.integers(1, 9))
ratios = st.fractions(Fraction(1, 4), 2, max_denominator=4)
small_options = st.fixed_dictionaries(
    {},
    optional={"window_ratio": ratios, "num_states": st.integers(1, 9), "expected_length": st.integers(1, 30)},
)


def split_or_least(layout, num_bytes, page_size, **options):
    """The split, or the number of bytes that the refusal asks for."""
    try:
        return split_memory(layout, num_bytes, page_size, **options)
    except LayoutError as error:
        return int(str(error).split("Give ")[1].split(" or more")[0].replace(",", ""))


def left_over(layout, num_bytes, page_size, found):
    return num_bytes - split_bytes(layout, found.num_slots, found.num_window_slots, page_size, found.num_states)


class Wanted:
    """What goes with a number of full pages, written out; and which splits fit, tried one by one."""

    def __init__(self, layout, page_size, window_ratio=None, num_states=None, expected_length=None):
        self.layout, self.page_size, self.given_states, self.given_ratio = layout, page_size, num_states, window_ratio
        self.length = expected_length or 8192
        self.window = layout.window_rule

    def windows(self, pages):
        """Window pages beside `pages` full pages."""
        if self.window is None:
            return 0
        if self.given_ratio is not None:
            return int(pages * self.given_ratio)
        entries = min(self.length, self.window.span) + 2 * self.page_size
        mean = int(pages * min(1, Fraction(entries, self.length)))
        return min(pages, max(mean + min(mean, 8192 // self.page_size), self.window.pages(self.page_size)))

    def states(self, pages):
        """States beside `pages` full pages."""
        if self.given_states is not None:
            return self.given_states
        pages_of_a_request = -(-self.length // self.page_size)
        return max(1, 2 * pages // pages_of_a_request)

    def cost(self, pages, window_pages, states):
        """Bytes, padding included."""
        return split_bytes(self.layout, pages * self.page_size, window_pages * self.page_size, self.page_size, states)

    def best(self, num_bytes):
        """Most full pages with all they want; then most states; then most full pages; then most window pages."""
        whole = [n for n in range(num_bytes) if self.cost(n, self.windows(n), self.states(n)) <= num_bytes]
        if not whole or not max(whole) or (self.window and not self.windows(max(whole))):
            return None
        pages = max(whole)
        states = self.states(pages)
        if self.given_states is None:
            states = last(states, lambda s: self.cost(pages, self.windows(pages), s) <= num_bytes)
        pages = last(pages, lambda n: self.cost(n, self.windows(n), states) <= num_bytes)
        windows = self.windows(pages)
        if self.window and self.given_ratio is None:
            windows = last(windows, lambda w: w <= pages and self.cost(pages, w, states) <= num_bytes)
        return pages * self.page_size, windows * self.page_size, states


def last(start, holds):
    """The last number from `start` on for which `holds` is still true."""
    return max(takewhile(holds, count(start)))


@given(small_layouts, st.integers(0, 600), st.integers(1, 5), small_options)
def test_a_split_is_what_trying_all_of_them_finds(layout, num_bytes, page_size, options):
    """On small sizes the split is the one that is found by counting up, or the error names the fewest bytes."""
    if layout.window_rule is None:
        options.pop("window_ratio", None)
    found = split_or_least(layout, num_bytes, page_size, **options)
    wanted = Wanted(layout, page_size, **options)
    best = wanted.best(num_bytes)
    if best is None:
        assert wanted.best(found - 1) is None
        assert wanted.best(found) is not None
    else:
        assert (found.num_slots, found.num_window_slots, found.num_states) == best


@given(small_layouts, st.integers(0, 6000), st.integers(1, 5), small_options)
def test_bytes_of_three_sides_are_the_inverse_of_the_split(layout, num_bytes, page_size, options):
    """The bytes of a split give that split again, and are the least that do."""
    if layout.window_rule is None:
        options.pop("window_ratio", None)
    found = split_or_least(layout, num_bytes, page_size, **options)
    if isinstance(found, MemorySplit):
        needed = num_bytes - left_over(layout, num_bytes, page_size, found)
        assert needed <= num_bytes
        assert split_memory(layout, needed, page_size, **options) == found
        assert split_or_least(layout, needed - 1, page_size, **options) != found


@given(plenty, lengths)
def test_models_with_states_fill_their_memory(split, length):
    """Neither another page nor another state fits what is left; and the bytes of the split give it again."""
    layout, num_bytes, page_size = split
    found = split_memory(layout, num_bytes, page_size, expected_length=length)
    left = left_over(layout, num_bytes, page_size, found)
    assert 0 <= left < min(layout.full_bytes_per_token * page_size, layout.state_bytes)
    assert (found.num_window_slots, found.ratio) == (0, 0.0)
    assert found.num_slots % page_size == 0
    assert split_memory(layout, num_bytes - left, page_size, expected_length=length) == found


@given(plenty, lengths)
def test_there_are_two_states_for_each_expected_sequence(split, length):
    """The pages hold half as many sequences of the length as there are states, but for what a few states would hold."""
    layout, num_bytes, page_size = split
    found = split_memory(layout, num_bytes, page_size, expected_length=length)
    each = -(-(length or 8192) // page_size)
    pages = found.num_slots // page_size
    fewer = -(-layout.state_bytes // (layout.full_bytes_per_token * page_size)) + 1  # pages in the bytes of a state
    assert found.num_states >= max(1, 2 * (pages - fewer) // each)
    more = layout.full_bytes_per_token * page_size // layout.state_bytes + 1  # states in the bytes of a page
    assert found.num_states <= max(1, 2 * (pages + 1) // each) + more


@given(plenty, st.integers(1, 3))
def test_given_states_are_obeyed_and_the_rest_is_pages(split, num_states):
    """The given states and a padding slot are paid for first; the rest holds as many pages as it can."""
    layout, num_bytes, page_size = split
    found = split_memory(layout, num_bytes, page_size, num_states=num_states)
    rest = num_bytes - (num_states + 1) * layout.state_bytes
    pages = rest // (layout.full_bytes_per_token * page_size) - 1
    assert (found.num_slots, found.num_states) == (pages * page_size, num_states)


@given(st.sampled_from(STATEFUL), st.integers(1, 20_000), st.sampled_from(PAGE_SIZES), st.data())
def test_slots_and_their_states_split_alike(layout, pages, page_size, data):
    """The bytes that slots and their states take give the same split, with the same words."""
    options = data.draw(st.fixed_dictionaries({"expected_length": lengths}) | st.just({"num_states": 40}))
    found = split_for_slots(layout, pages * page_size, page_size, **options)
    assert found.num_slots == pages * page_size
    num_bytes = split_bytes(layout, found.num_slots, 0, page_size, found.num_states)
    assert split_memory(layout, num_bytes, page_size, **options) == found


@pytest.mark.parametrize("layout", STATEFUL, ids=lambda layout: layout.name)
def test_too_few_bytes_name_the_least_that_do(layout):
    """A page and a state, each beside its padding, is the least; a byte less is refused with that figure."""
    least = 2 * (16 * layout.full_bytes_per_token + layout.state_bytes)
    found = split_memory(layout, least, 16)
    assert (found.num_slots, found.num_states) == (16, 1)
    with pytest.raises(LayoutError, match=f"{layout.name}, beside 1 of its states and the padding. Give {least:,} or"):
        split_memory(layout, least - 1, 16)
    with pytest.raises(LayoutError, match=f"beside 9 of its states .* Give {least + 8 * layout.state_bytes:,} or more"):
        split_memory(layout, least, 16, num_states=9)


def test_a_known_split_with_states():
    """qwen3-next-80b-a3b in 10 GB: two states for each of 28 sequences of 8,192 tokens, but for the last."""
    layout = ModelLayout.preset("qwen3-next-80b-a3b")
    found = split_memory(layout, 10**10, 16)
    assert (found.num_slots, found.num_states) == (230_816, 55)
    assert 230_816 // 8192 == 28
    assert left_over(layout, 10**10, 16, found) == 10**10 - 24_576 * 230_832 - 77_266_944 * 56


def test_the_source_says_where_the_states_come_from():
    """The source names the length and that it is assumed, or the number; after the windows' where there are both."""
    states, both = ModelLayout.preset("qwen3-next-80b-a3b"), made_up(full=4, window=2, state=100)

    def source(layout, **options):
        return split_memory(layout, 10**10, 16, **options).source

    assert source(states) == "two states each for sequences of 8,192 tokens, assumed"
    assert source(states, expected_length=131_072) == "two states each for sequences of 131,072 tokens"
    assert source(states, num_states=40) == "40 states, as given"
    assert source(states, num_states=1, expected_length=7) == "1 state, as given"
    length = "sequences of 500 tokens"
    assert source(both, expected_length=500) == f"derived for {length}; two states each for {length}"
    assert source(both, window_ratio=0.5, num_states=9) == "window_ratio 0.5, as given; 9 states, as given"


def test_a_number_of_states_for_long_requests_limits_short_ones_and_says_so():
    """States for requests of 131,072 tokens admit a sixteenth of the requests of 8,192 that the pages hold."""
    layout = ModelLayout.preset("qwen3-next-80b-a3b")
    for_long = split_memory(layout, 8 * 10**10, 16, expected_length=131_072)
    for_short = split_memory(layout, 8 * 10**10, 16, expected_length=8192)
    assert for_long.num_slots // 8192 > 16 * concurrent_requests(for_long.num_states, 2)
    assert for_short.num_slots // 8192 == concurrent_requests(for_short.num_states, 2)
    assert "131,072" in for_long.source
    assert "8,192" in for_short.source


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("jamba-v0.1", {"num_states": 0}, "num_states is 0"),
        ("jamba-v0.1", {"num_states": -3}, "num_states is -3"),
        ("jamba-v0.1", {"expected_length": 0}, "sequences of 0 tokens"),
        ("jamba-v0.1", {"window_ratio": 0.5}, "window_ratio is 0.5, but jamba-v0.1 has no window side"),
        ("gpt-oss-20b", {"num_states": 4}, "num_states is 4, but gpt-oss-20b has no states"),
        ("jamba-v0.1", {"page_size": 0}, "pages of 0"),
        ("jamba-v0.1", {"size": -1}, "-1 bytes"),
    ],
)
def test_figures_that_make_no_split_are_refused(name, options, message):
    """No state to run on, states or windows that no layer has, and negative sizes are refused by value."""
    figures = {"page_size": 16, "size": 10**9, **options}
    layout, size, page_size = ModelLayout.preset(name), figures.pop("size"), figures.pop("page_size")
    for split in (split_memory, split_for_slots):
        with pytest.raises(InvalidSize, match=message):
            split(layout, size, page_size, **figures)


@pytest.mark.parametrize("sides", [(0, 4, 100), (0, 0, 100), (4, 0, 0)])
def test_layouts_without_sides_to_divide_are_refused(sides):
    """Windows or states without a full side, and a full side alone, are refused."""
    for split in (split_memory, split_for_slots):
        with pytest.raises(LayoutError, match="which is not a full side and windows or states beside it"):
            split(made_up(*sides), 1000, 1)


def test_a_state_costs_a_padding_slot_more():
    """The bytes of no state are those of the padding slot; a negative number is refused."""
    layout = made_up(full=4, window=2, state=100)
    assert split_bytes(layout, 0, 0, 16) == 16 * 6 + 100
    assert split_bytes(layout, 32, 16, 16, 3) == 48 * 4 + 32 * 2 + 400
    with pytest.raises(InvalidSize, match="-1 states"):
        split_bytes(layout, 0, 0, 16, num_states=-1)
