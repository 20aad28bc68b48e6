"""The radix tree: which token prefixes are cached, in which slots, and who still needs them.

    root -- [A A A A | B B B B] -- [C C C C]              match(A B C): 12 tokens, ends at the C node
                                `- [D D D D | E E E E]    match(A B D x): splits the last node before E

Every node is a run of whole pages, and siblings differ in their first page, so a child is found by the bytes of one
page. Tokens are kept as int32, slots as one page id a page. Nothing is keyed by a hash of content, and a page that is
only partly filled is never keyed at all: it stays its request's own until it is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import numpy as np

from kvstead.errors import InvalidSize, KVSteadError, LayoutError, LockUnderflow
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, to_host
from kvstead.kernels.tokens import TokenArray
from kvstead.model.window import Window
from kvstead.prefix import links
from kvstead.prefix.audit import audit_structure
from kvstead.prefix.component import Component, FullComponent, SlotPool
from kvstead.prefix.eviction import Eviction
from kvstead.prefix.keys import Tokens, key_of
from kvstead.prefix.node import Evicted, Insertion, Match, Namespace, Node, WindowPart
from kvstead.prefix.policies import policy_named
from kvstead.prefix.state import StateComponent, StateSlots
from kvstead.prefix.window import WindowComponent, WindowPool

_PLAIN = Namespace()


class PrefixTree:
    """Cached prefixes over the pages of one allocator.

    allocator: gets back what is evicted; slots come from its users, through `insert`. policy: which unlocked leaf goes
    first, see `kvstead.prefix.policies`. window: what layers that look back over a bounded span need; the allocator is
    then one with a window side, such as `SWAAllocator`. Raises `InvalidSize` for an unknown policy, `LayoutError` for a
    window without that side.

    A slot inserted here belongs to the tree until it is evicted; requests refer to it under a lock. Costs: a walk
    compares each token once and looks at each node of one path; eviction is O(log n) a node.
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
        self.root = Node(None, b"", links.NO_TOKENS, links.NO_PAGES, 0, 0)
        self._allocator = allocator
        self._full = FullComponent(allocator, policy_named(policy), has_states=states is not None)
        self._window: WindowComponent | None = None
        self._states: StateComponent | None = None
        self._components: tuple[Component, ...] = (self._full,)
        if window is not None:
            if not hasattr(allocator, "window_pages"):
                raise LayoutError(f"{type(allocator).__name__} has no window side. Give the tree an SWAAllocator.")
            self._window = WindowComponent(
                cast("WindowPool", allocator),
                policy_named(policy),
                window,
                cut=self._split,
                join=self._join,
                is_owned=self._full.is_owned,
            )
            self._components = (self._full, self._window)
            self.root.window = WindowPart(0, 0, is_live=False)
        if states is not None:
            self._states = StateComponent(states, policy_named(policy))
            self._components = (self._states, *self._components)  # its pool may refuse, when nothing has changed yet
        self._eviction = Eviction(
            allocator, self._full, self._window, self._states, remove=self._remove, join=self._join
        )
        self._clock = 0
        self.evicted = Evicted(0, 0)  # since the start

    @property
    def evictable_tokens(self) -> int:
        """Tokens that eviction can give back. O(1)."""
        return self._full.evictable_tokens

    @property
    def protected_tokens(self) -> int:
        """Tokens on paths that are locked or lead to held states. O(1)."""
        return self._full.protected_tokens

    @property
    def window_evictable_tokens(self) -> int:
        """Tokens whose window slots eviction can give back. O(1)."""
        return self._window.evictable_tokens if self._window else 0

    @property
    def window_protected_tokens(self) -> int:
        """Tokens whose window slots locks keep. O(1)."""
        return self._window.protected_tokens if self._window else 0

    @property
    def num_tombstone_tokens(self) -> int:
        """Cached tokens that have no window slots any more. O(1)."""
        return self._window.tombstone_tokens if self._window else 0

    @property
    def num_states(self) -> int:
        """States that nodes have, each in a slot of its own. O(1)."""
        return self._states.num_states if self._states else 0

    @property
    def evictable_states(self) -> int:
        """Those of them that eviction can give back. O(1)."""
        return self._states.num_evictable if self._states else 0

    @property
    def held_states(self) -> int:
        """Those of them that somebody holds. O(1)."""
        return self.num_states - self.evictable_states

    def match(self, tokens: Tokens, *, namespace: Namespace = _PLAIN) -> Match:
        """Find the longest cached prefix of `tokens`, in whole pages, and mark it as used now.

        tokens: int32[n] or int64[n]. A request that must compute at least one token passes all but its last. With a
        window, the longest prefix whose last window of tokens is there as well. The match holds nothing: `lock` its
        node before anything may evict. May split a node; matches of that node stay good. Raises `RequestError` for
        anything but a flat array of ids that fit int32.
        """
        path, num_found = links.walk(self.root, key_of(tokens, self.page_size), namespace, self.page_size)
        node = self._node_at(path[-1], self._usable(path, num_found))
        self._clock += 1
        self._use(node, num_hits=1, priority=node.priority)
        return Match(node, node.end, num_found)

    def slots(self, where: Match | Node) -> IntArray:
        """int64[num_tokens], the slots of all tokens from the root to there; the caller's to keep.

        Raises `UseAfterFree` when the node has been evicted.
        """
        node = where.node if isinstance(where, Match) else where
        path = links.path_up(node, self.root)
        path.reverse()
        return self._full.slots(np.concatenate([at.pages for at in path]))

    def held_pages(self) -> IntArray:
        """The ids of all pages that the tree owns, ascending. O(pages of the pool), for audits."""
        return self._full.held_pages()

    def insert(self, tokens: Tokens, slots: Integers, *, namespace: Namespace = _PLAIN, priority: int = 0) -> Insertion:
        """Cache the whole pages of `tokens`; the tree owns from now on the pages that are new to it.

        tokens: int32[n] or int64[n]. slots: n of any integer type, the request's row from position 0; copied. For the
        leading `num_shared` tokens the tree keeps the slots it has: where the caller's differ they are his to free, but
        tombstones among them take over the window side of his. New tokens are cached with or without a window side, as
        their slots are. Tokens past the last whole page are ignored and stay his too. priority: raised to this along
        the path.

        Raises `RequestError` for tokens as in `match`, `InvalidSize` when tokens and slots differ in number,
        `MisalignedSegment` and `ForeignPage` for new slots that are no whole pages of the pool, `AuditError` for a page
        that the tree owns already.
        """
        key = key_of(tokens, self.page_size)
        row = to_host(slots)
        if row.size != len(tokens):
            raise InvalidSize(f"{len(tokens)} tokens came with {row.size} slots. Pass one slot for every token.")
        path, num_shared = links.walk(self.root, key, namespace, self.page_size)
        pages = self._full.claim(row[num_shared : key.size])  # raises before anything has changed
        try:
            for component in self._components:
                component.mend(path, num_shared, row)
        except KVSteadError:
            self._full.disclaim(pages)
            raise
        self._clock += 1
        node = self._node_at(path[-1], num_shared)
        if pages.size:
            node = self._hang(node, key[num_shared:], pages, namespace, priority)
        self._use(node, num_hits=0, priority=priority)
        return Insertion(node, key.size, num_shared)

    def lock(self, node: Node) -> None:
        """Keep everything from the root to `node` until as many `unlock` calls. Raises `UseAfterFree` if it is gone."""
        links.path_up(node, self.root)
        node.pins += 1
        for component in self._components:
            component.lock(node)

    def unlock(self, node: Node, *, window_from: int | None = None) -> None:
        """Undo one `lock` of this very node. Raises `LockUnderflow` when there is none, and `UseAfterFree`.

        window_from: where the window part of that lock begins, if `loosen` has moved it.
        """
        self._require_pin(node)
        for component in reversed(self._components):  # the window side, the last, may refuse
            component.unlock(node, window_from)
        node.pins -= 1

    def loosen(self, node: Node, window_from: int, to: int) -> None:
        """Let go part of what one lock of `node` keeps on the window side, which begins at token `window_from`.

        to: where it begins from now on; `node.end` or more lets all of it go. Raises as `unlock`, and `InvalidSize` for
        a `to` in front of `window_from`.
        """
        self._require_pin(node)
        for component in self._components:
            component.loosen(node, window_from, to)

    def put_state(self, node: Node, slot: int) -> bool:
        """Keep the state of the sequence that ends at `node`; later matches may end there.

        slot: of the allocator that the tree was given; it belongs to the tree from now on, if True. False: the node has
        a state already, which counts as used now, and `slot` stays the caller's. Raises `UseAfterFree` for a node that
        is gone, `InvalidSize` for the root and for a tree without states, `ForeignPage` for padding, `AuditError` for a
        slot that the tree owns already.
        """
        states = self._require_states()
        links.path_up(node, self.root)
        if node is self.root:
            raise InvalidSize("no sequence ends at the root. Put a state where an insertion or a match ended.")
        self._clock += 1
        return states.put(node, slot, self._clock)

    def hold_state(self, node: Node) -> None:
        """Keep the state of `node`, and its path, until as many `let_state_go` calls: while it is copied.

        Raises `UseAfterFree` when the node or its state is gone, `InvalidSize` for a tree without states.
        """
        states = self._require_states()
        links.path_up(node, self.root)
        states.hold(node)
        self._full.lock(node)

    def let_state_go(self, node: Node) -> None:
        """Undo one `hold_state` of this very node. Raises `LockUnderflow` when there is none, and as that."""
        states = self._require_states()
        links.path_up(node, self.root)
        states.let_go(node)
        self._full.unlock(node)

    def supersede_state(self, node: Node) -> None:
        """The sequence that put a state at `node` has put a later one; unless a match used it, it goes first.

        Nothing happens when the state is gone. Raises `InvalidSize` for a tree without states. O(log n).
        """
        self._require_states().supersede(node)

    def state_slots(self) -> IntArray:
        """int64[num_states], the slots of all states that the tree owns, ascending, for audits."""
        return self._states.slots() if self._states else links.NO_PAGES

    def evict(self, num_tokens: int, num_window_tokens: int = 0, num_states: int = 0) -> Evicted:
        """Give at least so much back to each side, or all that is not locked or held.

        For the full side whole nodes go, leaves first; a parent whose last child goes may follow in the same call. If
        that does not make up the window side, windows go alone, and their nodes stay as tombstones; the same with
        states, whose nodes stay as ways. Returns what went. Raises `InvalidSize` for a negative number and `OpenGroup`
        while the allocator has a free group open, since nothing would become available before its end.
        """
        gone = self._eviction.evict(num_tokens, num_window_tokens, num_states)
        self.evicted += gone
        return gone

    def evict_bytes(
        self, num_bytes: int, *, token_bytes: int, window_token_bytes: int = 0, state_bytes: int = 0
    ) -> Evicted:
        """Give back at least `num_bytes`, or all that is not locked or held, where the sides share bytes.

        token_bytes, window_token_bytes, state_bytes: what a token costs on the full side and on the window side, and a
        state. The next victim is the lowest over all sides: `kvstead.prefix.eviction`. Returns what went. Raises as
        `evict`, and `InvalidSize` for tokens of no bytes.
        """
        gone = self._eviction.evict_bytes(num_bytes, token_bytes, window_token_bytes, state_bytes)
        self.evicted += gone
        return gone

    def clear(self) -> bool:
        """Give everything back to the allocator.

        False, with nothing changed, while a node is locked (the root counts) or a free group is open.
        """
        if self.root.pins or self.protected_tokens or self._allocator.free_group is not None:
            return False
        self._remove(list(self.root.below()))
        return True

    def audit(self) -> None:
        """Walk everything and recount. Raises `AuditError`. O(tree + pages of the pool)."""
        audit_structure(self.root, self.page_size)
        for component in self._components:
            component.audit(self.root)

    def _usable(self, path: Sequence[Node], length: int) -> int:
        """The longest prefix, of `length` tokens at most, that satisfies every component."""
        while True:
            shorter = min(component.usable(path, length) for component in self._components)
            if shorter == length:
                return length
            length = shorter

    def _node_at(self, node: Node, length: int) -> Node:
        """The node that ends after `length` tokens on the path down to `node`, split off if need be."""
        while node.start >= length and node.parent is not None:
            node = node.parent
        return node if node.end == length else self._split(node, length - node.start)

    def _split(self, lower: Node, num_tokens: int) -> Node:
        """Put the leading `num_tokens` of `lower` into a node of their own above it; `lower` keeps its identity."""
        upper = links.split(lower, num_tokens, self.page_size)
        for component in self._components:
            component.split(upper, lower)
        return upper

    def _join(self, upper: Node) -> None:
        """Take `upper` into its only child, if nobody needs the boundary between them."""
        if upper.parent is None or len(upper.children) != 1:
            return
        (lower,) = upper.children.values()
        for component in self._components:
            if not component.is_joinable(upper, lower):
                return
        links.join(upper, lower)
        for component in self._components:
            component.join(upper, lower)

    def _hang(self, parent: Node, tokens: TokenArray, pages: IntArray, namespace: Namespace, priority: int) -> Node:
        """Add new tokens below `parent`, in as many nodes as the components want; returns the last one."""
        cuts = sorted({cut for component in self._components for cut in component.cuts(pages)})
        for start, end in pairwise((0, *cuts, pages.size)):
            stretch = tokens[start * self.page_size : end * self.page_size]
            parent = links.hang(parent, stretch, pages[start:end], namespace, self._clock, priority)
            for component in self._components:
                component.adopt(parent)
        return parent

    def _use(self, node: Node, num_hits: int, priority: int) -> None:
        """The path down to `node` is in use now."""
        links.use(node, self._clock, num_hits, priority)
        for component in self._components:
            component.use(node, num_hits)

    def _remove(self, nodes: Sequence[Node]) -> None:
        """Take nodes out of the tree and give back what they held. Raises before anything has changed."""
        for component in self._components:
            component.release(nodes)
        for node in nodes:
            links.take_out(node)

    def _require_states(self) -> StateComponent:
        if self._states is None:
            raise InvalidSize("this tree keeps no states. Make it with `states=`, the allocator that they go back to.")
        return self._states

    def _require_pin(self, node: Node) -> None:
        links.path_up(node, self.root)
        if node.pins == 0:
            raise LockUnderflow(
                f"{node} has no lock to give back. Unlock the node that was locked, once for each lock."
            )
