"""The request table: one row of slots per running request.

row 0   never handed out; kernels may use it for padded requests
row 3   [ 20 21 22 23   8  9 10 11   40 41 | .  .  . ]      slots[3, position], `lengths[3]` of them are valid
"""

from __future__ import annotations

import numpy as np

from kvstead.errors import AuditError, InvalidSize, RowOverflow, StaleRow
from kvstead.kernels import host, rows
from kvstead.kernels.array_types import IntArray, StateArray
from kvstead.pages import FreeList

_NO_SLOT = -1


class RequestTable:
    """Rows of up to `width` slots for up to `num_rows` requests.

    slots: int64[num_rows + 1, width], valid where `lengths` says so. lengths: int64[num_rows + 1], slots written so
    far. generation: int64[num_rows + 1], how often each row was handed out; it only ever grows, also across `clear`,
    so (row, generation) names one request for ever. Memory is touched only where rows are written.

    Raises `InvalidSize` for negative sizes.
    """

    def __init__(self, num_rows: int, width: int) -> None:
        if num_rows < 0 or width < 0:
            raise InvalidSize(f"a table of {num_rows} rows of {width} slots is impossible. Give sizes of 0 or more.")
        self.num_rows = num_rows
        self.width = width
        self.slots: IntArray = np.empty((num_rows + 1, width), dtype=np.int64)
        self.lengths: IntArray = np.zeros(num_rows + 1, dtype=np.int64)
        self.generation: IntArray = np.zeros(num_rows + 1, dtype=np.int64)
        self._free_rows = FreeList(num_rows, "lifo")

    @property
    def states(self) -> StateArray:
        """Which rows are out, uint8[num_rows + 1]: the table's own array, which kernels check against."""
        return self._free_rows.table.state

    @property
    def num_free(self) -> int:
        """Rows that can be taken."""
        return self._free_rows.num_free

    def take(self, num_rows: int = 1) -> IntArray | None:
        """Hand out empty rows, int64[num_rows]; None when short, with nothing changed."""
        taken = self._free_rows.take(num_rows)
        if taken is not None:
            self.generation[taken] += 1
            self.lengths[taken] = 0
        return taken

    def give(self, row: int) -> None:
        """Take a row back and wipe it. Raises `StaleRow` for a row that is not out."""
        self.require_live(row)
        self.slots[row, : self.lengths[row]] = _NO_SLOT
        self.lengths[row] = 0
        self._free_rows.give(np.array([row]))

    def require_live(self, row: int) -> None:
        """Raise `StaleRow` unless the row is out."""
        if not 0 < row <= self.num_rows or self.states[row] != host.LIVE:
            raise StaleRow(
                f"row {row} is not handed out (rows are 1..{self.num_rows}). Use the row that `take` gave to a request "
                "only until that request gives it back."
            )

    def live_rows(self) -> IntArray:
        """The rows that are out, ascending."""
        return np.flatnonzero(self.states == host.LIVE)

    def read(self, row: int, start: int = 0, end: int | None = None) -> IntArray:
        """The row's slots from `start` to `end` (its length by default): a view, valid until the row changes.

        Raises `StaleRow` for a row that is not out, `RowOverflow` for a range beyond what was written.
        """
        self.require_live(row)
        length = int(self.lengths[row])
        end = length if end is None else end
        if not 0 <= start <= end <= length:
            raise RowOverflow(f"row {row} holds {length} slots, not {start}..{end}. Read within its length.")
        return self.slots[row, start:end]

    def append(self, row: int, slots: IntArray) -> None:
        """Write slots behind the row's last one. Raises `RowOverflow` when it is too narrow, and writes nothing."""
        start = self._require_room(row, slots.size)
        self.slots[row, start : start + slots.size] = slots
        self.lengths[row] = start + slots.size

    def overwrite(self, row: int, start: int, slots: IntArray) -> None:
        """Replace slots already written, as when a request adopts a shared prefix. Raises as `read`."""
        self.read(row, start, start + slots.size)[:] = slots

    def opening(self, which: IntArray, page_size: int) -> int:
        """How many of the rows open a page when each grows by one slot. O(rows).

        Raises as `append` does, and `InvalidSize` for a row that is named twice.
        """
        opening, bad = rows.count_opening(self.states, self.width, self.lengths, which, page_size)
        if bad >= 0:
            self._require_room(int(which[bad]), 1)
            raise InvalidSize(f"row {which[bad]} is named twice. Name each row once a step.")
        return opening

    def clear(self) -> None:
        """Take all rows back. Generations go on."""
        for row in self.live_rows().tolist():
            self.give(row)

    def audit(self) -> None:
        """Check the list of rows and that rows that are in hold nothing. Raises `AuditError`."""
        self._free_rows.audit()
        kept = np.flatnonzero((self.states != host.LIVE) & (self.lengths != 0))
        if kept.size:
            raise AuditError(
                f"rows {kept.tolist()} are not handed out but hold slots. Write through the table's methods."
            )

    def _require_room(self, row: int, num_slots: int) -> int:
        self.require_live(row)
        length = int(self.lengths[row])
        if length + num_slots > self.width:
            raise RowOverflow(
                f"row {row} has {length} slots and cannot take {num_slots} more: it is {self.width} wide. End the "
                "request at that length, or build the table wider."
            )
        return length
