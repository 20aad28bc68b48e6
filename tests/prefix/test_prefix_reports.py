"""Faults that users of prefix caches reported, each as the smallest scenario with the right answer."""

import numpy as np
import pytest
from prefix_bench import Bench

from eviction_in_tokens import evict
from kvstead.errors import AuditError, LockUnderflow

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 2, 3, 4, 64])


@PAGE_SIZES
@pytest.mark.parametrize("num_tail", [0, 1])
def test_running_request_keeps_pointing_at_its_freed_duplicates(page_size, num_tail):
    """Of two requests that computed one prompt the second is told what it owns twice and where the tree's slots are."""
    bench = Bench(40, page_size)
    tail = num_tail * (page_size > 1)
    prompt = np.concatenate([bench.tokens("abcdefgh"), np.full(tail, 5, dtype=np.int32)])
    whole = 8 * page_size
    first, second = bench.compute(prompt.size), bench.compute(prompt.size)
    bench.tree.lock(bench.tree.insert(prompt, first).node)
    free = bench.allocator.available_size()
    done = bench.tree.insert(prompt, second)
    assert (done.num_tokens, done.num_shared) == (whole, whole)
    bench.allocator.free_segment(second[: done.num_shared], start_pos=0)
    second[:whole] = bench.tree.slots(done.node)
    bench.tree.lock(done.node)
    assert second[:whole].tolist() == first[:whole].tolist()
    assert (second[whole:] == first[whole:]).sum() == 0
    assert bench.allocator.available_size() == free + whole
    assert (bench.tree.protected_tokens, bench.tree.evictable_tokens) == (whole, 0)
    bench.tree.unlock(done.node)
    assert bench.tree.protected_tokens == whole
    bench.audit()


@PAGE_SIZES
def test_own_matched_prefix_evicted_for_own_suffix(page_size):
    """What a request has matched and locked stays, even when it is the oldest and its own suffix needs room."""
    bench = Bench(12, page_size)
    bench.cache("abcdefgh")
    bench.cache("wxyz")
    found = bench.match("abcdefghi")
    bench.match("wxyz")  # so that the request's own prefix is the oldest
    bench.tree.lock(found.node)
    assert bench.allocator.alloc(page_size) is None
    assert evict(bench.tree, 4 * page_size).num_tokens == 4 * page_size
    bench.compute(4 * page_size)
    assert bench.cached("abcdefgh wxyz") == "abcdefgh"
    assert evict(bench.tree, 1).num_tokens == 0
    bench.tree.unlock(found.node)
    assert (bench.tree.protected_tokens, bench.tree.evictable_tokens) == (0, 8 * page_size)
    bench.audit()


@PAGE_SIZES
def test_lock_skips_the_matched_node(page_size):
    """A lock holds the matched node and all above it; another unlock than there were locks is an error."""
    bench = Bench(12, page_size)
    upper = bench.cache("abcd").node
    lower = bench.cache("abcdefgh").node
    assert lower.parent is upper
    bench.tree.lock(lower)
    assert (upper.locks, lower.locks) == (1, 1)
    assert (bench.tree.protected_tokens, bench.tree.evictable_tokens) == (8 * page_size, 0)
    assert evict(bench.tree, 8 * page_size).num_tokens == 0
    bench.tree.unlock(lower)
    assert (bench.tree.protected_tokens, bench.tree.evictable_tokens) == (0, 8 * page_size)
    for node in (lower, upper):
        with pytest.raises(LockUnderflow, match="once for each lock"):
            bench.tree.unlock(node)
    assert (upper.locks, lower.locks) == (0, 0)
    bench.audit()


@PAGE_SIZES
def test_split_loses_the_lock(page_size):
    """A match that parts inside a locked node splits it; both halves stay locked, and its holder unlocks both."""
    bench = Bench(8, page_size)
    node = bench.cache("abcd").node
    bench.tree.lock(node)
    bench.tree.lock(node)
    found = bench.match("abx")
    assert found.num_tokens == 2 * page_size
    assert node.parent is found.node
    assert (found.node.locks, node.locks) == (2, 2)
    assert evict(bench.tree, 9 * page_size).num_tokens == 0
    with pytest.raises(LockUnderflow):
        bench.tree.unlock(found.node)  # nobody locked the upper half itself
    bench.tree.unlock(node)
    assert (found.node.locks, node.locks) == (1, 1)
    bench.tree.unlock(node)
    assert evict(bench.tree, 9 * page_size).num_tokens == 4 * page_size
    bench.audit()


def test_evictable_counter_drifts_on_split():
    """Key shorter than a page, split, lock and two evictions: the counters say what the nodes hold."""
    bench = Bench(8, 4)
    short = bench.tokens("a")[:3]
    row = bench.compute(3)
    done = bench.tree.insert(short, row)
    assert (done.node, done.num_tokens, done.num_shared) == (bench.tree.root, 0, 0)
    bench.allocator.free_segment(row, start_pos=done.num_tokens)
    assert (bench.tree.evictable_tokens, bench.allocator.available_size()) == (0, 32)
    assert bench.tree.match(short).node is bench.tree.root
    bench.cache("ab")
    assert bench.tree.evictable_tokens == 8
    leaf = bench.cache("ac").node
    assert (bench.tree.evictable_tokens, bench.allocator.available_size()) == (12, 20)
    bench.tree.lock(leaf)
    assert (bench.tree.protected_tokens, bench.tree.evictable_tokens) == (8, 4)
    assert evict(bench.tree, 100).num_tokens == 4
    bench.tree.unlock(leaf)
    assert evict(bench.tree, 100).num_tokens == 8
    assert (bench.tree.protected_tokens, bench.tree.evictable_tokens) == (0, 0)
    bench.audit()


@PAGE_SIZES
def test_entry_survives_reuse_of_its_page(page_size):
    """A page that was evicted and filled with something else is never found under its old key."""
    bench = Bench(2, page_size)
    bench.cache("x")
    assert bench.match("x").num_tokens == page_size  # freed by its request, not reused: a hit
    evict(bench.tree, page_size)
    bench.cache("y")
    bench.cache("z")
    assert bench.allocator.available_size() == 0
    assert bench.match("x").num_tokens == 0
    assert bench.cached("x y z") == "y z"


@pytest.mark.parametrize(
    ("page_size", "length", "expected"),
    [(4, 8, 4), (4, 9, 8), (128, 255, 128), (128, 256, 128), (128, 257, 256), (1, 8, 7), (1, 1, 0)],
)
def test_whole_prompt_cached_leaves_nothing_to_compute(page_size, length, expected):
    """Matching all but the last token leaves at least one to compute, in pages of the request's own."""
    bench = Bench(-(-length // page_size) + 2, page_size)
    prompt = np.arange(length, dtype=np.int64)
    row = bench.compute(length)
    bench.tree.insert(prompt, row)
    found = bench.tree.match(prompt[:-1])
    assert found.num_tokens == expected
    assert bench.tree.slots(found).tolist() == row[:expected].tolist()


@PAGE_SIZES
def test_flush_while_something_is_alive(page_size):
    """A clear is refused, and changes nothing, while anything is locked (be it the root) or a free group is open."""
    bench = Bench(8, page_size)
    node = bench.cache("abcd").node
    for held in (node, bench.tree.root):
        bench.tree.lock(held)
        assert bench.tree.clear() is False
        bench.tree.unlock(held)
    with bench.allocator.defer_frees():
        assert bench.tree.clear() is False
    assert bench.cached("abcd") == "abcd"
    bench.audit()
    assert bench.tree.clear() is True
    assert bench.allocator.available_size() == bench.allocator.size
    assert (bench.tree.evictable_tokens, bench.tree.protected_tokens) == (0, 0)
    assert bench.match("abcd").num_tokens == 0
    bench.audit()


@PAGE_SIZES
def test_evict_counts_attempts(page_size):
    """Eviction counts tokens that came free: a locked leaf counts nothing, a small wish frees a whole leaf."""
    bench = Bench(16, page_size)
    leaves = [bench.cache(word).node for word in ("abcd", "efgh", "ijkl")]
    bench.tree.lock(leaves[0])
    gone = evict(bench.tree, 8 * page_size)
    assert (gone.num_tokens, gone.num_nodes) == (8 * page_size, 2)
    bench.cache("mnop")
    assert evict(bench.tree, 8 * page_size).num_tokens == 4 * page_size
    bench.cache("qrst")
    bench.cache("uvwx")
    assert evict(bench.tree, 1).num_tokens == 4 * page_size
    assert bench.cached("abcd qrst uvwx") == "abcd uvwx"
    bench.audit()


@PAGE_SIZES
def test_parent_of_the_last_child_stays_until_the_next_call(page_size):
    """A parent becomes a leaf, and may go, in the same call in which its last child goes."""
    bench = Bench(16, page_size)
    bench.cache("abc")
    bench.cache("abd")
    gone = evict(bench.tree, 4 * page_size)
    assert (gone.num_tokens, gone.num_nodes) == (4 * page_size, 3)
    bench.audit()


@pytest.mark.parametrize("page_size", [2, 3, 4, 64])
def test_partly_filled_page_keyed_and_keyed_again(page_size):
    """A pause leaves a partly filled page out of the tree; once full it is one child, and its parent goes after it."""
    bench = Bench(4, page_size)
    whole = bench.tokens("ab")
    row = bench.compute(2 * page_size)
    paused = bench.tree.insert(whole[: page_size + 1], row[: page_size + 1])
    assert paused.num_tokens == page_size
    resumed = bench.tree.insert(whole, row)
    assert (resumed.num_tokens, resumed.num_shared) == (2 * page_size, page_size)
    assert list(paused.node.children.values()) == [resumed.node]
    assert bench.tree.slots(resumed.node).tolist() == row.tolist()
    assert evict(bench.tree, 1).num_tokens == page_size
    assert paused.node.children == {}
    assert evict(bench.tree, 1).num_tokens == page_size
    bench.audit()


@PAGE_SIZES
@pytest.mark.parametrize("first_out", [0, 1])
def test_pins_of_a_lookup_leak_or_underflow(page_size, first_out):
    """Two holders of a node let go in either order: it stays for the second, goes after both, never counts below 0."""
    bench = Bench(4, page_size)
    node = bench.cache("ab").node
    other = bench.match("ab").node
    assert other is node
    for _ in range(2):
        bench.tree.lock(node)
    holders = [node, other]
    bench.tree.unlock(holders[first_out])
    assert evict(bench.tree, 1).num_tokens == 0
    bench.tree.unlock(holders[1 - first_out])
    with pytest.raises(LockUnderflow):
        bench.tree.unlock(node)
    assert node.pins == 0
    assert evict(bench.tree, 1).num_tokens == 2 * page_size
    bench.audit()


@PAGE_SIZES
def test_last_page_owned_twice(page_size):
    """A page that a node owns cannot come in again behind another key, whole or together with pages that are new."""
    bench = Bench(8, page_size)
    ab = bench.tree.slots(bench.cache("ab").node)
    own = bench.compute(page_size)
    for row in (ab, np.concatenate([own, ab[page_size:]])):
        before = repr(list(bench.tree.root.below()))
        with pytest.raises(AuditError, match="would have two owners"):
            bench.tree.insert(bench.tokens("xy"), row)
        with pytest.raises(AuditError, match="would have two owners"):
            bench.tree.insert(bench.tokens("ay"), row)  # would have split "ab"
        assert repr(list(bench.tree.root.below())) == before
        bench.audit()
