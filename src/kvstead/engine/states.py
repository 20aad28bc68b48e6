"""The recurrent states of running requests, and the copies of them from which others can go on.

A state stands for all tokens before it and the next one overwrites it, so what is to be shared is copied in time.
One row, copies every 8 tokens (`interval`), 20 tokens computed:

    position   0 .. 7 | 8 .. 15 | 16 .. 19 |
                      ^         ^          ^
                  a copy      a copy     the row's own state, in slot[row]
               in the tree  in the tree

A copy is made between two steps, where a row stands just at a place worth it: at multiples of `interval`, and where the
cached tokens of another request part from this one's. It is the row's (`kept`) until those tokens are known to be
computed, then the tree's. Whoever finds it there copies it into a slot of his own. No room for a copy: no copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvstead.allocators.states import StateAllocator
from kvstead.engine.room import ONE_STATE
from kvstead.errors import InvalidSize
from kvstead.kernels.array_types import IntArray
from kvstead.prefix import Node

if TYPE_CHECKING:
    from kvstead.engine.manager import KVCacheManager


class RowStates:
    """The state slots of a manager's rows.

    slot: int64[rows + 1], where the row's own state is. kept: int64[rows + 1], the slot of its copy that is no one
    else's yet, 0 for none, and kept_at, the tokens that stands for. due: int64[rows + 1], where the next copy is to be
    made. interval: tokens, rounded up to whole pages. Raises `InvalidSize` for one below 1.
    """

    def __init__(self, manager: KVCacheManager, allocator: StateAllocator, interval: int) -> None:
        if interval < 1:
            raise InvalidSize(f"state_interval is {interval}. It must be 1 or more tokens.")
        num_rows = manager.table.num_rows + 1
        self.interval = manager.pages(interval) * manager.page_size
        self.allocator = allocator
        self.slot: IntArray = np.zeros(num_rows, dtype=np.int64)
        self.kept: IntArray = np.zeros(num_rows, dtype=np.int64)
        self.kept_at: IntArray = np.zeros(num_rows, dtype=np.int64)
        self.due: IntArray = np.zeros(num_rows, dtype=np.int64)
        self.num_kept = 0
        self.num_copies = 0
        self._branch: IntArray = np.zeros(num_rows, dtype=np.int64)
        self._manager = manager

    def take(self, node: Node, owner: int) -> int | None:
        """A slot with the state at `node`, or with that of an empty sequence at the root; None when there is no room.

        The caller keeps the node and its state from eviction; both stay where they are.
        """
        if not self._manager.make_room(ONE_STATE):
            return None
        slot = self._alloc(owner)
        if node.state is None:
            self._manager.memory.zero_state(slot)
        else:
            self._duplicate(node.state.slot, slot)
        return slot

    def open(self, row: int, slot: int, num_cached: int, num_found: int) -> None:
        """Begin a row whose state stands for `num_cached` tokens, of `num_found` that are cached."""
        self.slot[row] = slot
        self._branch[row] = num_found
        self.due[row] = num_found if num_found > num_cached else self._next(num_cached)

    def close(self, row: int) -> None:
        """Give back what the row has."""
        self._drop(row)
        if self.slot[row]:
            self.allocator.free(self.slot[row : row + 1])
            self.slot[row] = 0

    def checkpoint(self, rows: IntArray) -> IntArray:
        """Copy the states of rows that stand where one is due: which rows those are.

        A row's state stands behind all slots that it has. Raises `StaleRow`.
        """
        inside = rows[(rows > 0) & (rows < self.slot.size)]
        if np.count_nonzero(self.slot[inside]) < rows.size:  # a live row has a state
            for row in rows.tolist():
                self._manager.table.require_live(row)
        lengths = self._manager.table.lengths[rows]
        is_due = lengths >= self.due[rows]
        if not is_due.any():
            return rows[:0]
        copied = [
            row
            for row, length in zip(rows[is_due].tolist(), lengths[is_due].tolist(), strict=True)
            if length % self._manager.page_size == 0 and self._keep(row, length)
        ]
        return np.array(copied, dtype=np.int64)

    def stop(self, row: int, end: int) -> int:
        """Where a chunk that could reach `end` should end, so that its state is one to keep: `end`, or before it."""
        start, known = int(self._manager.table.lengths[row]), int(self._manager.num_tokens[row])
        if start < self._branch[row] < end:
            return int(self._branch[row])
        for grain in (self.interval, self._manager.page_size):
            last = end // grain * grain
            if last > start:
                return last
            if end == known:
                break
        return end

    def cacheable(self, row: int) -> int:
        """The tokens of the row whose state is kept and computed: what the tree can take now."""
        at = int(self.kept_at[row])
        return at if self.kept[row] and at <= self._manager.computed[row] else 0

    def hand_over(self, row: int, before: Node, node: Node) -> None:
        """Give the kept copy to the tree, at `node`, where its tokens end. `before`: where the last one may be."""
        tree = self._manager.tree
        slot = int(self.kept[row])
        self.kept[row] = 0
        self.num_kept -= 1
        if not tree.put_state(node, slot):
            self.allocator.free(np.array([slot]))
        if before is not node and before.state is not None and before.end != self._branch[row]:
            tree.supersede_state(before)

    def offer(self, row: int) -> None:
        """The row ends: if its state stands for whole pages, just those that are computed, it is as good as a copy."""
        manager = self._manager
        length = int(manager.table.lengths[row])
        if length != manager.computed[row] or length % manager.page_size or length <= manager.protected[row]:
            return
        self._drop(row)
        self.kept[row], self.kept_at[row], self.slot[row] = self.slot[row], length, 0
        self.num_kept += 1

    def drop_kept(self) -> bool:
        """Give up all copies that are not the tree's yet; whether there were any."""
        rows = np.flatnonzero(self.kept)
        for row in rows.tolist():
            self._drop(row)
        return bool(rows.size)

    def _keep(self, row: int, length: int) -> bool:
        if not self._manager.protected[row] < length <= self._manager.num_tokens[row]:  # not of guessed tokens
            self.due[row] = self._next(length)
            return False
        self._drop(row)
        has_room = self._manager.room.make(ONE_STATE, is_needed=False)  # at no price to other rows
        self.due[row] = self._next(length)
        if not has_room:
            return False
        slot = self._alloc(self._manager.owner_of(row))
        self._duplicate(int(self.slot[row]), slot)
        self.kept[row], self.kept_at[row] = slot, length
        self.num_kept += 1
        return True

    def _drop(self, row: int) -> None:
        if self.kept[row]:
            self.allocator.free(self.kept[row : row + 1])
            self.kept[row] = 0
            self.num_kept -= 1

    def _next(self, length: int) -> int:
        return (length // self.interval + 1) * self.interval

    def _alloc(self, owner: int) -> int:
        slots = self.allocator.alloc(1, owner)
        assert slots is not None, "room was made for it"
        return int(slots)

    def _duplicate(self, source: int, target: int) -> None:
        self._manager.memory.copy_state(source, target)
        self.num_copies += 1
