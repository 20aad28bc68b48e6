"""Faults that users of prefix caches with windows reported, each as the smallest scenario with the right answer."""

import itertools

import numpy as np
import pytest
from prefix_bench import Bench
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
def test_tombstone_in_the_middle_of_a_match(page_size, tail, dead, expected):
    """Behind a tombstone a match needs a whole window that is live; with less, it ends before the tombstone."""
    bench = Bench(16, page_size, window=Window(4 * page_size))
    bench.cache("ABCDEFGHIJKL" + tail, dead=dead)
    found = bench.match("ABCDEFGHIJKL" + tail + "x")
    assert found.num_tokens == expected * page_size
    assert found.num_found == (12 + len(tail)) * page_size
    assert found.node.end == expected * page_size


@PAGE_SIZES
def test_prompt_shorter_than_the_window_is_not_matched(page_size):
    """Without a tombstone a match may be shorter than the window."""
    bench = Bench(3, page_size, window=Window(4 * page_size))
    bench.cache("abc")
    assert [bench.match("abc"[:end]).num_tokens for end in range(4)] == [end * page_size for end in range(4)]


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_match_ends_at_a_dead_window(page_size, is_chunked):
    """Whichever of a key's pages are dead, a match of any length ends at the longest prefix that brute force allows."""
    word = "abcdef"
    for span, live in itertools.product((*range(1, 10), 13), itertools.product((False, True), repeat=len(word))):
        bench = Bench(len(word), page_size, window=Window(span, is_chunked))
        bench.cache(word, dead=[page for page in range(len(word)) if not live[page]])
        for end in (*reversed(range(len(word) + 1)), *range(len(word) + 1)):
            expected = longest_restorable(live[:end], page_size, span, is_chunked=is_chunked)
            found = bench.match(word[:end] + "x")
            assert (found.num_tokens, found.num_found, found.node.end) == (expected, end * page_size, expected)
        bench.audit()


@PAGE_SIZES
@pytest.mark.parametrize(("ends", "num_window_pages"), [((4, 8, 12), 4), ((12,), 2)])
def test_window_pool_exhausted_while_the_full_pool_has_room(page_size, ends, num_window_pages):
    """Room on the window side comes from the window nearest the root; no full slot goes, and the end still matches."""
    bench = Bench(64, page_size, window=Window(num_window_pages * page_size), num_window_pages=16)
    tokens, row = bench.tokens("abcdefghijkl"), bench.compute(12 * page_size)
    for end in ends:
        bench.tree.insert(tokens[: end * page_size], row[: end * page_size])
    bench.compute(4 * page_size)
    assert bench.room() == (48 * page_size, 0)
    assert bench.allocator.alloc(4 * page_size) is None
    assert evict(bench.tree, 0, 4 * page_size) == Gone(0, 0, 4 * page_size, 4 * page_size)
    assert bench.room() == (48 * page_size, 4 * page_size)
    assert bench.tree.evictable_tokens == 12 * page_size
    assert bench.window_counts() == (8 * page_size, 0, 4 * page_size)
    assert bench.live("abcdefghijkl") == "....efghijkl"
    assert bench.match("abcdefghijkl").num_tokens == 12 * page_size
    assert bench.allocator.alloc(4 * page_size) is not None
    bench.audit()


@pytest.mark.parametrize("page_size", [1, 4, 8])
@pytest.mark.parametrize("span", range(1, 10))
def test_frontier_reaches_the_insert_boundary(page_size, span):
    """However far a row's windows are dead, up to all that is cached of it, every counter says what is there."""
    for length in range(1, 41):
        boundary = length - length % page_size
        naive = max(0, length - span)
        careful = max(0, length - max(span, page_size))
        for frontier in {naive - naive % page_size, careful - careful % page_size, boundary}:
            bench = Bench(40, page_size, window=Window(span))
            tokens = np.arange(length)
            row = bench.compute(length, dead=range(frontier // page_size))
            bench.tree.insert(tokens, row)
            bench.allocator.free_segment(row[boundary:], start_pos=boundary)
            bench.audit()
            assert bench.tree.evictable_tokens == boundary
            assert bench.window_counts() == (boundary - frontier, 0, frontier)
            is_whole = frontier == 0 or boundary - frontier >= span
            assert bench.tree.match(tokens).num_tokens == (boundary if is_whole else 0)
            gone = evict(bench.tree, boundary, boundary)
            assert gone == Gone(boundary, gone.num_nodes, boundary - frontier, 0)
            assert bench.room() == (40 * page_size, 40 * page_size)
            bench.audit()


def test_newest_leaf_entirely_out_of_its_window():
    """Window 4, pages of 8, 20 tokens: one page more than the window's leaves a live leaf, the naive frontier none."""
    tokens = np.arange(20)
    for num_dead, live, matched in ((1, 8, 16), (2, 0, 0)):
        bench = Bench(4, 8, window=Window(4))
        bench.tree.insert(tokens, bench.compute(20, dead=range(num_dead)))
        assert bench.window_counts() == (live, 0, 16 - live)
        assert bench.tree.match(tokens).num_tokens == matched


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
    """Whoever caches slots that the window has freed is told when they are freed again; nothing is counted twice."""
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
    bench = Bench(32, page_size, window=Window(4 * page_size))
    bench.cache("abcdefghijkl", dead=range(8))
    assert bench.room() == (20 * page_size, 28 * page_size)
    others = bench.compute(20 * page_size)
    found = bench.match("abcdefghijkl")
    assert found.num_tokens == 12 * page_size
    needed = bench.allocator.window_slots(bench.tree.slots(found)).numpy()[8 * page_size :]
    assert needed.min() >= page_size
    assert np.intersect1d(needed, bench.allocator.window_slots(others).numpy()).size == 0
    assert bench.match("abcdefghijk").num_tokens == 0
    bench.allocator.free_segment(others, start_pos=0)
    assert bench.tree.clear() is True
    assert bench.room() == (32 * page_size, 32 * page_size)
    bench.audit()


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_tombstone_revived_a_thousand_times(page_size):
    """A key computed again after its window died gives the tree its windows, and its full slots go back."""
    bench = Bench(12, page_size, window=Window(4))
    node = bench.cache("abcd").node
    slots = bench.tree.slots(node).tolist()
    num_tokens = 4 * page_size
    for _ in range(1000):
        assert evict(bench.tree, 0, num_tokens) == Gone(0, 0, num_tokens, num_tokens)
        assert bench.room() == (8 * page_size, 12 * page_size)
        other = bench.compute(num_tokens)  # so that windows move on
        assert bench.cache("abcd").num_shared == num_tokens
        assert bench.tree.slots(bench.match("abcd")).tolist() == slots
        assert bench.room() == (4 * page_size, 4 * page_size)
        peers = bench.allocator.window_pages[1:-1]
        assert np.unique(peers[peers > 0]).size == np.count_nonzero(peers) == 8
        assert bench.window_counts() == (num_tokens, 0, 0)
        bench.allocator.free_segment(other, start_pos=0)


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_node_evicted_with_part_of_its_window_dead(page_size):
    """Whichever pages are dead, a key gives back what it has, in one go or windows first; page 0 never appears."""
    wishes = ([(5, 0)], [(0, 5), (5, 0)], [(0, 1)] * 5 + [(5, 5)], [(1, 0)] * 5)
    for dead, wish in itertools.product(itertools.product((False, True), repeat=5), wishes):
        num_live = dead.count(False)
        bench = Bench(5, page_size, window=Window(1))
        bench.cache("abcde", dead=[page for page in range(5) if dead[page]])
        assert bench.room() == (0, (5 - num_live) * page_size)
        gone = [evict(bench.tree, full * page_size, window * page_size) for full, window in wish]
        assert sum(part.num_tokens for part in gone) == 5 * page_size
        assert sum(part.num_window_tokens for part in gone) == num_live * page_size
        assert bench.room() == (5 * page_size, 5 * page_size)
        bench.audit()
        pages = bench.compute(5 * page_size)[::page_size] // page_size
        assert sorted(pages.tolist()) == sorted(bench.allocator.window_pages[pages].tolist()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("num_pages", "num_dead", "expected"), [(16, 14, 1024), (15, 14, 0), (15, 13, 960)], ids=["raw", "short", "right"]
)
def test_key_one_token_short_of_its_window(num_pages, num_dead, expected):
    """Window 127, pages of 64: a key that ends one page earlier needs its windows from one page earlier on."""
    bench = Bench(16, 64, window=Window(127))
    word = "abcdefghijklmnop"[:num_pages]
    bench.cache(word, dead=range(num_dead))
    assert bench.match(word).num_tokens == expected
    assert bench.match(word).num_found == 64 * num_pages
