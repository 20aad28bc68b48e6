"""Faults that users of prefix caches with states reported, each as the smallest scenario with the right answer."""

import itertools

import numpy as np
import pytest
from tree_setup import TreeSetup

from eviction_in_tokens import Gone, evict, evict_bytes
from kvstead.allocators import UnifiedMambaAllocator
from kvstead.errors import UseAfterFree
from kvstead.model.window import Window
from kvstead.prefix import POLICIES, PrefixTree

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 3, 64])
WORD = "abcdefgh"


@PAGE_SIZES
def test_match_ends_at_the_last_state_before_prompts_part(page_size):
    """Two prompts share more than can be continued: a match says so, and ends at the last state before they part."""
    for shared, ends in itertools.product((0, 1, 4, 7, 8), [(), *itertools.combinations(range(1, 9), 2)]):
        setup = TreeSetup(24, page_size, num_states=4)
        setup.cache(WORD)
        for end in ends:
            setup.keep(WORD[:end])
        found = setup.match(WORD[:shared] + "x")
        usable = max((end for end in ends if end <= shared), default=0) * page_size
        assert (found.num_tokens, found.num_found) == (usable, shared * page_size)
        branch = setup.cache(WORD[:shared] + "x").node.parent
        if shared:
            slot = setup.states.alloc()
            if not setup.tree.put_state(branch, slot):
                setup.states.free(np.array([slot]))
            assert setup.match(WORD[:shared] + "y").num_tokens == shared * page_size
        setup.audit()


@pytest.mark.parametrize("page_size", [1, 2, 64])
@pytest.mark.parametrize("num_on_path", [1, 2, 3, 6])
@pytest.mark.parametrize("shares_bytes", [False, True])
def test_hit_refreshes_the_states_of_its_whole_path(page_size, num_on_path, shares_bytes):
    """A hit deep down leaves the states on the way there as old as they were: they go before that of another path."""
    setup = TreeSetup(40, page_size, num_states=num_on_path + 1)
    path = [WORD[: i + 1] for i in range(num_on_path)]
    for word in (*path, "z"):
        setup.keep(word)
    setup.match(path[-1])
    words = " ".join((*path, "z"))
    for num_gone in range(1, num_on_path + 2):
        if shares_bytes:
            evict_bytes(setup.tree, 1, token_bytes=1, state_bytes=1000)
        else:
            evict(setup.tree, 0, 0, 1)
        left = [*path[:-1], "z", path[-1]][num_gone:]
        assert sorted(setup.with_states(words).split()) == sorted(left)
        setup.audit()


@PAGE_SIZES
@pytest.mark.parametrize("num_held", [0, 1, 2])
def test_no_evictable_state_when_one_is_to_be_cached(page_size, num_held):
    """With every state in use or held none is evicted, the tokens are cached without one, and nothing else changes."""
    setup = TreeSetup(12, page_size, num_states=2 + num_held)
    for _ in range(2):
        setup.states.alloc()  # two requests run on these
    for node in [setup.keep(word) for word in "pq"[:num_held]]:
        setup.tree.hold_state(node)
    counts = setup.state_counts(), setup.tree.num_states, setup.tree.protected_tokens
    assert setup.states.available == []
    node = setup.cache("abcd").node
    setup.tree.lock(node)
    assert evict(setup.tree, 0, 0, 1) == Gone()
    setup.tree.unlock(node)
    assert (setup.state_counts(), setup.tree.num_states, setup.tree.protected_tokens) == counts
    found = setup.match("abcd")
    assert (found.num_tokens, found.num_found) == (0, 4 * page_size)
    setup.audit()


@PAGE_SIZES
def test_making_room_for_a_state_takes_the_path_that_it_is_for(page_size):
    """The path is locked before anything is evicted for the state to be put there: it stays, and takes the state."""
    for length, num_tokens, policy in itertools.product((1, 2, 6), (0, 1, 100), sorted(POLICIES)):
        setup = TreeSetup(16, page_size, policy, num_states=2)
        node = setup.cache(WORD[:length]).node
        setup.keep("y")
        setup.keep("z")
        setup.tree.lock(node)
        assert evict(setup.tree, num_tokens * page_size, 0, 1).num_states >= 1
        assert setup.tree.put_state(node, setup.states.alloc()) is True
        setup.tree.unlock(node)
        assert setup.match(WORD).num_tokens == length * page_size
        setup.audit()


@PAGE_SIZES
def test_state_is_refused_for_a_path_that_is_gone(page_size):
    """A caller that evicts before locking is told that the node is gone, and the slot is still its own."""
    setup = TreeSetup(16, page_size, num_states=2)
    node = setup.cache("abcd").node
    setup.keep("z")
    evict(setup.tree, 1)
    slot = setup.states.alloc()
    with pytest.raises(UseAfterFree):
        setup.tree.put_state(node, slot)
    assert slot not in setup.tree.state_slots()
    setup.audit()


@PAGE_SIZES
@pytest.mark.parametrize("has_window", [False, True])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_matched_prefix_is_kept_from_eviction_for_its_own_state(page_size, has_window, policy):
    """Matched, locked and held, the oldest prefix keeps its state while others are evicted; alone, nothing goes."""
    for others in ("", "w", "wx"):
        setup = TreeSetup(
            16, page_size, policy, Window(2 * page_size) if has_window else None, num_states=1 + len(others)
        )
        setup.keep("abcd")
        for other in others:
            setup.keep(other)
        found = setup.match("abcde")
        setup.tree.lock(found.node)
        setup.tree.hold_state(found.node)
        for other in others:
            setup.match(other)
        gone = evict(setup.tree, 100 * page_size, 100 * page_size, 100)
        gone += evict_bytes(setup.tree, 10**6, token_bytes=1, window_token_bytes=1, state_bytes=1)
        assert (gone.num_nodes, gone.num_states) == (len(others), len(others))
        assert (found.node.state is not None, setup.state_counts()) == (True, (0, 1))
        assert setup.match("abcde").node is found.node
        setup.tree.let_state_go(found.node)
        setup.tree.unlock(found.node)
        assert (setup.tree.protected_tokens, setup.tree.evictable_tokens) == (0, 4 * page_size)
        assert setup.state_counts() == (1, 0)
        setup.audit()


@pytest.mark.parametrize("num_tokens", [1, 3, 7])
def test_state_asked_of_an_arena_that_tokens_fill(num_tokens):
    """Where tokens and states share bytes, a state evicts no more leaves than it takes; all comes back once."""
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
