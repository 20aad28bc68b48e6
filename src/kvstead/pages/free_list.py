"""The free pages of one pool: take some, give them back, or park them until a group ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvstead.errors import AuditError, InvalidSize
from kvstead.kernels import host
from kvstead.kernels.jit import IntArray
from kvstead.pages.page_table import PageTable, require_tag
from kvstead.pages.queues import PageBitmap, PageQueue, PageRing

_QUEUES: dict[str, Callable[[int], PageQueue]] = {
    "lifo": lambda num_pages: PageRing(num_pages, last_in_first_out=True),
    "fifo": lambda num_pages: PageRing(num_pages, last_in_first_out=False),
    "lowest": PageBitmap,
}


class FreeList:
    """Pages 1 .. `num_pages` of one pool.

    order: `lifo` (freed pages are reused first, in the order given), `fifo` (freed pages queue behind all others) or
    `lowest` (the lowest ids first). A new list hands pages out from 1 upward. `take`, `give`, `park` and `unpark` cost
    O(pages) of the call, `lowest` O(pages log N); 13 bytes a page (`lowest`: 5 and a bit).

    Raises `InvalidSize` for a negative count or an unknown order.
    """

    __slots__ = ("_queue", "order", "table")

    def __init__(self, num_pages: int, order: str = "lifo") -> None:
        if num_pages < 0:
            raise InvalidSize(f"num_pages is {num_pages}. A pool has 0 pages or more.")
        if order not in _QUEUES:
            raise InvalidSize(f"order {order!r} is unknown. Use one of {', '.join(_QUEUES)}.")
        self.order = order
        self.table = PageTable(num_pages)
        self._queue = _QUEUES[order](num_pages)

    @property
    def num_pages(self) -> int:
        """Pages that can be handed out, padding not counted."""
        return self.table.num_pages

    @property
    def num_free(self) -> int:
        """Pages that `take` can hand out now."""
        return self.table.num_free

    @property
    def num_parked(self) -> int:
        """Pages freed inside an open group: no longer owned, not yet available."""
        return self.table.num_parked

    def take(self, num_pages: int, owner: int = 0) -> IntArray | None:
        """Hand out pages, tagged with `owner`: int64[num_pages], the caller's own array; None when short.

        Raises `InvalidSize` when `num_pages` is negative or `owner` no int32.
        """
        if num_pages < 0:
            raise InvalidSize(f"num_pages is {num_pages}. Ask for 0 pages or more.")
        require_tag(owner)
        if num_pages > self.table.num_free:
            return None
        pages = self._queue.pop(num_pages)
        self.table.occupy(pages, owner)
        return pages

    def give(self, pages: IntArray) -> None:
        """Make live pages available again.

        pages: int64[k], in any order. Raises `DoubleFree` or `ForeignPage` for the first bad one and then changes
        nothing. O(k).
        """
        self._queue.push(self.table.release(pages))

    def relist(self, pages: IntArray) -> None:
        """List pages that the table has just turned FREE; `pages` is what its method returned."""
        self._queue.push(pages)

    def unpark(self, pages: IntArray) -> None:
        """Make parked pages available; `pages` is what `table.park` or `table.park_slots` returned."""
        self.table.unpark(pages)
        self._queue.push(pages)

    def clear(self) -> None:
        """Every page is free again, whoever held it."""
        self.table.clear()
        self._queue.clear()

    def contents(self) -> IntArray:
        """All free pages, in the order in which they would be taken (a copy). O(pages)."""
        return self._queue.contents()

    def audit(self) -> None:
        """Hold the list against the states: exactly the free pages, each once. Raises `AuditError`. O(pages)."""
        self.table.audit()
        listed = np.sort(self._queue.contents())
        free = np.flatnonzero(self.table.state == host.FREE)
        if not np.array_equal(listed, free):
            odd = sorted(set(listed.tolist()) ^ set(free.tolist())) or "pages listed twice"
            raise AuditError(f"the free list and the page states disagree about {odd}. A page is lost or listed twice.")
