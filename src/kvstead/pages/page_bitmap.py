"""Sets of pages as bits, and one that hands out the lowest first, so that transfers find neighbours."""

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
        self._words, self._starts = empty_levels(num_pages)
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
        if not levels_agree(self._words, self._starts):
            raise AuditError("a summary level of the free bitmap is stale. Only its own methods may write to it.")
        return set_bits(self._words[: self._num_pages // 64 + 1])


def empty_levels(limit: int) -> tuple[WordArray, IntArray]:
    """(words, starts) of a bitmap in levels (`kvstead.kernels.bitmap`) with bits 0 .. `limit`, none of them set."""
    sizes = [limit // 64 + 1]
    while sizes[-1] > 1:
        sizes.append((sizes[-1] + 63) // 64)
    return np.zeros(sum(sizes), dtype=np.uint64), np.cumsum([0, *sizes[:-1]], dtype=np.int64)


def levels_agree(words: WordArray, starts: IntArray) -> bool:
    """Whether each level says which words of the one below are not zero."""
    ends = [*starts[1:].tolist(), words.size]
    levels = [words[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]
    return all(np.array_equal(np.flatnonzero(below), set_bits(above)) for below, above in pairwise(levels))


def set_bits(words: WordArray) -> IntArray:
    """The bits of one level that are set: int64[k], ascending."""
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
