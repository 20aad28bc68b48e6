"""Faults that users of prefix caches reported, each as the smallest scenario with the right answer."""

import numpy as np
import pytest
from tree_setup import TreeSetup

from eviction_in_tokens import evict
from kvstead.errors import AuditError, LockUnderflow

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 2, 3, 4, 64])


@PAGE_SIZES
@pytest.mark.parametrize("num_tail", [0, 1])
def test_running_request_reads_the_slots_of_the_tree(page_size, num_tail):
    """Of two requests that computed one prompt the second is told what it owns twice and where the tree's slots are."""
    setup = TreeSetup(40, page_size)
    tail = num_tail * (page_size > 1)
    prompt = np.concatenate([setup.tokens("abcdefgh"), np.full(tail, 5, dtype=np.int32)])
    whole = 8 * page_size
    first, second = setup.compute(prompt.size), setup.compute(prompt.size)
    setup.tree.lock(setup.tree.insert(prompt, first).node)
    free = setup.allocator.available_size()
    done = setup.tree.insert(prompt, second)
    assert (done.num_tokens, done.num_shared) == (whole, whole)
    setup.allocator.free_segment(second[: done.num_shared], start_pos=0)
    second[:whole] = setup.tree.slots(done.node)
    setup.tree.lock(done.node)
    assert second[:whole].tolist() == first[:whole].tolist()
    assert (second[whole:] == first[whole:]).sum() == 0
    assert setup.allocator.available_size() == free + whole
    assert (setup.tree.protected_tokens, setup.tree.evictable_tokens) == (whole, 0)
    setup.tree.unlock(done.node)
    assert setup.tree.protected_tokens == whole
    setup.audit()


@PAGE_SIZES
def test_matched_prefix_is_kept_from_eviction_for_its_own_suffix(page_size):
    """What a request has matched and locked stays, even when it is the oldest and its own suffix needs pages."""
    setup = TreeSetup(12, page_size)
    setup.cache("abcdefgh")
    setup.cache("wxyz")
    found = setup.match("abcdefghi")
    setup.match("wxyz")  # so that the request's own prefix is the oldest
    setup.tree.lock(found.node)
    assert setup.allocator.alloc(page_size) is None
    assert evict(setup.tree, 4 * page_size).num_tokens == 4 * page_size
    setup.compute(4 * page_size)
    assert setup.cached("abcdefgh wxyz") == "abcdefgh"
    assert evict(setup.tree, 1).num_tokens == 0
    setup.tree.unlock(found.node)
    assert (setup.tree.protected_tokens, setup.tree.evictable_tokens) == (0, 8 * page_size)
    setup.audit()


@PAGE_SIZES
def test_lock_keeps_the_matched_node(page_size):
    """A lock holds the matched node and all above it; another unlock than there were locks is an error."""
    setup = TreeSetup(12, page_size)
    upper = setup.cache("abcd").node
    lower = setup.cache("abcdefgh").node
    assert lower.parent is upper
    setup.tree.lock(lower)
    assert (upper.locks, lower.locks) == (1, 1)
    assert (setup.tree.protected_tokens, setup.tree.evictable_tokens) == (8 * page_size, 0)
    assert evict(setup.tree, 8 * page_size).num_tokens == 0
    setup.tree.unlock(lower)
    assert (setup.tree.protected_tokens, setup.tree.evictable_tokens) == (0, 8 * page_size)
    for node in (lower, upper):
        with pytest.raises(LockUnderflow, match="once for each lock"):
            setup.tree.unlock(node)
    assert (upper.locks, lower.locks) == (0, 0)
    setup.audit()


@PAGE_SIZES
def test_split_keeps_the_lock(page_size):
    """A match that parts inside a locked node splits it; both halves stay locked, and its holder unlocks both."""
    setup = TreeSetup(8, page_size)
    node = setup.cache("abcd").node
    setup.tree.lock(node)
    setup.tree.lock(node)
    found = setup.match("abx")
    assert found.num_tokens == 2 * page_size
    assert node.parent is found.node
    assert (found.node.locks, node.locks) == (2, 2)
    assert evict(setup.tree, 9 * page_size).num_tokens == 0
    with pytest.raises(LockUnderflow):
        setup.tree.unlock(found.node)  # no lock was taken of the upper half itself
    setup.tree.unlock(node)
    assert (found.node.locks, node.locks) == (1, 1)
    setup.tree.unlock(node)
    assert evict(setup.tree, 9 * page_size).num_tokens == 4 * page_size
    setup.audit()


def test_split_keeps_the_evictable_counter():
    """Key shorter than a page, split, lock and two evictions: the counters say what the nodes hold."""
    setup = TreeSetup(8, 4)
    short = setup.tokens("a")[:3]
    row = setup.compute(3)
    done = setup.tree.insert(short, row)
    assert (done.node, done.num_tokens, done.num_shared) == (setup.tree.root, 0, 0)
    setup.allocator.free_segment(row, start_pos=done.num_tokens)
    assert (setup.tree.evictable_tokens, setup.allocator.available_size()) == (0, 32)
    assert setup.tree.match(short).node is setup.tree.root
    setup.cache("ab")
    assert setup.tree.evictable_tokens == 8
    leaf = setup.cache("ac").node
    assert (setup.tree.evictable_tokens, setup.allocator.available_size()) == (12, 20)
    setup.tree.lock(leaf)
    assert (setup.tree.protected_tokens, setup.tree.evictable_tokens) == (8, 4)
    assert evict(setup.tree, 100).num_tokens == 4
    setup.tree.unlock(leaf)
    assert evict(setup.tree, 100).num_tokens == 8
    assert (setup.tree.protected_tokens, setup.tree.evictable_tokens) == (0, 0)
    setup.audit()


@PAGE_SIZES
def test_evicted_page_is_not_found_under_its_old_key(page_size):
    """A page that was evicted and filled with something else is never found under its old key."""
    setup = TreeSetup(2, page_size)
    setup.cache("x")
    assert setup.match("x").num_tokens == page_size  # freed by its request, not reused: a hit
    evict(setup.tree, page_size)
    setup.cache("y")
    setup.cache("z")
    assert setup.allocator.available_size() == 0
    assert setup.match("x").num_tokens == 0
    assert setup.cached("x y z") == "y z"


@pytest.mark.parametrize(
    ("page_size", "length", "expected"),
    [(4, 8, 4), (4, 9, 8), (128, 255, 128), (128, 256, 128), (128, 257, 256), (1, 8, 7), (1, 1, 0)],
)
def test_whole_prompt_cached_leaves_nothing_to_compute(page_size, length, expected):
    """Matching all but the last token leaves at least one to compute, in pages of the request's own."""
    setup = TreeSetup(-(-length // page_size) + 2, page_size)
    prompt = np.arange(length, dtype=np.int64)
    row = setup.compute(length)
    setup.tree.insert(prompt, row)
    found = setup.tree.match(prompt[:-1])
    assert found.num_tokens == expected
    assert setup.tree.slots(found).tolist() == row[:expected].tolist()


@PAGE_SIZES
def test_flush_is_refused_while_something_is_alive(page_size):
    """A clear is refused, and changes nothing, while anything is locked (be it the root) or a free group is open."""
    setup = TreeSetup(8, page_size)
    node = setup.cache("abcd").node
    for held in (node, setup.tree.root):
        setup.tree.lock(held)
        assert setup.tree.clear() is False
        setup.tree.unlock(held)
    with setup.allocator.defer_frees():
        assert setup.tree.clear() is False
    assert setup.cached("abcd") == "abcd"
    setup.audit()
    assert setup.tree.clear() is True
    assert setup.allocator.available_size() == setup.allocator.size
    assert (setup.tree.evictable_tokens, setup.tree.protected_tokens) == (0, 0)
    assert setup.match("abcd").num_tokens == 0
    setup.audit()


@PAGE_SIZES
def test_evict_counts_what_came_free(page_size):
    """Eviction counts tokens that came free: a locked leaf counts nothing, a small wish frees a whole leaf."""
    setup = TreeSetup(16, page_size)
    leaves = [setup.cache(word).node for word in ("abcd", "efgh", "ijkl")]
    setup.tree.lock(leaves[0])
    gone = evict(setup.tree, 8 * page_size)
    assert (gone.num_tokens, gone.num_nodes) == (8 * page_size, 2)
    setup.cache("mnop")
    assert evict(setup.tree, 8 * page_size).num_tokens == 4 * page_size
    setup.cache("qrst")
    setup.cache("uvwx")
    assert evict(setup.tree, 1).num_tokens == 4 * page_size
    assert setup.cached("abcd qrst uvwx") == "abcd uvwx"
    setup.audit()


@PAGE_SIZES
def test_parent_of_the_last_child_may_go_in_the_same_call(page_size):
    """A parent becomes a leaf, and may go, in the same call in which its last child goes."""
    setup = TreeSetup(16, page_size)
    setup.cache("abc")
    setup.cache("abd")
    gone = evict(setup.tree, 4 * page_size)
    assert (gone.num_tokens, gone.num_nodes) == (4 * page_size, 3)
    setup.audit()


@pytest.mark.parametrize("page_size", [2, 3, 4, 64])
def test_partly_filled_page_is_not_keyed(page_size):
    """A pause leaves a partly filled page out of the tree; once full it is one child, and its parent goes after it."""
    setup = TreeSetup(4, page_size)
    whole = setup.tokens("ab")
    row = setup.compute(2 * page_size)
    paused = setup.tree.insert(whole[: page_size + 1], row[: page_size + 1])
    assert paused.num_tokens == page_size
    resumed = setup.tree.insert(whole, row)
    assert (resumed.num_tokens, resumed.num_shared) == (2 * page_size, page_size)
    assert list(paused.node.children.values()) == [resumed.node]
    assert setup.tree.slots(resumed.node).tolist() == row.tolist()
    assert evict(setup.tree, 1).num_tokens == page_size
    assert paused.node.children == {}
    assert evict(setup.tree, 1).num_tokens == page_size
    setup.audit()


@PAGE_SIZES
@pytest.mark.parametrize("first_out", [0, 1])
def test_pins_of_a_lookup_are_balanced(page_size, first_out):
    """Two holders of a node let go in either order: it stays for the second, goes after both, never counts below 0."""
    setup = TreeSetup(4, page_size)
    node = setup.cache("ab").node
    other = setup.match("ab").node
    assert other is node
    for _ in range(2):
        setup.tree.lock(node)
    holders = [node, other]
    setup.tree.unlock(holders[first_out])
    assert evict(setup.tree, 1).num_tokens == 0
    setup.tree.unlock(holders[1 - first_out])
    with pytest.raises(LockUnderflow):
        setup.tree.unlock(node)
    assert node.pins == 0
    assert evict(setup.tree, 1).num_tokens == 2 * page_size
    setup.audit()


@PAGE_SIZES
def test_page_has_one_owner(page_size):
    """A page that a node owns cannot come in again behind another key, whole or together with pages that are new."""
    setup = TreeSetup(8, page_size)
    ab = setup.tree.slots(setup.cache("ab").node)
    own = setup.compute(page_size)
    for row in (ab, np.concatenate([own, ab[page_size:]])):
        before = repr(list(setup.tree.root.below()))
        with pytest.raises(AuditError, match="would have two owners"):
            setup.tree.insert(setup.tokens("xy"), row)
        with pytest.raises(AuditError, match="would have two owners"):
            setup.tree.insert(setup.tokens("ay"), row)  # would have split "ab"
        assert repr(list(setup.tree.root.below())) == before
        setup.audit()
