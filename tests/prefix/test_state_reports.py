"""Faults that users of prefix caches with states reported, each as the smallest scenario with the right answer."""

import itertools

import numpy as np
import pytest
from prefix_bench import Bench

from eviction_in_tokens import Gone, evict, evict_bytes
from kvstead.allocators import UnifiedMambaAllocator
from kvstead.errors import UseAfterFree
from kvstead.model.window import Window
from kvstead.prefix import POLICIES, PrefixTree

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 3, 64])
WORD = "abcdefgh"


@PAGE_SIZES
def test_only_state_lies_behind_where_prompts_part(page_size):
    """Two prompts share more than they can go on from: a match says so, and ends at the last state before they part."""
    for shared, ends in itertools.product((0, 1, 4, 7, 8), [(), *itertools.combinations(range(1, 9), 2)]):
        bench = Bench(24, page_size, num_states=4)
        bench.cache(WORD)
        for end in ends:
            bench.keep(WORD[:end])
        found = bench.match(WORD[:shared] + "x")
        usable = max((end for end in ends if end <= shared), default=0) * page_size
        assert (found.num_tokens, found.num_found) == (usable, shared * page_size)
        branch = bench.cache(WORD[:shared] + "x").node.parent
        if shared:
            slot = bench.states.alloc()
            if not bench.tree.put_state(branch, slot):
                bench.states.free(np.array([slot]))
            assert bench.match(WORD[:shared] + "y").num_tokens == shared * page_size
        bench.audit()


@pytest.mark.parametrize("page_size", [1, 2, 64])
@pytest.mark.parametrize("num_on_path", [1, 2, 3, 6])
@pytest.mark.parametrize("shares_bytes", [False, True])
def test_hit_refreshes_the_states_of_its_whole_path(page_size, num_on_path, shares_bytes):
    """A hit deep down leaves the states on the way there as old as they were: they go before that of another path."""
    bench = Bench(40, page_size, num_states=num_on_path + 1)
    path = [WORD[: i + 1] for i in range(num_on_path)]
    for word in (*path, "z"):
        bench.keep(word)
    bench.match(path[-1])
    words = " ".join((*path, "z"))
    for num_gone in range(1, num_on_path + 2):
        if shares_bytes:
            evict_bytes(bench.tree, 1, token_bytes=1, state_bytes=1000)
        else:
            evict(bench.tree, 0, 0, 1)
        left = [*path[:-1], "z", path[-1]][num_gone:]
        assert sorted(bench.with_states(words).split()) == sorted(left)
        bench.audit()


@PAGE_SIZES
@pytest.mark.parametrize("num_held", [0, 1, 2])
def test_no_evictable_state_when_one_is_to_be_cached(page_size, num_held):
    """With every state in use or held none is evicted, the tokens are cached without one, and nothing else changes."""
    bench = Bench(12, page_size, num_states=2 + num_held)
    for _ in range(2):
        bench.states.alloc()  # two requests run on these
    for node in [bench.keep(word) for word in "pq"[:num_held]]:
        bench.tree.hold_state(node)
    counts = bench.state_counts(), bench.tree.num_states, bench.tree.protected_tokens
    assert bench.states.available == []
    node = bench.cache("abcd").node
    bench.tree.lock(node)
    assert evict(bench.tree, 0, 0, 1) == Gone()
    bench.tree.unlock(node)
    assert (bench.state_counts(), bench.tree.num_states, bench.tree.protected_tokens) == counts
    found = bench.match("abcd")
    assert (found.num_tokens, found.num_found) == (0, 4 * page_size)
    bench.audit()


@PAGE_SIZES
def test_making_room_for_a_state_takes_the_path_that_it_is_for(page_size):
    """The path is locked before anything is evicted for the state to be put there: it stays, and takes the state."""
    for length, num_tokens, policy in itertools.product((1, 2, 6), (0, 1, 100), sorted(POLICIES)):
        bench = Bench(16, page_size, policy, num_states=2)
        node = bench.cache(WORD[:length]).node
        bench.keep("y")
        bench.keep("z")
        bench.tree.lock(node)
        assert evict(bench.tree, num_tokens * page_size, 0, 1).num_states >= 1
        assert bench.tree.put_state(node, bench.states.alloc()) is True
        bench.tree.unlock(node)
        assert bench.match(WORD).num_tokens == length * page_size
        bench.audit()


@PAGE_SIZES
def test_state_for_a_path_that_was_not_locked(page_size):
    """Who makes room before locking hears that the node is gone, and the slot is still its own."""
    bench = Bench(16, page_size, num_states=2)
    node = bench.cache("abcd").node
    bench.keep("z")
    evict(bench.tree, 1)
    slot = bench.states.alloc()
    with pytest.raises(UseAfterFree):
        bench.tree.put_state(node, slot)
    assert slot not in bench.tree.state_slots()
    bench.audit()


@PAGE_SIZES
@pytest.mark.parametrize("has_window", [False, True])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_own_matched_prefix_evicted_for_own_state(page_size, has_window, policy):
    """Matched, locked and held, the oldest prefix stays with its state while others make room; alone, nothing goes."""
    for others in ("", "w", "wx"):
        bench = Bench(16, page_size, policy, Window(2 * page_size) if has_window else None, num_states=1 + len(others))
        bench.keep("abcd")
        for other in others:
            bench.keep(other)
        found = bench.match("abcde")
        bench.tree.lock(found.node)
        bench.tree.hold_state(found.node)
        for other in others:
            bench.match(other)
        gone = evict(bench.tree, 100 * page_size, 100 * page_size, 100)
        gone += evict_bytes(bench.tree, 10**6, token_bytes=1, window_token_bytes=1, state_bytes=1)
        assert (gone.num_nodes, gone.num_states) == (len(others), len(others))
        assert (found.node.state is not None, bench.state_counts()) == (True, (0, 1))
        assert bench.match("abcde").node is found.node
        bench.tree.let_state_go(found.node)
        bench.tree.unlock(found.node)
        assert (bench.tree.protected_tokens, bench.tree.evictable_tokens) == (0, 4 * page_size)
        assert bench.state_counts() == (1, 0)
        bench.audit()


@pytest.mark.parametrize("num_tokens", [1, 3, 7])
def test_state_asked_of_an_arena_that_tokens_fill(num_tokens):
    """Where tokens and states share bytes, leaves make room for a state, no more than it takes; all comes back once."""
    allocator = UnifiedMambaAllocator(120, page_size=1, full=1, state=20)  # 100 bytes above the sink
    tree = PrefixTree(allocator, states=allocator.states)
    nodes = []
    while (slots := allocator.alloc(num_tokens)) is not None:
        nodes.append(tree.insert(np.arange(num_tokens) + 1000 * len(nodes), slots).node)
    tree.lock(nodes[0])
    for i in range(1, 4):
        short = allocator.chain.shortfall({"state": 1})
        assert allocator.states.alloc(1) is None
        gone = evict_bytes(tree, short, token_bytes=1, state_bytes=20)
        assert short <= gone.num_tokens < short + num_tokens
        assert gone.num_states == 0
        (slot,) = allocator.states.alloc(1).tolist()
        assert tree.put_state(nodes[-i], slot) is True
        tree.audit()
        allocator.audit()
    left = tree.evictable_tokens
    assert evict_bytes(tree, 1000, token_bytes=1, state_bytes=20) == Gone(left, left // num_tokens, num_states=3)
    tree.unlock(nodes[0])
    assert tree.clear() is True
    assert (allocator.available_size(), allocator.states.available_size()) == (100, 5)
    allocator.audit()
