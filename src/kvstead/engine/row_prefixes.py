"""What rows share with the prefix tree: found when a request comes, locked while it runs, extended as it goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kvstead.engine.memory import Memory
from kvstead.engine.row_capacity import RowCapacity
from kvstead.engine.row_states import ONE_STATE
from kvstead.engine.rows import Rows
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.tokens import TokenArray
from kvstead.pages.amounts import Amounts
from kvstead.prefix import Keys, Namespace, Node, PrefixTree


class Lease(NamedTuple):
    """What `match` hands out: the request's row, and how many of its tokens the cache already held.

    num_dead: tokens behind those whose full-attention slots are cached, but from which no request can continue, because
    their windows or their state are gone.
    """

    row: int
    num_cached: int
    num_dead: int = 0


class Peek(NamedTuple):
    """What `peek` sees: cached tokens, and the pages by side that could be evicted beside them.

    evictable leaves out what running rows could only let go in small pieces.
    """

    num_cached: int
    evictable: Amounts


class RowPrefixes:
    """The prefixes of one manager's rows. is_kept: whether prefixes are cached at all."""

    def __init__(
        self, memory: Memory, tree: PrefixTree, rows: Rows, row_capacity: RowCapacity, *, is_kept: bool
    ) -> None:
        self._allocator = memory.allocator
        self._tree = tree
        self._rows = rows
        self._row_capacity = row_capacity
        self._windows, self._states = row_capacity.windows, row_capacity.states
        self._is_kept = is_kept

    def peek(self, ids: TokenArray | IntArray, namespace: Namespace, keys: Keys) -> Peek:
        """What `open` would find, and what could be evicted beside it; see `KVCacheManager.peek`."""
        if not self._is_kept:
            return Peek(0, self._tree.evictable())
        match = self._tree.match(ids[:-1], namespace=namespace, keys=keys)
        with self._locked(match.node):
            if self._states is not None and not self._row_capacity.capacity.has(ONE_STATE):
                self._states.drop_kept()  # as `open` would
            if self._windows is not None:
                self._windows.reclaim_pieces()
            return Peek(match.num_tokens, self._tree.evictable())

    def open(self, ids: TokenArray | IntArray, owner: int, namespace: Namespace, keys: Keys) -> Lease | None:
        """Give a row to a request and share what is cached of it with the row; see `KVCacheManager.match`."""
        table, node, cached, found, state = self._rows.table, self._tree.root, 0, 0, None
        if not table.num_free:
            return None
        if self._is_kept:
            match = self._tree.match(ids[:-1], namespace=namespace, keys=keys)
            node, cached, found = match.node, match.num_tokens, match.num_found
            if self._windows is not None and cached:
                self._windows.record.use(node)
        if self._states is not None:
            state = self._take_state(node, owner)
            if state is None and cached and table.num_free == table.num_rows:  # no other row will release anything
                node, cached = self._tree.root, 0
                state = self._take_state(node, owner)
            if state is None:
                return None
        row = self._rows.open(ids, owner, namespace, keys)
        if cached:
            table.append(row, self._tree.slots(node))
        self._rows.computed[row] = cached
        self._tree.lock(node)
        self._share(row, node, cached)
        if self._states is not None and state is not None:
            self._states.open(row, state, cached, found)
        if self._windows is not None:
            self._windows.branch[row] = found if found > cached else 0
        return Lease(row, cached, found - cached)

    def cache(self, row: int) -> None:
        """Hand a live row's computed whole pages to the tree; see `KVCacheManager.cache`."""
        if not self._is_kept:
            return
        rows, computed = self._rows, int(self._rows.computed[row])
        if self._states and (kept_at := self._states.cacheable(row)):
            self._states.hand_over(row, self._reach(row, kept_at, is_end=True))
        end = computed - computed % rows.page_size
        places = self._windows.ends(row, end) if self._windows is not None else []
        node = self._reach(row, end, is_end=False)
        for at, kind in places:
            assert self._windows is not None, "only windows are kept at places"
            self._windows.record.make(self._tree.expect_end(node, at), kind)

    def cache_kept(self, rows: IntArray) -> None:
        """`cache` for those of the rows that have a copy of their prompt's state for the tree."""
        if self._states and self._states.num_kept:
            for row in self._states.ready(rows).tolist():
                self.cache(row)

    def end(self, row: int) -> None:
        """Free what a live row does not share with the tree, and the row."""
        rows = self._rows
        start = int(rows.protected[row])
        self._allocator.free_segment(rows.table.slots[row, start : rows.table.lengths[row]], start_pos=start)
        self._unlock(row)
        if self._states:
            self._states.close(row)
        rows.close(row)

    def _reach(self, row: int, end: int, *, is_end: bool) -> Node:
        """The node behind the row's first `end` tokens, whole computed pages, which it shares with the tree now.

        is_end: whether others may continue there.
        """
        rows, tree, start = self._rows, self._tree, int(self._rows.protected[row])
        if end == start:
            return rows.node[row]
        own = rows.table.slots[row, :end]
        inserted = tree.insert(
            rows.ids[row, :end], own, namespace=rows.namespace[row], keys=rows.keys[row], is_end=is_end
        )
        node, num_shared = inserted.node, inserted.num_shared
        if end < start:
            return node
        tree.lock(node)
        self._unlock(row)
        self._share(row, node, end)
        if num_shared > start:
            self._allocator.free_segment(own[start:num_shared], start_pos=start)
            rows.table.overwrite(row, start, tree.slots(node)[start:num_shared])
        return node

    def _take_state(self, node: Node, owner: int) -> int | None:
        """A slot with the state at a matched node; None when there is no capacity for it."""
        assert self._states is not None, "the model has states"
        with self._locked(node):
            return self._states.take(node, owner) if self._row_capacity.make(ONE_STATE) else None

    def _share(self, row: int, node: Node, num_tokens: int) -> None:
        """Note that the row reads `num_tokens` tokens of the tree, up to `node`, which it has locked."""
        self._rows.node[row] = node
        self._rows.protected[row] = num_tokens
        if self._windows:
            self._windows.open(row)

    def _unlock(self, row: int) -> None:
        """Give back the row's lock, as far as its window has not done so already."""
        self._tree.unlock(self._rows.node[row], window_from=int(self._windows.start[row]) if self._windows else None)

    @contextmanager
    def _locked(self, node: Node) -> Iterator[None]:
        """Keep a matched prefix, and the state at its end, while capacity is made beside it."""
        self._tree.lock(node)
        state = node.state
        if state is not None:
            self._tree.hold_state(node)
        try:
            yield
        finally:
            if state is not None:
                self._tree.let_state_go(node)
            self._tree.unlock(node)
