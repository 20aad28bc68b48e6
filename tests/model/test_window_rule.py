"""What a window or chunk reads and keeps, against lists of positions; and that every bundled model has one at most."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import InvalidSize, LayoutError
from kvstead.model import BOUNDED, CacheKind, ModelLayout, TokenCache, Window, preset_names

windows = st.builds(Window, st.integers(1, 40), st.booleans())


def positions_read(window, query):
    """The positions that the token at `query` attends to, one by one."""
    if window.is_chunked:
        return [p for p in range(query + 1) if p // window.span == query // window.span]
    return [p for p in range(query + 1) if query - p < window.span]


@given(windows, st.integers(0, 200))
def test_what_is_needed_covers_what_the_next_token_reads(window, length):
    """Every cached token that the next one reads is kept; a sliding window keeps one more, a chunk does not."""
    start = window.needed_from(length)
    read = [p for p in positions_read(window, length) if p < length]
    spare = 0 if window.is_chunked or length < window.span else 1
    assert list(range(start, length))[spare:] == read


@given(windows, st.integers(1, 200))
def test_the_window_of_the_last_token_is_needed(window, length):
    """A sequence needs what its last token reads, unless the next token opens a chunk, which needs nothing."""
    read = positions_read(window, length - 1)
    if window.is_chunked and length % window.span == 0:
        read = []
    assert list(range(window.needed_from(length), length)) == read


@given(windows, st.integers(0, 10**6), st.integers(0, 10**6))
def test_what_is_needed_never_moves_back(window, length, more):
    """A longer sequence needs nothing that a shorter one has dropped."""
    assert 0 <= window.needed_from(length) <= window.needed_from(length + more) <= length + more


@given(windows, st.integers(0, 300), st.integers(1, 64))
def test_pages_cover_what_one_sequence_needs(window, length, page_size):
    """The pages of what is needed and of one new token are no more than `pages` says, wherever they begin."""
    first, last = window.needed_from(length) // page_size, length // page_size
    assert last - first + 1 <= window.pages(page_size)


@given(windows, st.integers(0, 200), st.integers(0, 200))
def test_pairs_count_every_position_read(window, start, more):
    """`pairs` and `live_tokens` are what counting the positions of each query gives."""
    counts = [len(positions_read(window, query)) for query in range(start, start + more)]
    assert window.pairs(start, start + more) == sum(counts)
    assert [window.live_tokens(query + 1) for query in range(start, start + more)] == counts
    lengths = np.arange(start + 1, start + more + 1)
    assert window.live_tokens(lengths).tolist() == counts


@given(windows, st.lists(st.integers(0, 2**50), min_size=4, max_size=4))
def test_live_tokens_take_arrays_of_any_shape(window, lengths):
    """Arrays of any shape give int64 of that shape, equal to the figure of a layer's cache, and 0 for no tokens."""
    kind = CacheKind.CHUNK if window.is_chunked else CacheKind.WINDOW
    entry = TokenCache(kind, 1, 1, 1, "int8", 1, 1, span=window.span)
    live = window.live_tokens(np.array(lengths).reshape(2, 2))
    assert (live.dtype, live.shape) == (np.int64, (2, 2))
    assert live.ravel().tolist() == [entry.live_tokens(n) for n in lengths] == [window.live_tokens(n) for n in lengths]
    assert window.live_tokens(0) == window.live_tokens(np.zeros(1, np.int64))[0] == 0


def test_pairs_of_long_sequences_are_exact():
    """A billion tokens and more give exact Python ints beyond 64 bits, also from numpy integers."""
    assert Window(10**12).pairs(0, 10**12) == 10**12 * (10**12 + 1) // 2
    assert Window(10**12, is_chunked=True).pairs(0, 2 * 10**12) == 10**12 * (10**12 + 1)
    assert Window(10**12).pairs(np.int64(0), np.int64(10**12)) == 10**12 * (10**12 + 1) // 2
    assert Window(1).pairs(5, 10**9) == Window(1, is_chunked=True).pairs(5, 10**9) == 10**9 - 5


@pytest.mark.parametrize("span", [0, -1])
def test_a_window_without_a_token_is_refused(span):
    """A span below 1 is refused."""
    with pytest.raises(InvalidSize, match=f"window is {span} tokens"):
        Window(span)


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (4, 3)])
def test_pairs_refuse_a_bad_range(start, end):
    """A range that begins before the sequence, or ends before it begins, is refused."""
    with pytest.raises(InvalidSize, match=rf"tokens is {start} \.\. {end}"):
        Window(4).pairs(start, end)


@pytest.mark.parametrize("name", preset_names())
def test_every_bundled_model_has_one_bound_at_most(name):
    """`window_rule` is the window and the kind that the layout names, and None where no layer is bounded."""
    layout = ModelLayout.preset(name)
    rule = layout.window_rule
    assert (rule is None) == (not set(layout.kinds) & set(BOUNDED)) == (layout.window is None)
    if rule is not None:
        assert (rule.span, "chunked" if rule.is_chunked else "sliding") == (layout.window, layout.window_kind)
        assert layout.window_rule is rule


def test_layers_with_different_bounds_have_no_common_rule():
    """Two spans, or a window beside a chunk of the same size, are refused and both named."""
    layout = ModelLayout.preset("mistral-7b-v0.1")
    first = layout.layers[0]
    for kind, span, message in (
        (CacheKind.WINDOW, 128, "a window of 128 and a window of 4,096"),
        (CacheKind.CHUNK, 4096, "a chunk of 4,096 and a window of 4,096"),
    ):
        other = replace(first, tokens=replace(first.tokens, kind=kind, span=span))
        with pytest.raises(LayoutError, match=message):
            _ = replace(layout, layers=(other, *layout.layers[1:])).window_rule
