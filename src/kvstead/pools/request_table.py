"""The request table: one row of slots per running request.

row 0   never handed out; kernels may use it for padded requests
row 3   [ 20 21 22 23   8  9 10 11   40 41 | .  .  . ]      slots[3, position], `lengths[3]` of them are valid
"""

from __future__ import annotations

import numpy as np

from kvstead.errors import AuditError, InvalidSize, RowOverflow, StaleRow
from kvstead.kernels import rows
from kvstead.kernels.array_types import IntArray, StateArray
from kvstead.kernels.arrays import untouched, whole
from kvstead.kernels.host import LIVE
from kvstead.pages import FreeList

_NO_SLOT = -1


class RequestTable:
    """Rows of up to `width` slots for up to `num_rows` requests.

    slots: int64[num_rows + 1, width], valid up to `lengths`. lengths: int64[num_rows + 1], slots written so far.
    generation: int64[num_rows + 1], how often each row was handed out. It only grows, also across `clear`, so
    (row, generation) identifies one request for good. states: uint8[num_rows + 1], LIVE for rows that are handed out;
    kernels check against it. A row takes the memory that it has written, not `width`.

    Raises `InvalidSize` for negative sizes, and for more than 2^46 bytes.
    """

    def __init__(self, num_rows: int, width: int) -> None:
        num_rows, width = whole(num_rows, "num_rows"), whole(width, "width")
        if num_rows < 0 or width < 0:
            raise InvalidSize(f"a table has {num_rows} rows of {width} slots. Use sizes of 0 or more.")
        self.num_rows = num_rows
        self.width = width
        self.slots: IntArray = untouched((num_rows + 1, width), np.int64)
        self.lengths: IntArray = np.zeros(num_rows + 1, dtype=np.int64)
        self.generation: IntArray = np.zeros(num_rows + 1, dtype=np.int64)
        self._free_rows = FreeList(num_rows, "lifo")
        self.states: StateArray = self._free_rows.table.state
        self._state_of = self.states.data  # the same bytes, and faster to read one by one

    @property
    def num_free(self) -> int:
        """Rows that `take` can hand out."""
        return self._free_rows.num_free

    def take(self, num_rows: int = 1) -> IntArray | None:
        """Hand out empty rows, int64[num_rows]; None when fewer are free, with nothing changed."""
        taken = self._free_rows.take(num_rows)
        if taken is not None:
            self.generation[taken] += 1
            self.lengths[taken] = 0
        return taken

    def give(self, row: int) -> None:
        """Take a row back and wipe it. Raises `StaleRow` unless the row is handed out."""
        self.require_live(row)
        self.slots[row, : self.lengths[row]] = _NO_SLOT
        self.lengths[row] = 0
        self._free_rows.give(np.array([row]))

    def require_live(self, row: int) -> None:
        """Raise `StaleRow` unless the row is handed out."""
        if not 0 < row <= self.num_rows or self._state_of[row] != LIVE:
            raise StaleRow(
                f"row {row} is not handed out (rows are 1 .. {self.num_rows}). Use a row from `take` until you give it "
                "back, not longer."
            )

    def live_rows(self) -> IntArray:
        """The rows that are handed out, ascending."""
        return np.flatnonzero(self.states == LIVE)

    def read(self, row: int, start: int = 0, end: int | None = None) -> IntArray:
        """The row's slots from `start` to `end` (its length by default): a view, valid until the row changes.

        Raises `StaleRow` unless the row is handed out, `RowOverflow` for a range beyond its length.
        """
        self.require_live(row)
        length = int(self.lengths[row])
        end = length if end is None else end
        if not 0 <= start <= end <= length:
            raise RowOverflow(f"row {row} holds {length} slots, not {start} .. {end}. Read within its length.")
        return self.slots[row, start:end]

    def append(self, row: int, slots: IntArray) -> None:
        """Write slots after the row's last one. Raises `RowOverflow` when it is too narrow, and writes nothing."""
        self.require_live(row)
        start = int(self.lengths[row])
        end = start + slots.size
        if end > self.width:
            raise self._overflow(row, slots.size)
        self.slots[row, start:end] = slots
        self.lengths[row] = end

    def overwrite(self, row: int, start: int, slots: IntArray) -> None:
        """Replace slots already written, as when a request adopts a shared prefix. Raises as `read` does."""
        self.read(row, start, start + slots.size)[:] = slots

    def opening(self, which: IntArray, page_size: int) -> int:
        """How many of the rows start a new page when each grows by one slot. O(rows).

        Raises as `append` does, and `InvalidSize` for a row that is named twice.
        """
        opening, bad = rows.count_opening(self.states, self.width, self.lengths, which, page_size)
        if bad >= 0:
            row = int(which[bad])
            self.require_live(row)
            if self.lengths[row] >= self.width:
                raise self._overflow(row, 1)
            raise InvalidSize(f"row {row} is named twice. Name each row once a step.")
        return opening

    def clear(self) -> None:
        """Take all rows back. Generations keep counting."""
        for row in self.live_rows().tolist():
            self.give(row)

    def audit(self) -> None:
        """Check the free rows, and that they hold no slots. Raises `AuditError`."""
        self._free_rows.audit()
        kept = np.flatnonzero((self.states != LIVE) & (self.lengths != 0))
        if kept.size:
            raise AuditError(
                f"rows {kept.tolist()} are not handed out but hold slots. Write through the table's methods."
            )

    def _overflow(self, row: int, num_slots: int) -> RowOverflow:
        return RowOverflow(
            f"row {row} has {self.lengths[row]} slots and cannot take {num_slots} more: it is {self.width} wide. End "
            "the request at that length, or build a wider table."
        )
