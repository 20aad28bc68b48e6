"""A set of page ids that hands out the lowest first, so that transfers find neighbours."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from kvstead.errors import AuditError
from kvstead.kernels import bitmap
from kvstead.kernels.array_types import IntArray, WordArray


class PageBitmap:
    """Which of pages 1 .. `num_pages` are free: a bit each, under levels that say which words below are not zero."""

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
        """Make every page free. O(pages)."""
        self._words.fill(0)
        bitmap.set_bits(self._words, self._starts, np.arange(1, self._num_pages + 1))

    def take(self, out: IntArray) -> None:
        """Move the lowest `out.size` pages to `out`, ascending; there must be that many. O(out.size log N)."""
        bitmap.take_lowest(self._words, self._starts, out)

    def put(self, pages: IntArray) -> None:
        """Add pages. O(pages log N)."""
        bitmap.set_bits(self._words, self._starts, pages)

    def contents(self) -> IntArray:
        """All free pages, ascending: int64[k]. Raises `AuditError` when a level disagrees with the one below it."""
        ends = [*self._starts[1:].tolist(), self._words.size]
        levels = [self._words[a:b] for a, b in zip(self._starts.tolist(), ends, strict=True)]
        for below, above in pairwise(levels):
            if not np.array_equal(np.flatnonzero(below), _set_bits(above)):
                raise AuditError("a summary level of the free bitmap is stale. Only its own methods may write to it.")
        return _set_bits(levels[0])


def _set_bits(words: WordArray) -> IntArray:
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
