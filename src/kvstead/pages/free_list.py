"""The free pages of one pool: take some, give them back, or park them until a group ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

import numpy as np

from kvstead.errors import AuditError, ForeignPage, InvalidSize, MisalignedSegment
from kvstead.kernels import host, windows
from kvstead.kernels.array_types import IntArray
from kvstead.pages.page_table import PageTable, require_tag
from kvstead.pages.queues import PageBitmap, PageQueue, PageRing

_QUEUES: dict[str, Callable[[int], PageQueue]] = {
    "lifo": lambda num_pages: PageRing(num_pages, last_in_first_out=True),
    "fifo": lambda num_pages: PageRing(num_pages, last_in_first_out=False),
    "lowest": PageBitmap,
}


def refuse_segment(slots: IntArray, page_size: int, page: int) -> NoReturn:
    """Raise the error for a row segment whose page number `page` does not hold consecutive slots."""
    part = slots[page * page_size : (page + 1) * page_size]
    raise MisalignedSegment(
        f"slots {part.tolist()}, from entry {page * page_size} of the segment on, are not the consecutive slots "
        f"of a page of {page_size}. Pass the stretch of the row unchanged, with the position it starts at."
    )


def segment_pages(slots: IntArray, page_size: int) -> IntArray:
    """The pages of a row segment, the last of which may be partial: a new int64[k], with nothing asked of their states.

    Raises `MisalignedSegment` where the slots do not lie one behind the other from a page's start. O(slots).
    """
    pages = np.empty(-(-slots.size // page_size), dtype=np.int64)
    bad = windows.pages_of_segment(slots, page_size, pages)
    if bad >= 0:
        refuse_segment(slots, page_size, bad)
    return pages


class FreeList:
    """Pages 1 .. `num_pages` of one pool.

    order: `lifo` (freed pages are reused first, in the order given), `fifo` (freed pages queue behind all others) or
    `lowest` (the lowest ids first). A new list hands pages out from 1 upward. `take`, `give`, `park` and `unpark` cost
    O(pages) of the call, `lowest` O(pages log N). 13 bytes a page (`lowest`: 5 and a bit).

    Raises `InvalidSize` for a negative count or an unknown order.
    """

    __slots__ = ("_lot", "_lot_used", "_queue", "order", "table")

    def __init__(self, num_pages: int, order: str = "lifo") -> None:
        if num_pages < 0:
            raise InvalidSize(f"num_pages is {num_pages}. A pool has 0 pages or more.")
        if order not in _QUEUES:
            raise InvalidSize(f"order {order!r} is unknown. Use one of {', '.join(_QUEUES)}.")
        self.order = order
        self.table = PageTable(num_pages)
        self._queue = _QUEUES[order](num_pages)
        self._lot = np.empty(0, dtype=np.int64)  # ids of parked pages; filled anew when none is parked
        self._lot_used = 0

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

    @property
    def num_live(self) -> int:
        """Pages that a request or the cache holds."""
        return self.table.num_live

    def capacity(self) -> int:
        """Pages that `take` can hand out now."""
        return self.table.num_free

    def translate(self, slots: IntArray, page_size: int) -> IntArray:
        """Where slots of these pages lie, a new int64[k]: where they say, and 0, in the padding, for what nobody holds.

        Raises `ForeignPage` for a slot below -1 or outside the pool. O(slots).
        """
        pages = slots // page_size
        bad = np.flatnonzero((slots < -1) | (pages > self.num_pages))
        if bad.size:
            raise ForeignPage(
                f"slot {slots[bad[0]]} is none of this pool's (they are below {(self.num_pages + 1) * page_size}). "
                "Ask for slots that it handed out, or -1 for none."
            )
        return np.where((slots > 0) & (self.table.state[pages] == host.LIVE), slots, 0)

    def take(self, num_pages: int, owner: int = 0) -> IntArray | None:
        """Hand out pages, tagged with `owner`: int64[num_pages], the caller's own array; None when short.

        Raises `InvalidSize` when `num_pages` is negative or `owner` no int32.
        """
        if num_pages < 0:
            raise InvalidSize(f"num_pages is {num_pages}. Ask for 0 pages or more.")
        require_tag(owner)
        table = self.table
        if num_pages > table.num_free:
            return None
        pages = self._queue.take(num_pages, table, owner)
        table.num_free -= num_pages
        table.num_live += num_pages
        return pages

    def give(self, pages: IntArray) -> None:
        """Make live pages available again.

        pages: int64[k], in any order. Raises `DoubleFree` or `ForeignPage` for the first bad one and then changes
        nothing. O(k).
        """
        ring, start = self._room(pages.size)
        self._move(pages, host.LIVE, host.FREE, ring, start)
        self._given(ring, pages.size)

    def give_slots(self, slots: IntArray, page_size: int) -> IntArray:
        """Make the pages that live slots lie in available again, each once: int64[k], in the order first seen.

        Raises as `give`. O(slots).
        """
        pages = self._leave_slots(slots, page_size, host.FREE, np.empty(min(slots.size, self.num_pages), np.int64))
        self._list(pages)
        return pages

    def give_segment(self, slots: IntArray, page_size: int) -> IntArray:
        """Make the pages of a row segment available again; `slots` as for `park_segment`. O(slots).

        Returns their ids, int64[k], good until the next call.
        """
        num_pages = -(-slots.size // page_size)
        ring, start = self._room(num_pages)
        self._leave_segment(slots, page_size, host.FREE, ring, start)
        self._given(ring, num_pages)
        straight = ring.size - start
        if num_pages <= straight:
            return ring[start : start + num_pages]
        return np.concatenate((ring[start:], ring[: num_pages - straight]))

    def park(self, pages: IntArray) -> IntArray:
        """Make live pages parked: no longer owned, not yet available. Raises as `give`. O(pages).

        Returns a copy of their ids, int64[k], to be handed to `unpark` or `restore`; good until then.
        """
        out = self._parking(pages.size)
        self._move(pages, host.LIVE, host.PARKED, out, 0)
        return self._parked(out)

    def park_slots(self, slots: IntArray, page_size: int) -> IntArray:
        """Park the pages that live slots lie in, each once, in the order first seen. Raises as `give`. O(slots)."""
        room = self._parking(min(slots.size, self.num_pages))
        return self._parked(self._leave_slots(slots, page_size, host.PARKED, room))

    def park_segment(self, slots: IntArray, page_size: int) -> IntArray:
        """Park the pages of a row segment: whole pages of consecutive slots, the last may be partial.

        Raises `MisalignedSegment` where the slots are not that, else as `give`. O(slots).
        """
        out = self._parking(-(-slots.size // page_size))
        self._leave_segment(slots, page_size, host.PARKED, out, 0)
        return self._parked(out)

    def park_segments(self, segments: Iterable[IntArray], page_size: int) -> list[IntArray]:
        """`park_segment` for several segments, all or none: what it returns for each. They share no page."""
        parked: list[IntArray] = []
        try:
            for slots in segments:
                pages = self.park_segment(slots, page_size)
                parked.append(pages)
        except BaseException:
            for pages in parked:
                self.restore(pages)
            raise
        return parked

    def unpark(self, pages: IntArray) -> None:
        """Make parked pages available; `pages` is what a `park` returned. O(pages)."""
        ring, start = self._queue.room(pages.size)
        bad = host.move(self.table.state, pages, host.PARKED, host.FREE, ring, start)
        assert bad < 0, f"page {pages[bad]} left the parked state some other way"
        self.table.num_parked -= pages.size
        self.table.num_free += pages.size
        self._queue.listed(ring, pages.size)

    def restore(self, pages: IntArray) -> None:
        """Take a `park` back: its pages are live again, as before."""
        bad = host.move(self.table.state, pages, host.PARKED, host.LIVE, np.empty_like(pages), 0)
        assert bad < 0, f"page {pages[bad]} left the parked state some other way"
        self.table.num_parked -= pages.size
        self.table.num_live += pages.size

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

    def _room(self, num_pages: int) -> tuple[IntArray, int]:
        """Where to write pages that are given back. A call that names more than are live fails, outside the queue."""
        if num_pages > self.table.num_live:
            return np.empty(num_pages, dtype=np.int64), 0
        return self._queue.room(num_pages)

    def _parking(self, num_pages: int) -> IntArray:
        """Room for the ids of pages about to be parked. A lot that is outgrown lives on in the views of it."""
        if not self.table.num_parked:
            self._lot_used = 0
        end = self._lot_used + num_pages
        if end > self._lot.size:
            self._lot = np.empty(2 * end, dtype=np.int64)
        return self._lot[self._lot_used : end]

    def _move(self, pages: IntArray, before: int, after: int, ring: IntArray, start: int) -> None:
        bad = host.move(self.table.state, pages, before, after, ring, start)
        if bad >= 0:
            self.table.refuse(int(pages[bad]))

    def _leave_slots(self, slots: IntArray, page_size: int, after: int, out: IntArray) -> IntArray:
        count, bad = host.move_slots(self.table.state, slots, page_size, after, out)
        if bad >= 0:
            self.table.refuse(int(slots[bad] // page_size))
        return out[:count]

    def _leave_segment(self, slots: IntArray, page_size: int, after: int, ring: IntArray, start: int) -> None:
        fault, bad = host.move_segment(self.table.state, slots, page_size, after, ring, start)
        if fault == host.FAULT_NONE:
            return
        if fault == host.FAULT_OFFSET:
            refuse_segment(slots, page_size, bad)
        self.table.refuse(int(slots[bad * page_size] // page_size))

    def _list(self, pages: IntArray) -> None:
        """Queue live pages whose states say already that they are free."""
        ring, start = self._queue.room(pages.size)
        straight = ring.size - start
        if pages.size <= straight:
            ring[start : start + pages.size] = pages
        else:
            ring[start:], ring[: pages.size - straight] = pages[:straight], pages[straight:]
        self._given(ring, pages.size)

    def _given(self, ring: IntArray, num_pages: int) -> None:
        self.table.num_live -= num_pages
        self.table.num_free += num_pages
        self._queue.listed(ring, num_pages)

    def _parked(self, pages: IntArray) -> IntArray:
        self._lot_used += pages.size  # only now: a refused call, or many slots of few pages, use up no more than that
        self.table.num_live -= pages.size
        self.table.num_parked += pages.size
        return pages
