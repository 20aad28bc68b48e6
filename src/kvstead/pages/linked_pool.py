"""A second pool whose pages are linked to pages of a first one.

    page            0   1   2   3   4   5 .. N   N + 1
    linked        [ 0 | 7 | 0 | 2 | 0 | 1 .. 4 |  -1   ]     0: none; the last entry keeps index -1 at -1

A window page holds the window side of the same tokens as its full page, a device page the hot side of those of its
logical page. A page has one linked page at most, which belongs to it alone, and is freed before the page or with it.
"""

from __future__ import annotations

import numpy as np

from kvstead.errors import AuditError
from kvstead.kernels import windows
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.host import LIVE
from kvstead.pages.free_list import FreeList
from kvstead.pages.page_table import PageTable, refuse_slot


class LinkedPool:
    """`pool`, and which of its pages is linked to each of the pages in `pages`, the table of the first pool.

    name: what messages call the pages of `pool`, as "window". linked: int64[num_pages + 2], the linked page of each
    page of the first pool, 0 for none, and -1 at the end. It stays the same array; only the methods write to it.
    """

    __slots__ = ("linked", "name", "pages", "pool")

    def __init__(self, name: str, pool: FreeList, pages: PageTable) -> None:
        self.name = name
        self.pool = pool
        self.pages = pages
        self.linked: IntArray = np.zeros(pages.num_pages + 2, dtype=np.int64)
        self.linked[-1] = -1

    def link(self, pages: IntArray, linked: IntArray) -> None:
        """Link the last `linked.size` of `pages`, which have no linked pages, to `linked`, one each."""
        windows.map_pages(self.linked, pages, linked, pages.size - linked.size)

    def unlink(self, pages: IntArray) -> IntArray:
        """Take the linked pages of `pages` from them, each once: int64[k], for the caller to free.

        Pages without one are passed over. Raises `ForeignPage` for a page outside the first pool, with nothing changed.
        """
        linked = np.empty(pages.size, dtype=np.int64)
        count, bad = windows.unmap_pages(self.linked, pages, linked)
        if bad >= 0:
            self.pages.refuse(int(pages[bad]))
        return linked[:count]

    def slots(self, slots: IntArray, page_size: int) -> IntArray:
        """The slots that are linked to slots of the first pool: int64[k], 0 where there is none, -1 for -1.

        Raises `ForeignPage` for any other slot outside the first pool, save padding. O(slots).
        """
        out = np.empty(slots.size, dtype=np.int64)
        bad = windows.window_slots(self.linked, slots, page_size, out)
        if bad >= 0:
            refuse_slot(int(slots[bad]), (self.pages.num_pages + 1) * page_size)
        return out

    def held(self) -> IntArray:
        """The live pages of the pool that the links account for: int64[k], in any order. O(pages)."""
        return self.linked[np.flatnonzero(self.linked[:-1])]

    def clear(self) -> None:
        """Unlink every page; the pool itself stays as it is."""
        self.linked[:-1] = 0

    def audit(self) -> None:
        """Check that the live pages are those linked, each to one live page. Raises `AuditError`. O(pages)."""
        pages = np.flatnonzero(self.linked[:-1])
        if not np.array_equal(np.sort(self.held()), np.flatnonzero(self.pool.table.state == LIVE)):
            raise AuditError(
                f"the {self.name} pages that are live are not the linked ones. Only the allocator may link pages."
            )
        if not (self.pages.state[pages] == LIVE).all() or self.linked[-1] != -1:
            raise AuditError(f"a page that is not live has a {self.name} page. Only the allocator may link pages.")
