"""Host tables as a device sees them: whatever changed in a step goes there in one copy.

host      rows [ . . 8 9 . | . . . ]   pages [ . 4 . ]        tables, written by whoever owns them
                   ^ ^                       ^                `touch`: these entries have changed
staged    place [ 2 3 9 ]  value [ 8 9 4 ]                    `update`: one array, one copy, one write there
device    [ . . 8 9 .   . . .   . 4 . ]                       one buffer; each table is a part of it
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from kvstead.errors import InvalidSize
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.device_transfer import DeviceTransfer


class DeviceMirror:
    """Copies of int64 host tables on a device, as `dtype` there.

    tables: by name, contiguous, of any shape; they stay their owners'. `mirror[name]` is the table on the device, in
    the same shape: the same memory for ever, zeros until it is touched, to be read only.

    Raises `InvalidSize` for a table that is not contiguous or not int64.
    """

    __slots__ = ("_buffer", "_flat", "_sender", "_starts", "_touched", "_views")

    def __init__(
        self, tables: Mapping[str, np.ndarray], device: str | torch.device, *, dtype: torch.dtype = torch.int64
    ) -> None:
        for name, table in tables.items():
            if table.dtype != np.int64 or not table.flags.c_contiguous:
                raise InvalidSize(f"table {name!r} is {table.dtype}, or not contiguous. Mirror whole int64 arrays.")
        self._flat: dict[str, IntArray] = {name: table.reshape(-1) for name, table in tables.items()}
        self._sender = DeviceTransfer(device)
        self._buffer = torch.zeros(sum(table.size for table in tables.values()), dtype=dtype, device=device)
        self._starts: dict[str, int] = {}
        self._views: dict[str, torch.Tensor] = {}
        start = 0
        for name, table in tables.items():
            self._starts[name] = start
            self._views[name] = self._buffer[start : start + table.size].view(table.shape)
            start += table.size
        self._touched: list[tuple[str, IntArray]] = []

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._views[name]

    def touch(self, name: str, entries: IntArray) -> None:
        """Entries of a table have changed: int64[k], places in the flat table, kept until the update. O(entries).

        Raises `InvalidSize` for a place outside the table.
        """
        size = self._flat[name].size
        if entries.size and not 0 <= entries.min() <= entries.max() < size:
            raise InvalidSize(
                f"entries from {entries.min()} to {entries.max()} of table {name!r} were touched, which has {size}. "
                "Leave out what stands for no entry, as -1 does."
            )
        self._touched.append((name, entries))

    def touch_rows(self, name: str, rows: IntArray, starts: IntArray, ends: IntArray) -> None:
        """Of each row of a two-dimensional table, the entries from `starts` to `ends` have changed. O(entries)."""
        counts = ends - starts
        firsts = rows * self._views[name].shape[1] + starts
        behind = counts.cumsum() - counts  # entries of the rows before
        self.touch(name, np.repeat(firsts - behind, counts) + np.arange(counts.sum()))

    def touch_all(self, name: str) -> None:
        """Any entry of a table may have changed. O(table)."""
        self.touch(name, np.arange(self._flat[name].size))

    def update(self) -> None:
        """Bring all touched entries up to date, in the current stream: one copy to the device, and one write there.

        Nothing waits. What is written to the tables afterwards comes with the next update. O(touched entries).
        """
        if not self._touched:
            return
        places = np.concatenate([entries + self._starts[name] for name, entries in self._touched])
        values = np.concatenate([self._flat[name][entries] for name, entries in self._touched])
        there, what = self._sender.send(np.stack((places, values))).unbind()
        self._buffer.index_copy_(0, there, what.to(self._buffer.dtype))
        self._touched = []
