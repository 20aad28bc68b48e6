"""The radix tree: which token prefixes are cached, in which slots, and which of them requests still need.

    root -- [A A A A | B B B B] -- [C C C C]              match(A B C): 12 tokens, ends at the C node
                                `- [D D D D | E E E E]    match(A B D x): splits the last node before E

Every node is a run of whole pages, and siblings differ in their first page, so a child is found by the bytes of one
page. Tokens are kept as int32, slots as one page id per page. Nothing is keyed by a hash of content, and a page that is
only partly filled is never keyed at all: it belongs to its request until it is full.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvstead.errors import InvalidSize, KVSteadError, LockUnderflow
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, to_host
from kvstead.model.window import Window
from kvstead.pages.amounts import Evicted
from kvstead.prefix.component import NO_PAGES, Component
from kvstead.prefix.eviction import Eviction
from kvstead.prefix.full import FullComponent
from kvstead.prefix.node import Insertion, Match, Node, Tokens, WindowPart, key_of
from kvstead.prefix.queue import policy_named
from kvstead.prefix.slot_pools import SlotPool, StateSlots, window_pool
from kvstead.prefix.state import StateComponent
from kvstead.prefix.structure import TreeStructure, Watcher, audit_structure, path_up, walk
from kvstead.prefix.token_keys import NO_KEYS, PLAIN, Keys, Namespace, key_spans
from kvstead.prefix.tree_counts import TreeCounts
from kvstead.prefix.window import WindowComponent


class PrefixTree(TreeCounts):
    """Cached prefixes over the pages of one allocator.

    allocator: gets back what is evicted; slots come from its users, through `insert`. policy: which unlocked leaf is
    evicted first, see `kvstead.prefix.queue`. window: what layers that look back over a bounded span need; the
    allocator must then have a window side, as `SWAAllocator` has. states: where the states come from, for a tree with
    states. Raises `InvalidSize` for an unknown policy, `LayoutError` for a window without a window side.

    A slot inserted here belongs to the tree until it is evicted; requests refer to it under a lock. A walk compares
    each token once and looks at each node of one path; eviction is O(log n) per node.
    """

    def __init__(
        self,
        allocator: SlotPool,
        *,
        policy: str = "lru",
        window: Window | None = None,
        states: StateSlots | None = None,
    ) -> None:
        self.page_size = allocator.page_size
        self.root = Node(None, b"", np.empty(0, dtype=np.int32), NO_PAGES, 0, 0)
        self.evicted = Evicted()  # since the start
        self._allocator = allocator
        self._clock = 0
        rank = policy_named(policy)
        self._full = FullComponent(allocator, rank, has_states=states is not None)
        self._components: list[Component] = [self._full]
        self._structure = TreeStructure(self.page_size, self._components)
        self._window: WindowComponent | None = None
        self._states: StateComponent | None = None
        if window is not None:
            self._window = WindowComponent(window_pool(allocator), rank, window, self._full, self._structure)
            self._components.append(self._window)
            self.root.window = WindowPart(0, 0, is_live=False)
        if states is not None:
            self._states = StateComponent(states, rank, self._full, self._structure)
            self._components.insert(0, self._states)  # its pool may refuse, when nothing has changed yet
        self._eviction = Eviction(allocator, self._full, self._components, self._structure)

    def __repr__(self) -> str:
        evictable, protected = self.evictable_tokens, self.protected_tokens
        return f"<PrefixTree: {evictable + protected:,} tokens cached, {evictable:,} of them evictable>"

    def watch(self, watcher: Watcher) -> None:
        """Have somebody told of every change of the nodes from now on."""
        self._structure.watchers.append(watcher)

    def match(self, tokens: Tokens, *, namespace: Namespace = PLAIN, keys: Keys = ()) -> Match:
        """Find the longest cached prefix of `tokens`, in whole pages, and mark it as used now.

        tokens: int32[n] or int64[n]. A request that must compute at least one token passes all but its last. With a
        window, the longest prefix whose last window of tokens is there as well. The match holds nothing: `lock` its
        node before anything may evict. Earlier matches stay valid. keys: what tokens depend on besides their ids; a
        page matches with equal keys only. Raises `RequestError` for anything but a flat array of ids that fit int32,
        and for keys that are none.
        """
        key, spans = key_of(tokens, self.page_size), key_spans(keys) if keys else NO_KEYS
        path, num_found = walk(self.root, key, namespace, spans, self.page_size)
        node = self._structure.node_at(path[-1], self._structure.usable(path, num_found))
        self._clock += 1
        self._structure.use(node, self._clock, 1, node.priority)
        return Match(node, node.end, num_found)

    def slots(self, where: Match | Node) -> IntArray:
        """int64[num_tokens], the slots of all tokens from the root to there; a copy.

        Raises `UseAfterFree` when the node has been evicted.
        """
        node = where.node if isinstance(where, Match) else where
        return self._full.slots(np.concatenate([at.pages for at in reversed(path_up(node, self.root))]))

    def held_pages(self) -> IntArray:
        """The ids of all pages that the tree owns, ascending. O(pages of the pool), for audits."""
        return self._full.held_pages()

    def insert(
        self,
        tokens: Tokens,
        slots: Integers,
        *,
        namespace: Namespace = PLAIN,
        keys: Keys = (),
        priority: int = 0,
        is_end: bool = True,
    ) -> Insertion:
        """Cache the whole pages of `tokens`; the tree owns from now on the pages that are new to it.

        tokens: int32[n] or int64[n]. slots: n of any integer type, the request's row from position 0; copied. For the
        leading `num_shared` tokens the tree keeps the slots it has: where the caller's differ, the caller frees them,
        but tombstones among them take over the caller's window pages. New tokens are cached with or without window
        pages, as their slots are. Tokens past the last whole page are ignored and stay the caller's. priority: raised
        to this along the path. is_end: whether sequences are expected to continue behind the last one, so that windows
        there are kept longer than those inside a prompt.

        Raises `RequestError` for tokens and keys as in `match`, `InvalidSize` when tokens and slots differ in number,
        `MisalignedSegment` and `ForeignPage` for new slots that are no whole pages of the pool, `AuditError` for a page
        that the tree owns already.
        """
        key, row = key_of(tokens, self.page_size), to_host(slots)
        spans = key_spans(keys) if keys else NO_KEYS
        if row.size != len(tokens):
            raise InvalidSize(f"{len(tokens)} tokens came with {row.size} slots. Pass one slot for every token.")
        path, num_shared = walk(self.root, key, namespace, spans, self.page_size)
        pages = self._claim(path, num_shared, row[: key.size])  # raises before anything has changed
        self._clock += 1
        node = self._structure.node_at(path[-1], num_shared)
        if pages.size:
            node = self._structure.hang(node, key[num_shared:], pages, namespace, spans, self._clock, priority)
        self._structure.touch(node, self._clock, 0, priority)
        for component in self._components if is_end else (self._full,):  # others keep what is needed at an end
            component.use(node, 0)
        return Insertion(node, key.size, num_shared)

    def expect_end(self, node: Node, length: int) -> Node:
        """Keep windows as at an end behind the first `length` tokens, whole pages, of the path to `node`.

        Returns the node that ends there. Raises `UseAfterFree` for a node that is gone. O(path).
        """
        path_up(node, self.root)
        end = self._structure.node_at(node, length)
        for component in self._components:
            component.use(end, 0)
        return end

    def lock(self, node: Node) -> None:
        """Keep everything from the root to `node` until as many `unlock` calls. Raises `UseAfterFree` if it is gone."""
        path_up(node, self.root)
        node.pins += 1
        for component in self._components:
            component.lock(node)

    def unlock(self, node: Node, *, window_from: int | None = None) -> None:
        """Undo one `lock` of this very node. Raises `LockUnderflow` when there is none, and `UseAfterFree`.

        window_from: where the window part of that lock begins, if `loosen` has moved it.
        """
        self._require_lock(node)
        for component in reversed(self._components):  # the window side, the last, may refuse
            component.unlock(node, window_from)
        node.pins -= 1

    def loosen(self, node: Node, window_from: int, to: int) -> None:
        """Let go part of what one lock of `node` keeps on the window side, which begins at token `window_from`.

        to: where it begins from now on; `node.end` or more lets all of it go. Raises as `unlock`, and `InvalidSize` for
        a `to` in front of `window_from`.
        """
        self._require_lock(node)
        for component in self._components:
            component.loosen(node, window_from, to)

    def put_state(self, node: Node, slot: int) -> bool:
        """Keep the state of the sequence that ends at `node`; later matches may end there.

        slot: belongs to the tree from now on, if True. False: the node has a state already, which counts as used now,
        and `slot` stays the caller's. Raises `UseAfterFree` for a node that is gone, `InvalidSize` for the root and for
        a tree without states, `ForeignPage` for padding, `AuditError` for a slot that the tree owns already.
        """
        states = self._states_at(node)
        if node is self.root:
            raise InvalidSize("no sequence ends at the root. Put a state where an insertion or a match ended.")
        self._clock += 1
        return states.put(node, slot, self._clock)

    def supersede_state(self, node: Node) -> None:
        """Evict the last state up to `node` before others unless a match has come back to it: a later one is to come.

        `put_state` does so too; this makes room for the later one. Raises `InvalidSize` for a tree without states.
        O(path).
        """
        self._require_states().supersede(node)

    def hold_state(self, node: Node) -> None:
        """Keep the state of `node` and its path until as many `let_state_go` calls, as while it is copied.

        Raises `UseAfterFree` when the node or its state is gone, `InvalidSize` for a tree without states.
        """
        self._states_at(node).hold(node)
        self._full.lock(node)

    def let_state_go(self, node: Node) -> None:
        """Undo one `hold_state` of this very node. Raises `LockUnderflow` when there is none, and as `hold_state`."""
        self._states_at(node).let_go(node)
        self._full.unlock(node)

    def state_slots(self) -> IntArray:
        """int64[num_states], the slots of all states that the tree owns, ascending, for audits."""
        return self._states.slots() if self._states else NO_PAGES

    def evict(self, pages: Mapping[str, int]) -> Evicted:
        """Free at least so many pages of each side, or all that is not locked or held.

        pages: by side, "full", "window" and "state"; sides that the tree lacks are ignored. For the full side whole
        nodes go, leaves first; a parent whose last child goes may follow in the same call. What that does not free of
        the other sides goes alone: windows, whose nodes stay as tombstones, then states. Returns what went. Raises
        `InvalidSize` for a negative number and `OpenGroup` while the allocator has a free group open, since nothing
        would become available before its end.
        """
        gone = self._eviction.evict(pages)
        self.evicted += gone
        return gone

    def evict_bytes(self, num_bytes: int, page_bytes: Mapping[str, int]) -> Evicted:
        """Free at least `num_bytes`, or all that is not locked or held, where the sides share bytes.

        page_bytes: what a page of each side has; one of none is not evicted alone. The next victim is the lowest over
        all sides: `kvstead.prefix.eviction`. Returns what went. Raises as `evict`, and `InvalidSize` for pages of no
        bytes on the full side.
        """
        gone = self._eviction.evict_bytes(num_bytes, page_bytes)
        self.evicted += gone
        return gone

    def clear(self) -> bool:
        """Free everything that the tree holds.

        False, with nothing changed, while a node is locked (the root counts) or a free group is open.
        """
        if self.root.pins or self._full.protected or self._allocator.free_group is not None:
            return False
        self._structure.remove(list(self.root.below()))
        return True

    def audit(self) -> None:
        """Walk everything and recount. Raises `AuditError`. O(tree + pages of the pool)."""
        audit_structure(self.root, self.page_size)
        for component in self._components:
            component.audit(self.root)

    def _claim(self, path: list[Node], num_shared: int, row: IntArray) -> IntArray:
        """The new pages of a row, the tree's from now on; what is cached on the path takes from it what it lacks."""
        pages = self._full.claim(row[num_shared:])
        try:
            for component in self._components:
                component.mend(path, num_shared, row)
        except KVSteadError:
            self._full.disclaim(pages)
            raise
        return pages

    def _require_lock(self, node: Node) -> None:
        path_up(node, self.root)
        if not node.pins:
            raise LockUnderflow(f"{node} is not locked. Unlock the node that was locked, once for each lock.")

    def _require_states(self) -> StateComponent:
        if self._states is None:
            raise InvalidSize("this tree keeps no states. Make it with `states=`, the allocator that they return to.")
        return self._states

    def _states_at(self, node: Node) -> StateComponent:
        path_up(node, self.root)
        return self._require_states()
