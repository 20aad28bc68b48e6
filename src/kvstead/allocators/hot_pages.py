"""A linked pool of device pages for the tokens of a host pool that are hot.

Callers hold logical slots. A logical page may have one device page, with entries at the same places: a token each, or a
block of tokens with compression. A live device page that is linked to none lies in a buffer, which its caller holds.

    logical page      1     2     3     4     5           a request of 5 pages: its prompt went to the device (4, 5),
    device_pages      0     0     0     7     2           the head of it lies in a buffer by now (device pages 1, 6, 3)
                     `----- buffer -----'
"""

from __future__ import annotations

import numpy as np

from kvstead.allocators.growth import Rows
from kvstead.errors import AuditError, UseAfterFree
from kvstead.kernels import hot_pages
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.host import LIVE
from kvstead.pages import FreeList, LinkedPool, PageTable
from kvstead.pages.page_table import refuse_slot

IN_BUFFER = 0  # the tag of a device page that is linked to no logical page; else the tag is the logical page


class HotPool(LinkedPool):
    """Device pages, linked to the logical pages of `pages`, whose page size is `page_size` tokens.

    compress_ratio: tokens that share a device slot; the last of them makes the slot hold something. lens:
    int64[num_pages + 2], the entries that a logical page has on its device page, if it has one.
    """

    __slots__ = ("compress_ratio", "lens", "page_size")

    def __init__(self, pool: FreeList, pages: PageTable, page_size: int, compress_ratio: int) -> None:
        super().__init__("hot", pool, pages)
        self.page_size = page_size
        self.compress_ratio = compress_ratio
        self.lens: IntArray = np.zeros(pages.num_pages + 2, dtype=np.int64)

    @property
    def device_page_size(self) -> int:
        """Device slots of a page."""
        return self.page_size // self.compress_ratio

    def take(self, num_pages: int) -> IntArray:
        """Device pages that were counted first: int64[num_pages], in no buffer and linked to no page yet."""
        pages = self.pool.take(num_pages, IN_BUFFER)
        assert pages is not None, "the device side was asked first"
        return pages

    def link(self, pages: IntArray, linked: IntArray) -> None:
        """Link logical pages to device pages, one each, that hold entries for all of their tokens."""
        super().link(pages, linked)
        self.pool.table.owner[linked] = pages
        self.lens[pages] = self.device_page_size

    def demand(self, rows: Rows) -> int:
        """Device pages for the entries that rows complete. Raises `UseAfterFree` for a row that would leave a gap."""
        sizes = self.page_size, self.compress_ratio
        row, num_pages = hot_pages.hot_demand(self.linked, self.lens, rows.prefix, rows.seq, rows.last, *sizes)
        if row >= 0:
            last = int(rows.last[row])
            raise UseAfterFree(
                f"row {row} would grow behind slot {last}, in page {last // self.page_size}, where the token before "
                "has no device slot: the new tokens would leave a gap. Use alloc_logical_only, or start at a page "
                "boundary."
            )
        return num_pages

    def warm(self, rows: Rows, slots: IntArray, fresh: IntArray) -> None:
        """Note the entries that rows have completed with their new `slots`; `fresh` are the pages of `demand`."""
        sizes = self.page_size, self.compress_ratio
        holders = self.pool.table.owner
        hot_pages.warm_rows(self.linked, self.lens, holders, rows.prefix, rows.seq, slots, fresh, *sizes)

    def slots(self, slots: IntArray, page_size: int) -> IntArray:
        """The device slot of the entry that each logical slot completes: int64[k], 0 where there is none, -1 for -1."""
        out = np.empty(slots.size, dtype=np.int64)
        bad = hot_pages.hot_slots(self.linked, self.lens, slots, page_size, self.compress_ratio, out)
        if bad >= 0:
            refuse_slot(int(slots[bad]), (self.pages.num_pages + 1) * page_size)
        return out

    def audit(self) -> None:
        """Check that each live device page is linked to one live logical page, or lies in a buffer, and the entries.

        Raises `AuditError`. O(pages of both pools).
        """
        pages = np.flatnonzero(self.linked[:-1])
        linked = self.linked[pages]
        holders = np.where(self.pool.table.state == LIVE, self.pool.table.owner, IN_BUFFER)
        expected = np.zeros_like(holders)
        expected[linked[linked < expected.size]] = pages[linked < expected.size]
        if not np.array_equal(expected, holders) or np.unique(linked).size < linked.size:
            raise AuditError("device pages and logical pages name different partners. Only the allocator links pages.")
        if not (self.pages.state[pages] == LIVE).all() or self.linked[-1] != -1:
            raise AuditError("a page that is not live has a device page. Only the allocator may link pages.")
        lens = self.lens[pages]
        if ((lens < 1) | (lens > self.device_page_size)).any():
            raise AuditError(
                "a device page counts fewer entries than one, or more than it has slots. Only the allocator counts."
            )
