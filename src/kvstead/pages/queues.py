"""In which order free pages are handed out again.

A queue lists page ids; their states are the page table's. Pages that were never handed out are not stored at all:
`fresh` is the lowest of them, and a new pool is ready as soon as its memory is reserved.

    PageRing                head                       tail
         ring  [ .  .  . | p  p  p  p  p  p  p  p  p | .  .  . ]   lifo: freed pages go in front of the head,
                         ^ next to be taken                            fresh ones are taken when it is empty
                                                                   fifo: freed pages join the tail, fresh come first
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import numpy as np

from kvstead.errors import AuditError
from kvstead.kernels import bitmap, host
from kvstead.kernels.array_types import IntArray, WordArray
from kvstead.pages.page_table import PageTable


class PageQueue(Protocol):
    """Free pages in some order. The caller never asks for more than there are."""

    def take(self, num_pages: int, table: PageTable, tag: int) -> IntArray:
        """Unlist the next `num_pages` pages and make them live: int64[num_pages], the caller's own."""
        ...

    def room(self, num_pages: int) -> tuple[IntArray, int]:
        """Where up to `num_pages` pages may be written to be listed: a buffer, and the index to start from."""
        ...

    def listed(self, buffer: IntArray, num_pages: int) -> None:
        """List the `num_pages` pages that were written to `buffer`, what `room` gave for as many."""
        ...

    def clear(self) -> None:
        """Every page is free, in ascending order."""
        ...

    def contents(self) -> IntArray:
        """All free pages in the order in which they would be taken. O(pages)."""
        ...


class PageRing:
    """Free pages in a ring; `last_in_first_out` decides at which end freed pages join."""

    __slots__ = ("_count", "_fresh", "_head", "_num_pages", "_ring", "last_in_first_out")

    def __init__(self, num_pages: int, *, last_in_first_out: bool) -> None:
        self.last_in_first_out = last_in_first_out
        self._num_pages = num_pages
        self._ring: IntArray = np.empty(max(num_pages, 1), dtype=np.int64)  # a ring of nothing still has a start
        self.clear()

    def clear(self) -> None:
        """Forget the ring: all pages are fresh again."""
        self._head = 0
        self._count = 0
        self._fresh = 1

    def take(self, num_pages: int, table: PageTable, tag: int) -> IntArray:
        """Unlist the next `num_pages` pages and make them live: int64[num_pages]. O(num_pages)."""
        if self.last_in_first_out:
            num_listed = min(num_pages, self._count)
            listed_at = 0
        else:
            listed_at = min(num_pages, self._num_pages + 1 - self._fresh)
            num_listed = num_pages - listed_at
        pages = np.empty(num_pages, dtype=np.int64)
        host.take(table.state, table.owner, self._ring, self._head, num_listed, listed_at, self._fresh, tag, pages)
        self._fresh += num_pages - num_listed
        self._count -= num_listed
        self._head += num_listed
        if self._head >= self._ring.size:
            self._head -= self._ring.size
        return pages

    def room(self, num_pages: int) -> tuple[IntArray, int]:
        """The ring itself: in front of the head (lifo) or behind the tail (fifo)."""
        start = self._head - num_pages if self.last_in_first_out else self._head + self._count
        return self._ring, start % self._ring.size

    def listed(self, buffer: IntArray, num_pages: int) -> None:
        """Take the pages that were written there into the ring. O(1)."""
        assert buffer is self._ring, "pages are written where `room` said"
        self._count += num_pages
        if self.last_in_first_out:
            self._head = (self._head - num_pages) % self._ring.size

    def contents(self) -> IntArray:
        """All free pages in the order in which they would be taken."""
        at = (self._head + np.arange(self._count)) % self._ring.size
        parts = (self._ring[at], np.arange(self._fresh, self._num_pages + 1))
        return np.concatenate(parts if self.last_in_first_out else parts[::-1])


class PageBitmap:
    """Free pages in a bitmap in levels; the lowest ids are taken first, so that transfers find neighbours."""

    __slots__ = ("_num_pages", "_starts", "_words")

    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages
        sizes = [num_pages // 64 + 1]
        while sizes[-1] > 1:
            sizes.append((sizes[-1] + 63) // 64)
        self._starts = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        self._words = np.zeros(sum(sizes), dtype=np.uint64)
        self.clear()

    def clear(self) -> None:
        """Every page is free."""
        self._words.fill(0)
        bitmap.set_bits(self._words, self._starts, np.arange(1, self._num_pages + 1))

    def take(self, num_pages: int, table: PageTable, tag: int) -> IntArray:
        """Unlist the `num_pages` lowest pages and make them live: ascending. O(num_pages log N)."""
        pages = np.empty(num_pages, dtype=np.int64)
        bitmap.take_lowest(self._words, self._starts, pages)
        host.take(table.state, table.owner, pages, 0, num_pages, 0, 0, tag, pages)
        return pages

    def room(self, num_pages: int) -> tuple[IntArray, int]:
        """A buffer of its own; a bitmap has no order to write pages in."""
        return np.empty(num_pages, dtype=np.int64), 0

    def listed(self, buffer: IntArray, num_pages: int) -> None:
        """Set the pages' bits. O(num_pages log N)."""
        bitmap.set_bits(self._words, self._starts, buffer[:num_pages])

    def contents(self) -> IntArray:
        """All free pages, ascending. Raises `AuditError` when a summary level disagrees with the one below it."""
        ends = [*self._starts[1:].tolist(), self._words.size]
        levels = [self._words[a:b] for a, b in zip(self._starts.tolist(), ends, strict=True)]
        for below, above in pairwise(levels):
            if not np.array_equal(np.flatnonzero(below), _set_bits(above)):
                raise AuditError(
                    "a summary level of the free bitmap is stale. Only the queue's own methods may write to it."
                )
        return _set_bits(levels[0])


def _set_bits(words: WordArray) -> IntArray:
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
