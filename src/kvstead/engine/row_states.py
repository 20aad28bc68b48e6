"""The recurrent states of running requests, and the copies of them from which other requests can continue.

A state stands for all tokens before it and the next one overwrites it, so a state to share is copied in time.
One row, page size 4, a prompt of 14 tokens of which 4 are another's too, 7 tokens of an answer:

    position   0 .. 3 | 4 .. 11 | 12 13 | 14 .. 15 | 16 .. 19 |
                      ^         ^                             ^
                    branch   last whole page of the prompt   of the answer

A copy is made between two steps, where a row stands exactly at a useful place: where the cached tokens of another
request part from this one's, at the end of the last whole page of the prompt and of the answer, and at multiples of
`interval` in prompts. The row keeps the copy until those tokens are known to be computed; then the tree owns it. Copies
of an answer stay with the row until it ends, and a later one takes the slot of the one before. A request that matches
a copy copies it into its own slot. A copy is made only when there is capacity for it, and once states have been evicted
only when such copies are used: see `kvstead.engine.copy_record`.
"""

from __future__ import annotations

import numpy as np
import torch

from kvstead.allocators.states import StateAllocator
from kvstead.engine.capacity import Capacity
from kvstead.engine.copy_record import CopyKind, CopyRecord
from kvstead.engine.memory import Memory
from kvstead.engine.rows import Rows
from kvstead.errors import InvalidSize
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import whole
from kvstead.pages.amounts import STATE, Amounts
from kvstead.prefix import Node, PrefixTree

ONE_STATE = Amounts(state=1)
_NEVER = 2**62  # tokens


def interval_of(interval: int | None, rows: Rows) -> int:
    """Tokens between copies as whole pages, 0 for none. Raises `InvalidSize` for a number below 0."""
    interval = 0 if interval is None else whole(interval, "state_interval")
    if interval < 0:
        raise InvalidSize(f"state_interval is {interval}. Give tokens, or 0 for no copies but the useful ones.")
    return rows.pages(interval) * rows.page_size


class RowStates:
    """The state slots of a manager's rows.

    slot: int64[rows + 1], where the row's own state is. kept: int64[rows + 1], the slot of its copy that the tree does
    not own yet, 0 for none, and kept_at, the tokens that the copy stands for. due: int64[rows + 1], where the next copy
    is due. interval: tokens, whole pages, 0 for none.
    """

    def __init__(
        self,
        rows: Rows,
        tree: PrefixTree,
        memory: Memory,
        allocator: StateAllocator,
        capacity: Capacity,
        interval: int,
    ) -> None:
        num_rows = rows.table.num_rows + 1
        self.interval = interval
        self.allocator = allocator
        self.slot: IntArray = np.zeros(num_rows, dtype=np.int64)
        self.kept: IntArray = np.zeros(num_rows, dtype=np.int64)
        self.kept_at: IntArray = np.zeros(num_rows, dtype=np.int64)
        self.due: IntArray = np.zeros(num_rows, dtype=np.int64)
        self.num_kept = 0
        self.num_copies = 0
        self._record = CopyRecord()
        self._is_probe = [False] * num_rows
        self._branch: IntArray = np.zeros(num_rows, dtype=np.int64)
        self._mark: IntArray = np.zeros(num_rows, dtype=np.int64)  # the end of the prompt's last whole page
        self._end: IntArray = np.zeros(num_rows, dtype=np.int64)  # that of the answer's, 0 where it is not known
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
            self._record.use(node)
        return slot

    def open(self, row: int, slot: int, num_cached: int, num_found: int) -> None:
        """Begin a row whose state stands for `num_cached` tokens, of `num_found` that are cached; its ids are known."""
        self.slot[row] = slot
        self._branch[row] = num_found
        self._mark[row] = self._whole(int(self._rows.known[row]) - 1)
        self._end[row] = 0
        self._is_probe[row] = self._record.begins_probe()
        self.due[row] = self._next(row, num_cached)

    def expect_end(self, row: int, length: int) -> None:
        """Note that the row ends with `length` tokens and no earlier, so that its answer needs one copy, there.

        Without that any page of the answer may be the last, and the state is copied at each.
        """
        end = self._whole(length)
        self._end[row] = end if end < length else _NEVER  # the state itself stands for whole pages: see `offer`
        self.due[row] = self._next(row, int(self._rows.table.lengths[row]))

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
        start, mark, branch = int(self._rows.table.lengths[row]), int(self._mark[row]), int(self._branch[row])
        if start < branch < end:
            return branch
        if start >= mark:
            return end
        last = min(end, mark)
        if self.interval and last // self.interval * self.interval > start and self._is_worth(row, CopyKind.INTERVAL):
            return last // self.interval * self.interval
        if end > mark:
            return mark if self._is_worth(row, CopyKind.PROMPT) else end
        page_end = self._whole(end)
        return page_end if page_end > start else end

    def ready(self, rows: IntArray) -> IntArray:
        """Those of the rows that have a computed copy which the tree should own while they run: one of their prompt."""
        at = self.kept_at[rows]
        return rows[(self.kept[rows] > 0) & (at <= self._rows.prompt[rows]) & (at <= self._rows.computed[rows])]

    def cacheable(self, row: int) -> int:
        """The tokens of the row whose state is kept and computed: what the tree can take now."""
        at = int(self.kept_at[row])
        return at if self.kept[row] and at <= self._rows.computed[row] else 0

    def hand_over(self, row: int, node: Node) -> None:
        """Give the kept copy to the tree, at `node`, where its tokens end."""
        slot = int(self.kept[row])
        self.kept[row] = 0
        self.num_kept -= 1
        if self._tree.put_state(node, slot):
            self._record.make(node, self._kind(row, node.end))
        else:
            self.allocator.free(np.array([slot]))

    def offer(self, row: int) -> None:
        """The row ends: if its state stands for whole pages, exactly those computed, use it in place of a copy."""
        rows = self._rows
        length = int(rows.table.lengths[row])
        if not length or length != rows.computed[row] or length % rows.page_size or self._is_cached(row, length):
            return
        if not self._is_worth(row, CopyKind.ANSWER):
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
        has_copy = bool(self.kept[row])
        is_due = length <= rows.known[row] and not self._is_cached(row, length)  # not of guessed tokens
        if is_due and not has_copy and self._is_worth(row, self._kind(row, length)):
            self._tree.supersede_state(rows.node[row])  # for this copy that one goes first
            has_copy = self._capacity.make(ONE_STATE, is_needed=False)  # other rows give up nothing for a copy
            if has_copy:
                self.kept[row] = self._alloc(int(rows.owner[row]))
                self.num_kept += 1
        self.due[row] = self._next(row, length)
        if not (is_due and has_copy):
            return False
        self._copy(int(self.slot[row]), int(self.kept[row]))
        self.kept_at[row] = length
        return True

    def _drop(self, row: int) -> None:
        if self.kept[row]:
            self.allocator.free(self.kept[row : row + 1])
            self.kept[row] = 0
            self.num_kept -= 1

    def _is_cached(self, row: int, length: int) -> bool:
        """Whether the tree has the state of the row's first `length` tokens; all of them are allocated."""
        return bool(length == self._rows.protected[row]) and self._rows.node[row].state is not None

    def _kind(self, row: int, length: int) -> CopyKind:
        if length == self._branch[row]:
            return CopyKind.BRANCH
        if length >= self._mark[row]:
            return CopyKind.PROMPT if length == self._mark[row] else CopyKind.ANSWER
        return CopyKind.INTERVAL

    def _is_worth(self, row: int, kind: CopyKind) -> bool:
        """Whether to make a copy of that kind: while no state was evicted, any; then those that are used."""
        if not self._tree.evicted.pages[STATE] or self._is_probe[row]:
            return True
        return self._record.is_worth(kind, has_grid=0 < self.interval <= self._mark[row])

    def _next(self, row: int, length: int) -> int:
        """Where behind `length` the next copy is due."""
        mark, branch, end = int(self._mark[row]), int(self._branch[row]), int(self._end[row])
        after = (length // self.interval + 1) * self.interval if self.interval else _NEVER
        if length < mark:
            return min(mark, after, branch if branch > length else mark)
        if end:
            return min(end if end > length else _NEVER, after)
        return self._whole(length) + self._rows.page_size

    def _whole(self, length: int) -> int:
        return length - length % self._rows.page_size

    def _alloc(self, owner: int) -> int:
        slots = self.allocator.alloc(1, owner)
        assert slots is not None, "capacity was made for it"
        return int(slots)

    def _copy(self, source: int, target: int) -> None:
        self._memory.copy_state(source, target)
        self.num_copies += 1
