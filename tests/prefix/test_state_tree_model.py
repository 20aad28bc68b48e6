from math import inf

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from prefix_model import Space, keyed_nodes, spaces
from state_tree_model import StateTreeModel
from tree_setup import FreeStates

from eviction_in_tokens import evict, evict_bytes
from kvstead.allocators import PagedAllocator, SWAAllocator
from kvstead.errors import LockUnderflow, OpenGroup, UseAfterFree
from kvstead.model.window import Window
from kvstead.prefix import POLICIES, Namespace, PrefixTree

NUM_PAGES, NUM_STATES = 24, 5
NAMESPACES = [Namespace(), Namespace(lora="a")]


class StateTreeMachine(RuleBasedStateMachine):
    """A tree with states, with a window or without, beside the model, in any order of operations."""

    @initialize(
        page_size=st.integers(1, 4),
        span=st.one_of(st.just(inf), st.integers(1, 9)),
        is_chunked=st.booleans(),
        policy=st.sampled_from(sorted(POLICIES)),
        branches=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=3, max_size=NUM_STATES),
    )
    def start(self, page_size, span, is_chunked, policy, branches):
        """Small pools, a tree of a few states."""
        self.page_size = page_size
        size = NUM_PAGES * page_size
        window = None if span == inf else Window(span, is_chunked)
        self.allocator = SWAAllocator(size, size, page_size) if window else PagedAllocator(size, page_size)
        self.pool = FreeStates(NUM_STATES)
        self.tree = PrefixTree(self.allocator, policy=policy, window=window, states=self.pool)
        self.model = StateTreeModel(page_size, policy, span, is_chunked)
        self.locked = []  # (node, key, where its window part begins), one a lock
        self.held = []  # (node, key), one a hold
        self.spaces = {}  # by the key of a state
        for stem, length in branches:
            pages = [0] * stem + [1] * length
            self.cache(np.repeat(pages, page_size), Space(NAMESPACES[0]), 0, 0, puts=True)

    def tokens(self, data):
        """Keys over two letters, one of them rare, so that most continue one another."""
        pages = data.draw(st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=8), label="pages")
        return np.repeat(np.array(pages, dtype=np.int64), self.page_size)

    @rule(
        data=st.data(),
        space=spaces(NAMESPACES),
        priority=st.integers(-2, 2),
        num_dead=st.sampled_from([0, 0, 0, 1, 3]),
        puts=st.sampled_from([True, True, False]),
        lock=st.booleans(),
    )
    def insert(self, data, space, priority, num_dead, puts, lock):
        """A request caches its row, the head of it without windows, and the state that it has come to."""
        node, key = self.cache(self.tokens(data), space, priority, num_dead, puts=puts)
        if lock and node is not None:
            self.lock_both(node, key)

    def cache(self, tokens, space, priority, num_dead, *, puts):
        """Insert a key where it fits, evicting if need be."""
        short = tokens.size - self.room()
        if short > self.tree.evictable_tokens:
            return None, ()
        assert evict(self.tree, max(short, 0)) == self.model.evict(max(short, 0), 0)
        row = self.allocator.alloc(tokens.size).numpy()
        has_window = np.zeros(tokens.size // self.page_size, dtype=bool)
        if self.model.span < inf:
            self.allocator.free_swa_segment(row[: num_dead * self.page_size], start_pos=0)
            has_window[num_dead:] = True
        done = self.tree.insert(tokens, row, **space._asdict(), priority=priority)
        pages = (row[:: self.page_size] // self.page_size).tolist()
        shared = self.model.insert(space.namespace, space.pairs(tokens), pages, has_window.tolist(), priority)
        assert (done.num_shared, done.num_tokens) == (shared, tokens.size)
        self.allocator.free_segment(row[:shared], start_pos=0)
        key = (space.namespace, *space.pairs(tokens))
        self.spaces[key] = space
        if puts:
            self.put_both(done.node, key)
        return done.node, key

    def put_both(self, node, key):
        """Put a state, for which another goes if it must."""
        if not self.pool.available:
            assert evict(self.tree, 0, 0, 1) == self.model.evict(0, 0, 1)
        if not self.pool.available:
            return
        slot = self.pool.alloc()
        taken = self.tree.put_state(node, slot)
        assert taken == self.model.put_state(key, slot)
        if not taken:
            self.pool.free(np.array([slot]))

    @precondition(lambda self: self.model.states)
    @rule(
        data=st.data(),
        misses=st.sampled_from([False, False, True]),
        then=st.sampled_from(["", "lock", "hold", "supersede"]),
    )
    def match(self, data, misses, then):
        """A match is the longest prefix that ends at a state and has its window, with the slots put in for it."""
        cached = data.draw(st.sampled_from(list(self.model.states)), label="cached")
        space = data.draw(st.sampled_from([self.spaces[cached], Space(cached[0])]), label="space")
        known = [token for token, _ in cached[1:]]
        tokens = self.tokens(data) if misses else np.array(known + [0] * self.page_size)
        found = self.tree.match(tokens, **space._asdict())
        assert (found.num_tokens, found.num_found) == self.model.match(space.namespace, space.pairs(tokens))
        assert found.node.end == found.num_tokens
        keys = self.model.prefixes(space.namespace, space.pairs(tokens[: found.num_tokens]))
        slots = [self.model.pages[key].page * self.page_size + i for key in keys for i in range(self.page_size)]
        assert self.tree.slots(found).tolist() == slots
        key = keys[-1] if keys else ()
        if then == "lock":
            self.lock_both(found.node, key)
        elif then == "hold" and key:
            self.tree.hold_state(found.node)
            self.model.states[key].holds += 1
            self.held.append((found.node, key))
        elif then == "supersede" and key:
            self.tree.supersede_state(found.node)
            self.model.supersede(key)

    def lock_both(self, node, key):
        """Lock a node, restorable or not."""
        self.tree.lock(node)
        self.locked.append((node, key, self.model.lock(key)))

    @precondition(lambda self: self.locked)
    @rule(data=st.data())
    def unlock(self, data):
        """Locks go in any order."""
        node, key, since = self.locked.pop(data.draw(st.integers(0, len(self.locked) - 1), label="which"))
        self.tree.unlock(node)
        self.model.locks.remove((key, since))

    @precondition(lambda self: self.locked)
    @rule(data=st.data())
    def put_state(self, data):
        """A request that has locked its prefix puts a state there; the root takes none."""
        node, key, _ = data.draw(st.sampled_from(self.locked), label="which")
        if key:
            self.put_both(node, key)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_state_go(self, data):
        """Holds go in any order; once let go as often as held, another is an error."""
        node, key = self.held.pop(data.draw(st.integers(0, len(self.held) - 1), label="which"))
        self.tree.let_state_go(node)
        self.model.states[key].holds -= 1
        if node not in [other for other, _ in self.held]:
            with pytest.raises(LockUnderflow):
                self.tree.let_state_go(node)

    @precondition(lambda self: self.model.states)
    @rule(data=st.data())
    def supersede(self, data):
        """A sequence goes beyond any node, with or without a state."""
        nodes = dict(keyed_nodes(self.tree.root))
        key = data.draw(st.sampled_from(sorted(nodes, key=str)), label="which")
        self.tree.supersede_state(nodes[key])
        self.model.supersede(key)

    @precondition(lambda self: len(self.model.states) > 1)
    @rule(num_tokens=st.integers(0, 4), num_window_tokens=st.integers(0, 8), num_states=st.integers(0, 2))
    def evict(self, num_tokens, num_window_tokens, num_states):
        """What goes is what brute force picks, and what was asked for is available at once."""
        evictable = self.tree.evictable_tokens, self.tree.window_evictable_tokens, self.tree.evictable_states
        free = self.room(), len(self.pool.available)
        gone = evict(self.tree, num_tokens, num_window_tokens, num_states)
        assert gone == self.model.evict(num_tokens, num_window_tokens, num_states)
        assert gone.num_tokens >= min(num_tokens, evictable[0])
        assert gone.num_window_tokens >= min(num_window_tokens, evictable[1])
        assert gone.num_states >= min(num_states, evictable[2])
        assert (self.room(), len(self.pool.available)) == (free[0] + gone.num_tokens, free[1] + gone.num_states)

    @precondition(lambda self: len(self.model.states) > 1)
    @rule(
        num_bytes=st.integers(0, 40), token=st.integers(1, 4), window_token=st.integers(0, 4), state=st.integers(0, 20)
    )
    def evict_bytes(self, num_bytes, token, window_token, state):
        """Victim after victim as brute force picks them over all sides, bytes enough or all there are."""
        costs = {"token_bytes": token, "window_token_bytes": window_token, "state_bytes": state}
        evictable = self.tree.evictable_tokens, self.tree.window_evictable_tokens, self.tree.evictable_states
        gone = evict_bytes(self.tree, num_bytes, **costs)
        assert gone == self.model.evict_bytes(num_bytes, **costs)
        freed = gone.num_tokens, gone.num_window_tokens, gone.num_states
        num_freed = sum(count * cost for count, cost in zip(freed, costs.values(), strict=True))
        if num_freed < num_bytes:
            assert all(
                count == all_of_it or not cost
                for count, all_of_it, cost in zip(freed, evictable, costs.values(), strict=True)
            )

    @precondition(lambda self: len(self.model.pages) == NUM_PAGES)
    @rule()
    def evict_in_a_group(self):
        """An open free group makes eviction an error, and a clear is refused."""
        with self.allocator.defer_frees():
            with pytest.raises(OpenGroup):
                evict_bytes(self.tree, 1, token_bytes=1)
            assert self.tree.clear() is False

    @precondition(lambda self: not self.pool.available)
    @rule()
    def clear(self):
        """A clear takes everything or, with anything locked or held, nothing."""
        nodes = [node for node in self.tree.root.below() if node.state is not None]
        done = self.tree.clear()
        assert done is (not self.locked and not self.held)
        if done:
            self.model.pages.clear()
            self.model.ends.clear()
            self.model.states.clear()
            for node in nodes:
                with pytest.raises(UseAfterFree):
                    self.tree.hold_state(node)

    def room(self):
        """Tokens that the full side has capacity for."""
        return self.allocator.full_available_size() if self.model.span < inf else self.allocator.available_size()

    @invariant()
    def agrees(self):
        """Every node and every state is as the model says, in the tree or free, and all counts agree."""
        assert self.nodes_of_tree() == self.nodes_of_model()
        full, window = self.model.counts()
        assert (self.tree.evictable_tokens, self.tree.protected_tokens) == full
        assert self.room() + sum(full) == self.allocator.size
        if self.model.span < inf:
            counted = self.tree.window_evictable_tokens, self.tree.window_protected_tokens
            assert (*counted, self.tree.num_tombstone_tokens) == window
            assert self.allocator.swa_available_size() + sum(counted) == self.allocator.swa_size
        num_held = len({key for _, key in self.held})
        num_states = len(self.model.states)
        assert (self.tree.evictable_states, self.tree.held_states) == (num_states - num_held, num_held)
        owned = self.tree.state_slots().tolist()
        assert owned == sorted(state.slot for state in self.model.states.values())
        assert sorted(owned + self.pool.available) == list(range(1, NUM_STATES + 1))
        self.tree.audit()
        self.allocator.audit()

    def nodes_of_model(self):
        """By the key that a node ends: its pages, its uses, its window and its state."""
        nodes = {}
        for keys in self.model.nodes():
            last, state = self.model.pages[keys[-1]], self.model.states.get(keys[-1])
            window = (last.is_live, self.model.num_window_locks(keys[-1]), uses_of(last.window))
            held = state and (state.slot, state.holds, self.model.is_superseded(keys[-1]), uses_of(state.usage))
            pages = [self.model.pages[key].page for key in keys]
            nodes[keys[-1]] = pages, uses_of(last.full), window if self.model.span < inf else None, held
        return nodes

    def nodes_of_tree(self):
        """The same of the tree."""
        nodes = {}
        for key, node in keyed_nodes(self.tree.root):
            state = node.state
            window = (node.window.is_live, node.window.locks, uses_of(node.window))
            held = state and (state.slot, state.holds, state.is_superseded, uses_of(state))
            nodes[key] = node.pages.tolist(), uses_of(node), window if self.model.span < inf else None, held
        return nodes


def uses_of(usage):
    """What a policy looks at."""
    return usage.access, usage.created, usage.priority, usage.hits


TestStateTree = StateTreeMachine.TestCase
TestStateTree.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


@pytest.mark.soak
class TestStateTreeSoak(StateTreeMachine.TestCase):
    """The same machine for much longer."""

    settings = settings(max_examples=5_000, stateful_step_count=80, deadline=None)
