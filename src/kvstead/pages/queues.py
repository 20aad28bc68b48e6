"""In which order free pages are handed out again.

A queue holds page ids and no states; the page table does that. Pages that were never handed out are not stored at all:
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
from kvstead.kernels import bitmap
from kvstead.kernels.jit import IntArray, WordArray


class PageQueue(Protocol):
    """Free pages in some order. The caller never asks for more than there are."""

    def pop(self, num_pages: int) -> IntArray:
        """Take the next `num_pages` pages."""
        ...

    def push(self, pages: IntArray) -> None:
        """Put pages back; `pages` is copied."""
        ...

    def clear(self) -> None:
        """Every page is free, in ascending order."""
        ...

    def contents(self) -> IntArray:
        """All free pages in the order in which they would be taken. O(pages)."""
        ...


class PageRing:
    """Free pages in a ring; `last_in_first_out` decides at which end freed pages join."""

    __slots__ = ("_count", "_fresh", "_head", "_last_in_first_out", "_num_pages", "_ring")

    def __init__(self, num_pages: int, *, last_in_first_out: bool) -> None:
        self._num_pages = num_pages
        self._last_in_first_out = last_in_first_out
        self._ring: IntArray = np.empty(num_pages, dtype=np.int64)
        self.clear()

    def clear(self) -> None:
        """Forget the ring: all pages are fresh again."""
        self._head = 0
        self._count = 0
        self._fresh = 1

    def pop(self, num_pages: int) -> IntArray:
        """Take the next `num_pages` pages, int64[num_pages]."""
        fresh_left = self._num_pages + 1 - self._fresh
        reused = min(num_pages, self._count) if self._last_in_first_out else max(0, num_pages - fresh_left)
        if reused == num_pages:
            return self._pop_ring(num_pages)
        first = self._fresh
        self._fresh += num_pages - reused
        fresh = np.arange(first, self._fresh)
        if reused == 0:
            return fresh
        parts = (self._pop_ring(reused), fresh)
        return np.concatenate(parts if self._last_in_first_out else parts[::-1])

    def push(self, pages: IntArray) -> None:
        """Put pages back at the front (lifo) or the end (fifo), in the order given."""
        capacity = self._num_pages
        start = self._head - pages.size if self._last_in_first_out else self._head + self._count
        start %= capacity
        if self._last_in_first_out:
            self._head = start
        self._count += pages.size
        end = start + pages.size
        if end <= capacity:
            self._ring[start:end] = pages
        else:
            split = capacity - start
            self._ring[start:] = pages[:split]
            self._ring[: end - capacity] = pages[split:]

    def contents(self) -> IntArray:
        """All free pages in the order in which they would be taken."""
        at = (self._head + np.arange(self._count)) % max(self._num_pages, 1)
        parts = (self._ring[at], np.arange(self._fresh, self._num_pages + 1))
        return np.concatenate(parts if self._last_in_first_out else parts[::-1])

    def _pop_ring(self, num_pages: int) -> IntArray:
        start = self._head
        end = start + num_pages
        if end < self._num_pages:
            pages = self._ring[start:end].copy()
        else:
            end -= self._num_pages
            pages = np.concatenate((self._ring[start:], self._ring[:end]))
        self._head = end
        self._count -= num_pages
        return pages


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
        self.push(np.arange(1, self._num_pages + 1))

    def pop(self, num_pages: int) -> IntArray:
        """Take the `num_pages` lowest pages, int64[num_pages], ascending. O(num_pages log N)."""
        pages = np.empty(num_pages, dtype=np.int64)
        bitmap.take_lowest(self._words, self._starts, pages)
        return pages

    def push(self, pages: IntArray) -> None:
        """Put pages back."""
        bitmap.set_bits(self._words, self._starts, pages)

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
