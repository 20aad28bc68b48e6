"""The token ids of running requests, and how many of them are computed."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from kvstead.engine.request import token_ids
from kvstead.errors import InvalidSize, RowOverflow
from kvstead.kernels import rows as row_kernels
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers
from kvstead.pools import RequestTable


class RowTokens:
    """What is known of each row of a table.

    ids: int32[rows + 1, width + 1]. known: int64[rows + 1], ids that are valid. computed: int64[rows + 1], tokens whose
    cache entries are.
    """

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self.ids = np.empty((table.num_rows + 1, table.width + 1), dtype=np.int32)
        self.known: IntArray = np.zeros(table.num_rows + 1, dtype=np.int64)
        self.computed: IntArray = np.zeros(table.num_rows + 1, dtype=np.int64)

    def open(self, row: int, ids: NDArray[np.int32] | IntArray) -> None:
        """Begin a row with these ids."""
        self.ids[row, : ids.size] = ids
        self.known[row] = ids.size

    def close(self, row: int) -> None:
        """Forget a row."""
        self.known[row] = self.computed[row] = 0

    def read(self, row: int) -> NDArray[np.int32]:
        """The row's ids, int32[*], a copy. Raises `StaleRow`."""
        self._table.require_live(row)
        return self.ids[row, : self.known[row]].copy()

    def append(self, row: int, tokens: Integers) -> None:
        """Note ids behind the row's last one. Raises `StaleRow`, `RowOverflow`."""
        self._table.require_live(row)
        if not len(tokens):
            return
        ids = token_ids(tokens)
        start = int(self.known[row])
        end = start + ids.size
        if end > self._table.width:
            raise RowOverflow(f"row {row} cannot hold {end} tokens; rows have {self._table.width}. End it there.")
        self.ids[row, start:end] = ids
        self.known[row] = end

    def commit(self, rows: IntArray, lengths: IntArray, sampled: IntArray) -> None:
        """Note what a step has computed; see `KVCacheManager.commit`."""
        if not rows.size == lengths.size == sampled.size:
            raise InvalidSize(
                f"{rows.size} rows come with {lengths.size} lengths and {sampled.size} tokens. Give each row one of "
                "both."
            )
        table = self._table
        bad = row_kernels.commit_rows(
            table.states, table.lengths, self.computed, self.ids, self.known, rows, lengths, sampled
        )
        if bad >= 0:
            self._refuse(int(rows[bad]), int(lengths[bad]), sampled[bad:])

    def _refuse(self, row: int, end: int, sampled: IntArray) -> NoReturn:
        self._table.require_live(row)
        if end == self.known[row]:
            token_ids(sampled[:1])  # raises when it was the id
        raise InvalidSize(
            f"row {row} cannot be computed up to {end}: it is computed up to {self.computed[row]}, holds "
            f"{self._table.lengths[row]} slots and {self.known[row]} known tokens. Commit steps in order, each row "
            "once."
        )
