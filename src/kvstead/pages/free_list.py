"""The free pages of one pool: pages are taken, and leave their holder again, at once or when a free group ends.

    ring   head                       tail
    [ .  .  . | p  p  p  p  p  p  p  p | .  .  . ]   + pages `fresh` and upward, which were never handed out

    lifo    freed pages go in front of the head; fresh pages are taken when the ring is empty
    fifo    freed pages go behind the tail; fresh pages are taken first
    lowest  free pages are bits of a bitmap, and the lowest ids are taken first

The ring stores no fresh pages, so a new pool is ready as soon as its memory is reserved.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvstead.errors import AuditError, InvalidSize
from kvstead.kernels import host
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import whole
from kvstead.kernels.host import FREE, LIVE, PARKED
from kvstead.pages.page_bitmap import PageBitmap
from kvstead.pages.page_table import MAX_TAG, MIN_TAG, PageTable, refuse_segment, refuse_tag, translate_in_place
from kvstead.pages.places import Places

ORDERS = ("lifo", "fifo", "lowest")


class FreeList:
    """Pages 1 .. `num_pages` of one pool.

    order: `lifo` (freed pages are reused first, in the order given), `fifo` (freed pages are reused last) or `lowest`
    (the lowest ids first). A new list hands pages out from 1 upward. `take`, the `leave` methods and `unpark` cost
    O(pages) of the call, with `lowest` O(pages log N). 13 bytes a page (`lowest`: 5 and a bit).

    places: None where page p is the p-th of the pool's own bytes. Else the pages lie in an arena: `num_pages` are ids,
    as many as the pool could hold alone, and `take` is None if and only if the arena has no room.

    Raises `InvalidSize` for a negative count or an unknown order.
    """

    __slots__ = ("_bitmap", "_fresh", "_head", "_is_lifo", "_num_listed", "_ring", "order", "places", "table")

    def __init__(self, num_pages: int, order: str = "lifo", places: Places | None = None) -> None:
        num_pages = whole(num_pages, "num_pages")
        if num_pages < 0:
            raise InvalidSize(f"num_pages is {num_pages}. A pool has 0 pages or more.")
        if order not in ORDERS:
            raise InvalidSize(f"order {order!r} is unknown. Use one of {', '.join(ORDERS)}.")
        self.order = order
        self.places = places
        self.table = PageTable(num_pages)
        self._is_lifo = order == "lifo"
        self._bitmap = PageBitmap(num_pages) if order == "lowest" else None
        self._ring: IntArray = np.empty(0 if self._bitmap else max(num_pages, 1), dtype=np.int64)
        self._head = self._num_listed = 0
        self._fresh = 1

    @property
    def num_pages(self) -> int:
        """Pages that can be handed out, without the padding page."""
        return self.table.num_pages

    @property
    def num_free(self) -> int:
        """Pages that nobody holds and no group parks."""
        return self.table.num_free

    @property
    def num_live(self) -> int:
        """Pages that a request or the cache holds."""
        return self.table.num_live

    @property
    def num_parked(self) -> int:
        """Pages freed inside an open group: no longer held, not yet available."""
        return self.table.num_parked

    def capacity(self) -> int:
        """Pages that `take` can hand out now, with other pools of an arena as they are."""
        num_free = self.table.num_free
        return num_free if self.places is None else min(num_free, self.places.capacity())

    def take(self, num_pages: int, owner: int = 0) -> IntArray | None:
        """Hand out pages, tagged with `owner`: int64[num_pages], the caller's own array; None when short.

        Raises `InvalidSize` when `num_pages` is negative or `owner` does not fit an int32.
        """
        table = self.table
        if type(num_pages) is not int or type(owner) is not int:
            num_pages, owner = whole(num_pages, "num_pages"), whole(owner, "owner")
        if num_pages < 0:
            raise InvalidSize(f"num_pages is {num_pages}. Ask for 0 pages or more.")
        if not MIN_TAG <= owner <= MAX_TAG:
            refuse_tag(owner)
        if num_pages > table.num_free:
            return None
        if self.places is None:
            return self._take(num_pages, owner)
        places = self.places.place(num_pages)
        if places is None:
            return None
        pages = self._take(num_pages, owner)
        self.places.bind(pages, places)
        return pages

    def _take(self, num_pages: int, owner: int) -> IntArray:
        """Turn the next free pages live and tag them; there are enough."""
        table, ring, head = self.table, self._ring, self._head
        if num_pages == 1 and self._num_listed and self._is_lifo:  # a page costs less than the call of a kernel
            pages, page, num_listed = ring[head : head + 1].copy(), ring.item(head), 1
            table.state[page] = LIVE
            table.owner[page] = owner
        else:
            pages = np.empty(num_pages, dtype=np.int64)
            num_listed = self._take_many(pages, owner)
        if num_listed:
            self._num_listed -= num_listed
            self._head = (head + num_listed) % ring.size
        table.num_free -= num_pages
        table.num_live += num_pages
        return pages

    def _take_many(self, pages: IntArray, owner: int) -> int:
        """Fill `pages` with the next free pages, live and tagged: how many of them came from the ring."""
        table, num_pages = self.table, pages.size
        if self._bitmap is not None:
            self._bitmap.take(pages)
            host.take(table.state, table.owner, pages, 0, num_pages, 0, 0, owner, pages)
            return 0
        if self._is_lifo:
            num_listed, listed_at = min(num_pages, self._num_listed), 0
        else:
            listed_at = min(num_pages, table.num_pages + 1 - self._fresh)
            num_listed = num_pages - listed_at
        host.take(table.state, table.owner, self._ring, self._head, num_listed, listed_at, self._fresh, owner, pages)
        self._fresh += num_pages - num_listed
        return num_listed

    def leave(self, pages: IntArray, after: int = FREE) -> IntArray:
        """Live pages leave their holder: to FREE, available at once, or to PARKED, until `unpark`.

        pages: int64[k], in any order. Returns their ids, int64[k]: a copy where they are parked, else good until the
        next call. Raises `DoubleFree` or `ForeignPage` for the first bad one and then changes nothing. O(k).
        """
        if pages.size == 1 and after == FREE and self._bitmap is None:
            return self._free_one(pages)
        out, start = self._destination(pages.size, after)
        bad = host.move(self.table.state, pages, LIVE, after, out, start)
        if bad >= 0:
            self.table.refuse(int(pages[bad]))
        left = pages if after == FREE else out
        self._account(left, after)
        return left

    give = leave

    def leave_slots(self, slots: IntArray, page_size: int, after: int = FREE) -> IntArray:
        """The pages that live slots lie in leave their holder, each once, in the order first seen.

        slots: int64[k], in any order; at page size 1 each slot is a page. Returns and raises as `leave`. O(k).
        """
        if page_size == 1:
            return self.leave(slots, after)
        state, pages = self.table.state, np.empty(min(slots.size, self.table.num_pages), dtype=np.int64)
        if after != FREE or self._bitmap is not None:
            count, bad = host.move_slots(state, slots, page_size, after, pages)
        elif self._is_lifo:
            count, bad = host.free_slots(state, slots, page_size, pages, self._ring, self._head, 1)
        else:
            tail = self._head + self._num_listed
            count, bad = host.free_slots(state, slots, page_size, pages, self._ring, tail, 0)
        if bad >= 0:
            self.table.refuse(int(slots[bad] // page_size))
        pages = pages[:count] if after == FREE else pages[:count].copy()  # which lives until the group ends
        self._account(pages, after)
        return pages

    def leave_segment(self, slots: IntArray, page_size: int, after: int = FREE) -> IntArray:
        """The pages of a row segment leave their holder: whole pages of consecutive slots, the last may be partial.

        Returns as `leave`. Raises `MisalignedSegment` where the slots are not that, else as `leave`. O(slots).
        """
        num_pages = -(-slots.size // page_size)
        out, start = self._destination(num_pages, after)
        fault, bad = host.move_segment(self.table.state, slots, page_size, after, out, start)
        if fault == host.FAULT_OFFSET:
            refuse_segment(slots, page_size, bad)
        if fault != host.FAULT_NONE:
            self.table.refuse(int(slots[bad * page_size] // page_size))
        end = start + num_pages
        pages = out[start:end] if end <= out.size else np.concatenate((out[start:], out[: end - out.size]))
        self._account(pages, after)
        return pages

    def unpark(self, parked: Iterable[IntArray]) -> None:
        """Make parked pages available, call by call; `parked` are arrays that `leave` methods returned. O(pages)."""
        table = self.table
        for pages in parked:
            out, start = self._destination(pages.size, FREE)
            bad = host.move(table.state, pages, PARKED, FREE, out, start)
            assert bad < 0, f"page {pages[bad]} left the parked state some other way"
            table.num_parked -= pages.size
            table.num_live += pages.size
            self._account(pages, FREE)

    def translate(self, slots: IntArray, page_size: int) -> IntArray:
        """Where slots of these pages lie now: a new int64[k], 0, in the padding, for -1 and where the page is not live.

        Raises `ForeignPage` for a slot below -1 or outside the pool. O(slots).
        """
        if self.places is not None:
            return self.places.translate(slots, page_size, self.table)
        return translate_in_place(slots, page_size, self.table)

    def clear(self) -> None:
        """Make every page free, no matter who holds it."""
        self.table.clear()
        self._head = self._num_listed = 0
        self._fresh = 1
        if self._bitmap is not None:
            self._bitmap.clear()
        if self.places is not None:
            self.places.clear()

    def contents(self) -> IntArray:
        """All free pages, in the order in which they will be taken (a copy). O(pages)."""
        if self._bitmap is not None:
            return self._bitmap.contents()
        fresh = np.arange(self._fresh, self.num_pages + 1)
        at = (self._head + np.arange(self._num_listed)) % self._ring.size
        return np.concatenate((self._ring[at], fresh) if self._is_lifo else (fresh, self._ring[at]))

    def audit(self) -> None:
        """Check that the list names exactly the free pages, each once. Raises `AuditError`. O(pages)."""
        self.table.audit()
        listed = np.sort(self.contents())
        free = np.flatnonzero(self.table.state == FREE)
        if not np.array_equal(listed, free):
            odd = sorted(set(listed.tolist()) ^ set(free.tolist())) or "pages listed twice"
            raise AuditError(f"the free list and the page states disagree about {odd}. A page is lost or listed twice.")
        if self.places is not None:
            self.places.audit(self.table)

    def _free_one(self, pages: IntArray) -> IntArray:
        """`leave` of one page to the ring, without a kernel, as in `_take`."""
        table, ring, page = self.table, self._ring, pages.item()
        if not 0 < page <= table.num_pages or table.state.item(page) != LIVE:
            table.refuse(page)
        table.state[page] = FREE
        if self._is_lifo:
            self._head = (self._head - 1) % ring.size
            ring[self._head] = page
        else:
            ring[(self._head + self._num_listed) % ring.size] = page
        self._num_listed += 1
        table.num_live -= 1
        table.num_free += 1
        if self.places is not None:
            self.places.release(pages)
        return pages

    def _destination(self, num_pages: int, after: int) -> tuple[IntArray, int]:
        """Where to write the ids of pages that leave: an array, and the index to start from.

        Free pages go straight into the ring, but not those of a call that names more than there are: it fails.
        """
        table = self.table
        if after != FREE or self._bitmap is not None or num_pages > table.num_pages - table.num_free:
            return np.empty(num_pages, dtype=np.int64), 0
        if self._is_lifo:
            return self._ring, (self._head - num_pages) % self._ring.size
        return self._ring, (self._head + self._num_listed) % self._ring.size

    def _account(self, pages: IntArray, after: int) -> None:
        """Count pages that have left, and queue the free ones; a ring has their ids already."""
        table = self.table
        table.num_live -= pages.size
        if after != FREE:
            table.num_parked += pages.size
            return
        table.num_free += pages.size
        if self._bitmap is not None:
            self._bitmap.put(pages)
        else:
            self._num_listed += pages.size
            if self._is_lifo:
                self._head = (self._head - pages.size) % self._ring.size
        if self.places is not None:
            self.places.release(pages)
