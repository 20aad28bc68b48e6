"""Faults that users of prefix caches with windows reported, each as the smallest scenario with the right answer."""

import itertools

import numpy as np
import pytest
from tree_setup import TreeSetup
from window_tree_model import longest_restorable

from eviction_in_tokens import Gone, evict
from kvstead.allocators import PureSWAAllocator
from kvstead.errors import DoubleFree
from kvstead.model.window import Window
from kvstead.prefix import PrefixTree

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 2, 3, 4, 64])


@PAGE_SIZES
@pytest.mark.parametrize(
    ("tail", "dead", "expected"),
    [("MNOP", range(8, 12), 16), ("MNO", range(8, 12), 8), ("MNO", range(12), 0), ("MNO", range(8), 15)],
)
def test_match_behind_a_tombstone_needs_a_whole_live_window(page_size, tail, dead, expected):
    """Behind a tombstone a match needs a whole window that is live; with less, it ends before the tombstone."""
    setup = TreeSetup(16, page_size, window=Window(4 * page_size))
    setup.cache("ABCDEFGHIJKL" + tail, dead=dead)
    found = setup.match("ABCDEFGHIJKL" + tail + "x")
    assert found.num_tokens == expected * page_size
    assert found.num_found == (12 + len(tail)) * page_size
    assert found.node.end == expected * page_size


@PAGE_SIZES
def test_prompt_shorter_than_the_window_is_not_matched(page_size):
    """Without a tombstone a match may be shorter than the window."""
    setup = TreeSetup(3, page_size, window=Window(4 * page_size))
    setup.cache("abc")
    assert [setup.match("abc"[:end]).num_tokens for end in range(4)] == [end * page_size for end in range(4)]


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_match_ends_at_the_longest_prefix_with_its_window(page_size, is_chunked):
    """Whichever of a key's pages are dead, a match of any length ends at the longest prefix that brute force allows."""
    word = "abcdef"
    for span, live in itertools.product((*range(1, 10), 13), itertools.product((False, True), repeat=len(word))):
        setup = TreeSetup(len(word), page_size, window=Window(span, is_chunked))
        setup.cache(word, dead=[page for page in range(len(word)) if not live[page]])
        for end in (*reversed(range(len(word) + 1)), *range(len(word) + 1)):
            expected = longest_restorable(live[:end], page_size, span, is_chunked=is_chunked)
            found = setup.match(word[:end] + "x")
            assert (found.num_tokens, found.num_found, found.node.end) == (expected, end * page_size, expected)
        setup.audit()


@PAGE_SIZES
@pytest.mark.parametrize(("ends", "num_window_pages"), [((4, 8, 12), 4), ((12,), 2)])
def test_eviction_frees_windows_alone_when_only_they_are_short(page_size, ends, num_window_pages):
    """The window nearest the root goes first; no full slot goes, and the end still matches."""
    setup = TreeSetup(64, page_size, window=Window(num_window_pages * page_size), num_window_pages=16)
    tokens, row = setup.tokens("abcdefghijkl"), setup.compute(12 * page_size)
    for end in ends:
        setup.tree.insert(tokens[: end * page_size], row[: end * page_size])
    setup.compute(4 * page_size)
    assert setup.room() == (48 * page_size, 0)
    assert setup.allocator.alloc(4 * page_size) is None
    assert evict(setup.tree, 0, 4 * page_size) == Gone(0, 0, 4 * page_size, 4 * page_size)
    assert setup.room() == (48 * page_size, 4 * page_size)
    assert setup.tree.evictable_tokens == 12 * page_size
    assert setup.window_counts() == (8 * page_size, 0, 4 * page_size)
    assert setup.live("abcdefghijkl") == "....efghijkl"
    assert setup.match("abcdefghijkl").num_tokens == 12 * page_size
    assert setup.allocator.alloc(4 * page_size) is not None
    setup.audit()


@pytest.mark.parametrize("page_size", [1, 4, 8])
@pytest.mark.parametrize("span", range(1, 10))
def test_frontier_reaches_the_insert_boundary(page_size, span):
    """However far a row's windows are dead, up to all that is cached of it, every counter says what is there."""
    for length in range(1, 41):
        boundary = length - length % page_size
        naive = max(0, length - span)
        careful = max(0, length - max(span, page_size))
        for frontier in {naive - naive % page_size, careful - careful % page_size, boundary}:
            setup = TreeSetup(40, page_size, window=Window(span))
            tokens = np.arange(length)
            row = setup.compute(length, dead=range(frontier // page_size))
            setup.tree.insert(tokens, row)
            setup.allocator.free_segment(row[boundary:], start_pos=boundary)
            setup.audit()
            assert setup.tree.evictable_tokens == boundary
            assert setup.window_counts() == (boundary - frontier, 0, frontier)
            is_whole = frontier == 0 or boundary - frontier >= span
            assert setup.tree.match(tokens).num_tokens == (boundary if is_whole else 0)
            gone = evict(setup.tree, boundary, boundary)
            assert gone == Gone(boundary, gone.num_nodes, boundary - frontier, 0)
            assert setup.room() == (40 * page_size, 40 * page_size)
            setup.audit()


def test_newest_leaf_entirely_out_of_its_window():
    """Window 4, pages of 8, 20 tokens: one page more than the window's leaves a live leaf, the naive frontier none."""
    tokens = np.arange(20)
    for num_dead, live, matched in ((1, 8, 16), (2, 0, 0)):
        setup = TreeSetup(4, 8, window=Window(4))
        setup.tree.insert(tokens, setup.compute(20, dead=range(num_dead)))
        assert setup.window_counts() == (live, 0, 16 - live)
        assert setup.tree.match(tokens).num_tokens == matched


@pytest.mark.parametrize("num_kept", range(9))
def test_freed_slots_cached_by_a_model_of_windows_alone(num_kept):
    """Window 4, 12 tokens, the first `num_kept` kept for the cache: nothing behind them is found, all 32 come back."""
    allocator = PureSWAAllocator(32)
    tree = PrefixTree(allocator)
    tokens, row = np.arange(12), allocator.alloc(12).numpy()
    allocator.free_swa_segment(row[num_kept:8], start_pos=num_kept)
    done = tree.insert(tokens[:num_kept], row[:num_kept])
    allocator.free_segment(row[8:], start_pos=8)
    assert allocator.available_size() == 32 - num_kept
    others = allocator.alloc(32 - num_kept).numpy()  # recycles what was freed
    found = tree.match(tokens)
    assert found.num_tokens == done.num_tokens == num_kept
    assert np.intersect1d(tree.slots(found), others).size == 0
    allocator.free(others)
    assert tree.clear() is True
    assert allocator.available_size() == 32
    tree.audit()
    allocator.audit()


def test_freed_slots_cached_all_the_same():
    """Caching slots that the window has freed is reported when they are freed again; nothing is counted twice."""
    allocator = PureSWAAllocator(32)
    tree = PrefixTree(allocator)
    row = allocator.alloc(12).numpy()
    allocator.free_swa(row[:8])
    tree.insert(np.arange(12), row)
    with pytest.raises(DoubleFree):
        evict(tree, 12)
    assert (allocator.available_size(), tree.evictable_tokens) == (28, 12)


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_recycled_slots_matched_by_a_model_of_windows_alone(page_size):
    """With names for a full side, a row with a dead head is cached and matched whole, its head as tombstones."""
    setup = TreeSetup(32, page_size, window=Window(4 * page_size))
    setup.cache("abcdefghijkl", dead=range(8))
    assert setup.room() == (20 * page_size, 28 * page_size)
    others = setup.compute(20 * page_size)
    found = setup.match("abcdefghijkl")
    assert found.num_tokens == 12 * page_size
    needed = setup.allocator.window_slots(setup.tree.slots(found)).numpy()[8 * page_size :]
    assert needed.min() >= page_size
    assert np.intersect1d(needed, setup.allocator.window_slots(others).numpy()).size == 0
    assert setup.match("abcdefghijk").num_tokens == 0
    setup.allocator.free_segment(others, start_pos=0)
    assert setup.tree.clear() is True
    assert setup.room() == (32 * page_size, 32 * page_size)
    setup.audit()


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_tombstone_revived_a_thousand_times(page_size):
    """A key computed again after its window died gives the tree its windows, and its full slots go back."""
    setup = TreeSetup(12, page_size, window=Window(4))
    node = setup.cache("abcd").node
    slots = setup.tree.slots(node).tolist()
    num_tokens = 4 * page_size
    for _ in range(1000):
        assert evict(setup.tree, 0, num_tokens) == Gone(0, 0, num_tokens, num_tokens)
        assert setup.room() == (8 * page_size, 12 * page_size)
        other = setup.compute(num_tokens)  # so that windows move on
        assert setup.cache("abcd").num_shared == num_tokens
        assert setup.tree.slots(setup.match("abcd")).tolist() == slots
        assert setup.room() == (4 * page_size, 4 * page_size)
        linked_pages = setup.allocator.window_pages[1:-1]
        assert np.unique(linked_pages[linked_pages > 0]).size == np.count_nonzero(linked_pages) == 8
        assert setup.window_counts() == (num_tokens, 0, 0)
        setup.allocator.free_segment(other, start_pos=0)


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_node_frees_the_live_part_of_its_window(page_size):
    """Whichever pages are dead, a key gives back what it has, in one go or windows first; page 0 never appears."""
    wishes = ([(5, 0)], [(0, 5), (5, 0)], [(0, 1)] * 5 + [(5, 5)], [(1, 0)] * 5)
    for dead, wish in itertools.product(itertools.product((False, True), repeat=5), wishes):
        num_live = dead.count(False)
        setup = TreeSetup(5, page_size, window=Window(1))
        setup.cache("abcde", dead=[page for page in range(5) if dead[page]])
        assert setup.room() == (0, (5 - num_live) * page_size)
        gone = [evict(setup.tree, full * page_size, window * page_size) for full, window in wish]
        assert sum(part.num_tokens for part in gone) == 5 * page_size
        assert sum(part.num_window_tokens for part in gone) == num_live * page_size
        assert setup.room() == (5 * page_size, 5 * page_size)
        setup.audit()
        pages = setup.compute(5 * page_size)[::page_size] // page_size
        assert sorted(pages.tolist()) == sorted(setup.allocator.window_pages[pages].tolist()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("num_pages", "num_dead", "expected"), [(16, 14, 1024), (15, 14, 0), (15, 13, 960)], ids=["raw", "short", "right"]
)
def test_key_one_token_short_of_its_window(num_pages, num_dead, expected):
    """Window 127, pages of 64: a key that ends one page earlier needs its windows from one page earlier on."""
    setup = TreeSetup(16, 64, window=Window(127))
    word = "abcdefghijklmnop"[:num_pages]
    setup.cache(word, dead=range(num_dead))
    assert setup.match(word).num_tokens == expected
    assert setup.match(word).num_found == 64 * num_pages
