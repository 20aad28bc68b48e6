"""The radix tree: which token prefixes are cached, in which slots, and who still needs them.

    root -- [A A A A | B B B B] -- [C C C C]              match(A B C): 12 tokens, ends at the C node
                                `- [D D D D | E E E E]    match(A B D x): splits the last node before E

Every node is a run of whole pages, and siblings differ in their first page, so a child is found by the bytes of one
page. Tokens are kept as int32, slots as one page id a page. Nothing is keyed by a hash of content, and a page that is
only partly filled is never keyed at all: it stays its request's own until it is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from kvstead.errors import InvalidSize, KVSteadError, LockUnderflow, OpenGroup, RequestError, UseAfterFree
from kvstead.kernels.arrays import Integers, to_host
from kvstead.kernels.jit import IntArray
from kvstead.kernels.tokens import TokenArray, common_prefix, narrow
from kvstead.prefix.audit import audit_structure
from kvstead.prefix.component import Component, FullComponent, SlotPool
from kvstead.prefix.node import ChildKey, Evicted, Insertion, Match, Namespace, Node
from kvstead.prefix.policies import policy_named

# int32[n] or int64[n] on the host.
Tokens: TypeAlias = NDArray[np.int32] | NDArray[np.int64]

_PLAIN = Namespace()
_TOKEN_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))
_NO_TOKENS: TokenArray = np.empty(0, dtype=np.int32)
_NO_PAGES: IntArray = np.empty(0, dtype=np.int64)


class PrefixTree:
    """Cached prefixes over the pages of one allocator.

    allocator: gets back what is evicted; slots come from its users, through `insert`. policy: which unlocked leaf goes
    first, see `kvstead.prefix.policies`. Raises `InvalidSize` for an unknown policy.

    A slot inserted here belongs to the tree until it is evicted; requests refer to it under a lock. Costs: a walk
    compares each token once and looks at each node of one path; eviction is O(log n) a node.
    """

    def __init__(self, allocator: SlotPool, *, policy: str = "lru") -> None:
        self.page_size = allocator.page_size
        self.root = Node(None, b"", _NO_TOKENS, _NO_PAGES, 0, 0)
        self._allocator = allocator
        self._full = FullComponent(allocator, policy_named(policy))
        self._components: Sequence[Component] = (self._full,)
        self._clock = 0

    @property
    def evictable_tokens(self) -> int:
        """Tokens that eviction can give back. O(1)."""
        return self._full.evictable_tokens

    @property
    def protected_tokens(self) -> int:
        """Tokens on locked paths. O(1)."""
        return self._full.protected_tokens

    def match(self, tokens: Tokens, *, namespace: Namespace = _PLAIN) -> Match:
        """Find the longest cached prefix of `tokens`, in whole pages, and mark it as used now.

        tokens: int32[n] or int64[n]. A request that must compute at least one token passes all but its last. The match
        holds nothing: `lock` its node before anything may evict. May split a node; matches of that node stay good.
        Raises `RequestError` for anything but a flat array of ids that fit int32.
        """
        node, child, num_common = self._walk(self._key_of(tokens), namespace)
        if child is not None:
            node = self._split(child, num_common)
        node = self._usable(node)
        self._clock += 1
        self._use(node, num_hits=1, priority=node.priority)
        return Match(node, node.end)

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
        leading `num_shared` tokens the tree keeps the slots it has: where the caller's differ they are his to free.
        Tokens past the last whole page are ignored and stay his too. priority: raised to this along the path.

        Raises `RequestError` for tokens as in `match`, `InvalidSize` when tokens and slots differ in number,
        `MisalignedSegment` and `ForeignPage` for new slots that are no whole pages of the pool, `AuditError` for a page
        that the tree owns already.
        """
        key = self._key_of(tokens)
        row = to_host(slots)
        if row.size != len(tokens):
            raise InvalidSize(f"{len(tokens)} tokens came with {row.size} slots. Pass one slot for every token.")
        node, child, num_common = self._walk(key, namespace)
        num_shared = node.end + num_common
        pages = self._full.claim(row[num_shared : key.size])  # raises before anything has changed
        self._clock += 1
        if child is not None:
            node = self._split(child, num_common)
        if pages.size:
            tokens_left = key[num_shared:].copy()
            child_key = self._child_key(node, tokens_left[: self.page_size], namespace)
            node = self._hang(Node(node, child_key, tokens_left, pages, self._clock, priority))
        self._use(node, num_hits=0, priority=priority)
        return Insertion(node, key.size, num_shared)

    def lock(self, node: Node) -> None:
        """Keep everything from the root to `node` until as many `unlock` calls. Raises `UseAfterFree` if it is gone."""
        self._path(node)
        node.pins += 1
        for component in self._components:
            component.lock(node)

    def unlock(self, node: Node) -> None:
        """Undo one `lock` of this very node. Raises `LockUnderflow` when there is none, and `UseAfterFree`."""
        self._path(node)
        if node.pins == 0:
            raise LockUnderflow(
                f"{node} has no lock to give back. Unlock the node that was locked, once for each lock."
            )
        node.pins -= 1
        for component in self._components:
            component.unlock(node)

    def evict(self, num_tokens: int) -> Evicted:
        """Give at least `num_tokens` tokens back to the allocator, or all that is not locked.

        Whole nodes go, leaves first; a parent whose last child goes may follow in the same call. Returns what went.
        Raises `InvalidSize` for a negative number and `OpenGroup` while the allocator has a free group open, since
        nothing would become available before its end.
        """
        if num_tokens < 0:
            raise InvalidSize(f"cannot evict {num_tokens} tokens. Ask for 0 or more.")
        if self._allocator.free_group is not None:
            raise OpenGroup(
                f"evicting {num_tokens} tokens inside a free group would make none available. End the group first."
            )
        victims = self._full.choose(num_tokens)
        before = self.evictable_tokens
        try:
            for component in self._components:
                component.release(victims)
        except KVSteadError:
            self._full.put_back(victims)
            raise
        for node in victims:
            self._take_out(node)
        return Evicted(before - self.evictable_tokens, len(victims))

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

    def _key_of(self, tokens: Tokens) -> TokenArray:
        """The whole pages of `tokens` as contiguous int32, sharing memory where possible."""
        dtype = getattr(tokens, "dtype", None)
        if dtype not in _TOKEN_DTYPES or tokens.ndim != 1 or not isinstance(tokens, np.ndarray):
            kind, shape = dtype or type(tokens).__name__, getattr(tokens, "shape", "unknown")
            raise RequestError(f"tokens are {kind} of shape {shape}. Pass a flat numpy array of int32 or int64 ids.")
        whole = np.ascontiguousarray(tokens[: tokens.size - tokens.size % self.page_size])
        if dtype == np.int32:
            return cast("TokenArray", whole)
        key: TokenArray = np.empty(whole.size, dtype=np.int32)
        bad = narrow(cast("IntArray", whole), key)
        if bad >= 0:
            raise RequestError(f"token {whole[bad]} at position {bad} does not fit int32. Pass ids of a vocabulary.")
        return key

    def _walk(self, key: TokenArray, namespace: Namespace) -> tuple[Node, Node | None, int]:
        """Follow `key` as far as it is cached.

        Returns the last node that it covers whole, and the child below of which it only shares the leading tokens, with
        their number (whole pages); or None and 0.
        """
        page_size = self.page_size
        node = self.root
        while node.end < key.size:
            child = node.children.get(self._child_key(node, key[node.end : node.end + page_size], namespace))
            if child is None:
                break
            num_common = common_prefix(key, node.end, child.tokens)
            if num_common < child.tokens.size:
                return node, child, num_common - num_common % page_size
            node = child
        return node, None, 0

    def _child_key(self, parent: Node, page: TokenArray, namespace: Namespace) -> ChildKey:
        return page.tobytes() if parent is not self.root else (namespace, page.tobytes())

    def _usable(self, node: Node) -> Node:
        """The deepest node, from `node` upward, that satisfies every component."""
        while True:
            end = node.end
            for component in self._components:
                node = component.usable(node)
            if node.end == end:
                return node

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

    def _hang(self, leaf: Node) -> Node:
        """Add a leaf below its parent."""
        assert leaf.parent is not None, "a leaf knows its parent"
        leaf.parent.children[leaf.key] = leaf
        for component in self._components:
            component.adopt(leaf)
        return leaf

    def _use(self, node: Node, num_hits: int, priority: int) -> None:
        """The path down to `node` is in use now. A parent's priority is at least its children's."""
        at = node
        while at.parent is not None:
            at.access = self._clock
            at.hits += num_hits
            at.priority = max(at.priority, priority)
            at = at.parent
        for component in self._components:
            component.touch(node)

    def _take_out(self, node: Node) -> None:
        """Cut a node off its parent, which also marks it as gone."""
        parent = node.parent
        assert parent is not None, "the root stays"
        del parent.children[node.key]
        node.parent = None

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
