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

from kvstead.errors import InvalidSize, KVSteadError, LayoutError, LockUnderflow, OpenGroup, UseAfterFree
from kvstead.kernels.arrays import Integers, to_host
from kvstead.kernels.jit import IntArray
from kvstead.kernels.tokens import TokenArray, common_prefix
from kvstead.model.window import Window
from kvstead.prefix.audit import audit_structure
from kvstead.prefix.component import Component, FullComponent, SlotPool
from kvstead.prefix.keys import Tokens, key_of
from kvstead.prefix.node import ChildKey, Evicted, Insertion, Match, Namespace, Node, WindowPart
from kvstead.prefix.policies import policy_named
from kvstead.prefix.window import WindowComponent, WindowPool

_PLAIN = Namespace()
_NO_TOKENS: TokenArray = np.empty(0, dtype=np.int32)
_NO_PAGES: IntArray = np.empty(0, dtype=np.int64)


class PrefixTree:
    """Cached prefixes over the pages of one allocator.

    allocator: gets back what is evicted; slots come from its users, through `insert`. policy: which unlocked leaf goes
    first, see `kvstead.prefix.policies`. window: what layers that look back over a bounded span need; the allocator is
    then one with a window side, such as `SWAAllocator`. Raises `InvalidSize` for an unknown policy, `LayoutError` for a
    window without that side.

    A slot inserted here belongs to the tree until it is evicted; requests refer to it under a lock. Costs: a walk
    compares each token once and looks at each node of one path; eviction is O(log n) a node.
    """

    def __init__(self, allocator: SlotPool, *, policy: str = "lru", window: Window | None = None) -> None:
        self.page_size = allocator.page_size
        self.root = Node(None, b"", _NO_TOKENS, _NO_PAGES, 0, 0)
        self._allocator = allocator
        self._full = FullComponent(allocator, policy_named(policy))
        self._window: WindowComponent | None = None
        self._components: Sequence[Component] = (self._full,)
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
        self._clock = 0
        self.evicted = Evicted(0, 0)  # since the start

    @property
    def evictable_tokens(self) -> int:
        """Tokens that eviction can give back. O(1)."""
        return self._full.evictable_tokens

    @property
    def protected_tokens(self) -> int:
        """Tokens on locked paths. O(1)."""
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

    def match(self, tokens: Tokens, *, namespace: Namespace = _PLAIN) -> Match:
        """Find the longest cached prefix of `tokens`, in whole pages, and mark it as used now.

        tokens: int32[n] or int64[n]. A request that must compute at least one token passes all but its last. With a
        window, the longest prefix whose last window of tokens is there as well. The match holds nothing: `lock` its
        node before anything may evict. May split a node; matches of that node stay good. Raises `RequestError` for
        anything but a flat array of ids that fit int32.
        """
        path, num_found = self._walk(key_of(tokens, self.page_size), namespace)
        node = self._node_at(path[-1], self._usable(path, num_found))
        self._clock += 1
        self._use(node, num_hits=1, priority=node.priority)
        return Match(node, node.end, num_found)

    def slots(self, where: Match | Node) -> IntArray:
        """int64[num_tokens], the slots of all tokens from the root to there; the caller's to keep.

        Raises `UseAfterFree` when the node has been evicted.
        """
        node = where.node if isinstance(where, Match) else where
        path = self._path(node)
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
        path, num_shared = self._walk(key, namespace)
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
        self._path(node)
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

    def evict(self, num_tokens: int, num_window_tokens: int = 0) -> Evicted:
        """Give at least so many tokens back to each side of the allocator, or all that is not locked.

        For the full side whole nodes go, leaves first; a parent whose last child goes may follow in the same call. If
        that does not make up the window side, windows go alone, and their nodes stay as tombstones. Returns what went.
        Raises `InvalidSize` for a negative number and `OpenGroup` while the allocator has a free group open, since
        nothing would become available before its end.
        """
        if min(num_tokens, num_window_tokens) < 0:
            raise InvalidSize(f"cannot evict {num_tokens} and {num_window_tokens} tokens. Ask for 0 or more.")
        if self._allocator.free_group is not None:
            raise OpenGroup(
                f"evicting {num_tokens} tokens and {num_window_tokens} windows inside a free group would make none "
                "available. End the group first."
            )
        victims = self._full.choose(num_tokens)
        before, before_window = self.evictable_tokens, self.window_evictable_tokens
        try:
            for component in self._components:
                component.release(victims)
        except KVSteadError:
            self._full.put_back(victims)
            raise
        for node in victims:
            self._take_out(node)
        num_window = before_window - self.window_evictable_tokens
        num_tombstoned = self._window.evict(num_window_tokens - num_window) if self._window else 0
        gone = Evicted(before - self.evictable_tokens, len(victims), num_window + num_tombstoned, num_tombstoned)
        self.evicted += gone
        return gone

    def clear(self) -> bool:
        """Give everything back to the allocator.

        False, with nothing changed, while a node is locked (the root counts) or a free group is open.
        """
        if self.root.pins or self.protected_tokens or self._allocator.free_group is not None:
            return False
        nodes = list(self.root.below())
        for component in self._components:
            component.release(nodes)
        for node in nodes:
            self._take_out(node)
        return True

    def audit(self) -> None:
        """Walk everything and recount. Raises `AuditError`. O(tree + pages of the pool)."""
        audit_structure(self.root, self.page_size)
        for component in self._components:
            component.audit(self.root)

    def _walk(self, key: TokenArray, namespace: Namespace) -> tuple[list[Node], int]:
        """Follow `key` as far as it is cached: the nodes from the root on, and the number of tokens, whole pages.

        The last node may reach further than `key` goes with it.
        """
        page_size = self.page_size
        node, end = self.root, 0
        path = [node]
        while end < key.size:
            page = key[end : end + page_size].tobytes()
            child = node.children.get(page if end else (namespace, page))
            if child is None:
                break
            path.append(child)
            num_common = common_prefix(key, end, child.tokens)
            if num_common < child.tokens.size:
                return path, end + num_common - num_common % page_size
            node, end = child, child.end
        return path, end

    def _child_key(self, parent: Node, page: TokenArray, namespace: Namespace) -> ChildKey:
        return page.tobytes() if parent is not self.root else (namespace, page.tobytes())

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
        parent = lower.parent
        assert parent is not None, "the root has no tokens to split"
        upper = Node(parent, lower.key, lower.tokens[:num_tokens].copy(), _NO_PAGES, lower.created, lower.priority)
        upper.access, upper.hits = lower.access, lower.hits
        lower.tokens = lower.tokens[num_tokens:].copy()
        parent.children[upper.key] = upper
        lower.parent = upper
        lower.key = lower.tokens[: self.page_size].tobytes()
        upper.children[lower.key] = lower
        for component in self._components:
            component.split(upper, lower)
        return upper

    def _join(self, upper: Node) -> None:
        """Take `upper` into its only child, if nobody needs the boundary between them."""
        parent = upper.parent
        if parent is None or len(upper.children) != 1:
            return
        (lower,) = upper.children.values()
        for component in self._components:
            if not component.is_joinable(upper, lower):
                return
        lower.tokens = np.concatenate((upper.tokens, lower.tokens))
        lower.access, lower.hits = upper.access, max(upper.hits, lower.hits)
        lower.priority = max(upper.priority, lower.priority)
        lower.key, lower.parent, upper.parent = upper.key, parent, None
        parent.children[upper.key] = lower
        for component in self._components:
            component.join(upper, lower)

    def _hang(self, parent: Node, tokens: TokenArray, pages: IntArray, namespace: Namespace, priority: int) -> Node:
        """Add new tokens below `parent`, in as many nodes as the components want; returns the last one."""
        cuts = sorted({cut for component in self._components for cut in component.cuts(pages)})
        for start, end in pairwise((0, *cuts, pages.size)):
            stretch = tokens[start * self.page_size : end * self.page_size].copy()
            key = self._child_key(parent, stretch[: self.page_size], namespace)
            leaf = Node(parent, key, stretch, pages[start:end].copy(), self._clock, priority)
            parent.children[key] = leaf
            for component in self._components:
                component.adopt(leaf)
            parent = leaf
        return parent

    def _use(self, node: Node, num_hits: int, priority: int) -> None:
        """The path down to `node` is in use now. A parent's priority is at least its children's."""
        at = node
        while at.parent is not None:
            at.access = self._clock
            at.hits += num_hits
            at.priority = max(at.priority, priority)
            at = at.parent
        for component in self._components:
            component.use(node, num_hits)

    def _take_out(self, node: Node) -> None:
        """Cut a node off its parent, which also marks it as gone."""
        parent = node.parent
        assert parent is not None, "the root stays"
        del parent.children[node.key]
        node.parent = None

    def _require_pin(self, node: Node) -> None:
        self._path(node)
        if node.pins == 0:
            raise LockUnderflow(
                f"{node} has no lock to give back. Unlock the node that was locked, once for each lock."
            )

    def _path(self, node: Node) -> list[Node]:
        """The nodes from `node` up to the root. Raises `UseAfterFree` when they do not lead there."""
        path = [node]
        while (parent := path[-1].parent) is not None:
            path.append(parent)
        if path[-1] is not self.root:
            raise UseAfterFree(
                f"{node} is not in this tree, or not any more. Lock a match before anything may evict it."
            )
        return path
