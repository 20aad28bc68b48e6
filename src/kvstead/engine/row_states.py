"""The recurrent states of running requests, and the copies of them from which other requests can continue.

A state stands for all tokens before it and the next one overwrites it, so a state to share is copied in time.
One row, copies every 8 tokens (`interval`), 20 tokens computed:

    position   0 .. 7 | 8 .. 15 | 16 .. 19 |
                      ^         ^          ^
                  a copy      a copy     the row's own state, in slot[row]
               in the tree  in the tree

A copy is made between two steps, where a row stands exactly at a useful place: at multiples of `interval`, and where
the cached tokens of another request part from this one's. The row keeps the copy until those tokens are known to be
computed; then the tree owns it. A later request that matches it copies it into its own slot. A copy is made only when
there is capacity for it.
"""

from __future__ import annotations

import numpy as np
import torch

from kvstead.allocators.states import StateAllocator
from kvstead.engine.capacity import Capacity
from kvstead.engine.memory import Memory
from kvstead.engine.rows import Rows
from kvstead.errors import InvalidSize
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import whole
from kvstead.pages.amounts import Amounts
from kvstead.prefix import Node, PrefixTree

ONE_STATE = Amounts(state=1)


class RowStates:
    """The state slots of a manager's rows.

    slot: int64[rows + 1], where the row's own state is. kept: int64[rows + 1], the slot of its copy that the tree does
    not own yet, 0 for none, and kept_at, the tokens that the copy stands for. due: int64[rows + 1], where the next copy
    is due. interval: tokens, rounded up to whole pages. Raises `InvalidSize` for one below 1.
    """

    def __init__(
        self, rows: Rows, tree: PrefixTree, memory: Memory, allocator: StateAllocator, capacity: Capacity, interval: int
    ) -> None:
        interval = whole(interval, "state_interval")
        if interval < 1:
            raise InvalidSize(f"state_interval is {interval}. It must be 1 or more tokens.")
        num_rows = rows.table.num_rows + 1
        self.interval = rows.pages(interval) * rows.page_size
        self.allocator = allocator
        self.slot: IntArray = np.zeros(num_rows, dtype=np.int64)
        self.kept: IntArray = np.zeros(num_rows, dtype=np.int64)
        self.kept_at: IntArray = np.zeros(num_rows, dtype=np.int64)
        self.due: IntArray = np.zeros(num_rows, dtype=np.int64)
        self.num_kept = 0
        self.num_copies = 0
        self._branch: IntArray = np.zeros(num_rows, dtype=np.int64)
        self._rows = rows
        self._tree = tree
        self._memory = memory
        self._capacity = capacity

    def take(self, node: Node, owner: int) -> int:
        """A slot with the state at `node`, or with that of an empty sequence at the root.

        The caller has made capacity for it and keeps the node and its state from eviction; both stay where they are.
        """
        slot = self._alloc(owner)
        if node.state is None:
            self._memory.zero_state(slot)
        else:
            self._copy(node.state.slot, slot)
        return slot

    def open(self, row: int, slot: int, num_cached: int, num_found: int) -> None:
        """Begin a row whose state stands for `num_cached` tokens, of `num_found` that are cached."""
        self.slot[row] = slot
        self._branch[row] = num_found
        self.due[row] = num_found if num_found > num_cached else self._next(num_cached)

    def close(self, row: int) -> None:
        """Free the row's state and its copy."""
        self._drop(row)
        if self.slot[row]:
            self.allocator.free(self.slot[row : row + 1])
            self.slot[row] = 0

    def checkpoint(self, rows: IntArray) -> IntArray:
        """Copy the states of rows that stand where a copy is due, and return those rows.

        A row's state stands behind all slots that it has. Raises `StaleRow`.
        """
        inside = rows[(rows > 0) & (rows < self.slot.size)]
        if np.count_nonzero(self.slot[inside]) < rows.size:  # a live row has a state
            for row in rows.tolist():
                self._rows.table.require_live(row)
        lengths = self._rows.table.lengths[rows]
        is_due = lengths >= self.due[rows]
        if not is_due.any():
            return rows[:0]
        copied = [
            row
            for row, length in zip(rows[is_due].tolist(), lengths[is_due].tolist(), strict=True)
            if length % self._rows.page_size == 0 and self._keep(row, length)
        ]
        return np.array(copied, dtype=np.int64)

    def chunk_end(self, row: int, end: int) -> int:
        """Where a chunk that could reach `end` should end, so that its state is worth a copy: `end`, or before it."""
        start, known = int(self._rows.table.lengths[row]), int(self._rows.known[row])
        if start < self._branch[row] < end:
            return int(self._branch[row])
        for grain in (self.interval, self._rows.page_size):
            last = end // grain * grain
            if last > start:
                return last
            if end == known:
                break
        return end

    def cacheable(self, row: int) -> int:
        """The tokens of the row whose state is kept and computed: what the tree can take now."""
        at = int(self.kept_at[row])
        return at if self.kept[row] and at <= self._rows.computed[row] else 0

    def hand_over(self, row: int, before: Node, node: Node) -> None:
        """Give the kept copy to the tree, at `node`, where its tokens end. `before`: where the last one may be."""
        slot = int(self.kept[row])
        self.kept[row] = 0
        self.num_kept -= 1
        if not self._tree.put_state(node, slot):
            self.allocator.free(np.array([slot]))
        if before is not node and before.state is not None and before.end != self._branch[row]:
            self._tree.supersede_state(before)

    def offer(self, row: int) -> None:
        """The row ends: if its state stands for whole pages, exactly those computed, use it in place of a copy."""
        rows = self._rows
        length = int(rows.table.lengths[row])
        if length != rows.computed[row] or length % rows.page_size or length <= rows.protected[row]:
            return
        self._drop(row)
        self.kept[row], self.kept_at[row], self.slot[row] = self.slot[row], length, 0
        self.num_kept += 1

    def physical_slots(self, rows: IntArray) -> torch.Tensor:
        """Where the states of rows lie now, int64[rows] on the device. Raises `StaleRow`."""
        for row in rows.tolist():
            self._rows.table.require_live(row)
        return self.allocator.physical_slots(self.slot[rows])

    def drop_kept(self) -> bool:
        """Free all copies that the tree does not own yet; whether there were any."""
        rows = np.flatnonzero(self.kept)
        for row in rows.tolist():
            self._drop(row)
        return bool(rows.size)

    def _keep(self, row: int, length: int) -> bool:
        rows = self._rows
        if not rows.protected[row] < length <= rows.known[row]:  # not of guessed tokens
            self.due[row] = self._next(length)
            return False
        self._drop(row)
        has_capacity = self._capacity.make(ONE_STATE, is_needed=False)  # other rows give up nothing for a copy
        self.due[row] = self._next(length)
        if not has_capacity:
            return False
        slot = self._alloc(int(rows.owner[row]))
        self._copy(int(self.slot[row]), slot)
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
        assert slots is not None, "capacity was made for it"
        return int(slots)

    def _copy(self, source: int, target: int) -> None:
        self._memory.copy_state(source, target)
        self.num_copies += 1
