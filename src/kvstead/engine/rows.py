"""What is known of each running request, by its row of the request table.

One request's row, page size 4, prompt of 10 tokens of which 4 were found in the cache, one token generated:

    position    0  1  2  3 | 4  5  6  7 | 8  9 10
                '-- tree --'  '--- the request's own ---'
                protected = 4            computed = 10   allocated = 11 (`table.lengths`)   known = 11
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from kvstead.engine.request import token_ids
from kvstead.errors import InvalidSize, RowOverflow
from kvstead.kernels import rows as row_kernels
from kvstead.kernels.array_types import IntArray, TagArray
from kvstead.kernels.arrays import Integers, to_host, untouched
from kvstead.pools import RequestTable
from kvstead.prefix import PLAIN, Keys, Namespace, Node


class Rows:
    """The rows of one manager. Arrays have an entry for each row, and row 0 is never handed out.

    table: the slots. ids: int32[rows + 1, width + 1], token ids. known: int64[rows + 1], ids that are valid; prompt: as
    many as were when the row was opened. computed: int64[rows + 1], tokens whose cache entries are. protected:
    int64[rows + 1], leading tokens whose slots are the tree's. node: the node that ends there, which the row keeps
    locked; the root where nothing is shared. owner: tags for pages. namespace, keys: of the row's tokens.
    """

    def __init__(self, num_rows: int, width: int, page_size: int, root: Node) -> None:
        self.table = RequestTable(num_rows, width)
        num_rows = self.table.num_rows
        self.ids = untouched((num_rows + 1, self.table.width + 1), np.int32)
        self.known: IntArray = np.zeros(num_rows + 1, dtype=np.int64)
        self.prompt: IntArray = np.zeros(num_rows + 1, dtype=np.int64)
        self.computed: IntArray = np.zeros(num_rows + 1, dtype=np.int64)
        self.protected: IntArray = np.zeros(num_rows + 1, dtype=np.int64)
        self.owner: TagArray = np.zeros(num_rows + 1, dtype=np.int32)
        self.node: list[Node] = [root] * (num_rows + 1)
        self.namespace: list[Namespace] = [PLAIN] * (num_rows + 1)
        self.keys: list[Keys] = [()] * (num_rows + 1)
        self.num_released = 0  # rows given back since the start
        self.page_size = page_size
        self._root = root

    def open(self, ids: NDArray[np.int32] | IntArray, owner: int, namespace: Namespace, keys: Keys) -> int:
        """Take a row, of which one must be free, for a request with these ids that shares nothing yet."""
        taken = self.table.take()
        assert taken is not None, "the caller has counted the free rows"
        row = int(taken[0])
        self.ids[row, : ids.size] = ids
        self.known[row] = self.prompt[row] = ids.size
        self.owner[row] = owner
        self.namespace[row], self.keys[row] = namespace, keys
        return row

    def close(self, row: int) -> None:
        """Give a live row back, with nothing left in it."""
        self.known[row] = self.computed[row] = self.protected[row] = 0
        self.node[row] = self._root
        self.table.give(row)
        self.num_released += 1

    def pages(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens of one row take."""
        return -(-num_tokens // self.page_size)

    def new_pages(self, rows: IntArray, lengths: IntArray) -> int:
        """Pages that rows take to grow to `lengths` slots.

        Raises `InvalidSize` for a row that would shrink or is named twice and for another number of lengths than rows,
        `RowOverflow`, `StaleRow`.
        """
        which, table, page_size = rows.tolist(), self.table, self.page_size
        if not len(set(which)) == rows.size == lengths.size:
            raise InvalidSize(f"rows {which} come with {lengths.size} lengths. Name each row once, with a length.")
        num_pages = 0
        for row, length in zip(which, lengths.tolist(), strict=True):
            table.require_live(row)
            have = int(table.lengths[row])
            if length < have:
                raise InvalidSize(f"row {row} holds {have} slots and cannot shrink to {length}. Extend to more.")
            if length > table.width:
                raise RowOverflow(f"row {row} cannot grow to {length} slots; rows have {table.width}. End it there.")
            num_pages += -(-length // page_size) - -(-have // page_size)
        return num_pages

    def write(self, rows: IntArray, lengths: IntArray, slots: IntArray) -> None:
        """Write the slots by which rows have grown to `lengths`, one row after the other."""
        start = 0
        for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
            end = start + length - int(self.table.lengths[row])
            self.table.append(row, slots[start:end])
            start = end

    def known_tokens(self, row: int) -> NDArray[np.int32]:
        """The row's ids, int32[*], a copy. Raises `StaleRow`."""
        self.table.require_live(row)
        return self.ids[row, : self.known[row]].copy()

    def append(self, row: int, tokens: Integers) -> None:
        """Note ids behind the row's last known one. Raises `StaleRow`, `RowOverflow`."""
        self.table.require_live(row)
        given = to_host(tokens)
        if not given.size:
            return
        ids = token_ids(given)
        start = int(self.known[row])
        end = start + ids.size
        if end > self.table.width:
            raise RowOverflow(f"row {row} cannot hold {end} tokens; rows have {self.table.width}. End it there.")
        self.ids[row, start:end] = ids
        self.known[row] = end

    def commit(self, rows: IntArray, lengths: IntArray, sampled: IntArray) -> None:
        """Note what a step has computed; see `KVCacheManager.commit`."""
        if not rows.size == lengths.size == sampled.size:
            raise InvalidSize(
                f"{rows.size} rows come with {lengths.size} lengths and {sampled.size} tokens. Give one of each for "
                "every row."
            )
        table = self.table
        bad = row_kernels.commit_rows(
            table.states, table.lengths, self.computed, self.ids, self.known, rows, lengths, sampled
        )
        if bad >= 0:
            self._refuse(int(rows[bad]), int(lengths[bad]), sampled[bad:])

    def _refuse(self, row: int, end: int, sampled: IntArray) -> NoReturn:
        self.table.require_live(row)
        if end == self.known[row]:
            token_ids(sampled[:1])  # raises when it was the id
        raise InvalidSize(
            f"row {row} cannot be computed up to {end}: it is computed up to {self.computed[row]}, holds "
            f"{self.table.lengths[row]} slots and {self.known[row]} known tokens. Commit steps in order, each row "
            "once."
        )
