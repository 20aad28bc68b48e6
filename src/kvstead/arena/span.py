"""Where one pool's pages lie, and the one way in which they move.

               lo                                        hi
    page  ... | U | U |   | U |   |   | U | U | U | U | U | ...      U used (live or parked)   blank: a hole
              |<- retreat(HIGH, 3): the used ones of this band ->|<- 3 ->|
                        go to the holes outside it, farthest first, and hi moves down by 3

A side is a sign, LOW = -1 or HIGH = +1. Everything here is written once for both, and for a pool that grows upward,
downward or both ways: an end is anchored on its own side, a middle one nowhere. A span is always trimmed: the page at
an edge that may move is used, so a span without used pages is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvstead.errors import AuditError
from kvstead.kernels import spans
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.spans import HIGH, LOW
from kvstead.pages.page_bitmap import empty_levels, levels_agree, set_bits


def inward(byte: int, side: int, page_bytes: int) -> int:
    """The page boundary at `byte`, or the next one away from `side`: rounded down for HIGH, up for LOW."""
    return side * (side * byte // page_bytes)


@dataclass(slots=True)
class Extent:
    """Pages `lo` to `hi` of a pool with `page_bytes` a page, `num_holes` of them free; its ids are `first` to `limit`.

    place: the side where the span is anchored, or 0. most: pages that can be used at once, as each needs a virtual id.
    """

    page_bytes: int
    first: int
    limit: int
    place: int
    lo: int
    hi: int
    num_holes: int = 0
    most: int = 2**62

    @property
    def num_used(self) -> int:
        """Pages that are live or parked."""
        return self.hi - self.lo - self.num_holes

    def edge(self, side: int) -> int:
        """The boundary on that side: `lo` or `hi`."""
        return self.hi if side > 0 else self.lo

    def shift(self, side: int, num_pages: int) -> None:
        """Move the edge on that side outward; a negative number moves it inward."""
        if side > 0:
            self.hi += num_pages
        else:
            self.lo -= num_pages


class Span:
    """An extent and its holes: which pages are taken, become holes, or move. Knows nothing of who owns a page.

    first, limit: its ids are `first` .. `limit` - 1. place: -1, 0 or 1. words, starts: the holes, a bitmap in levels
    (`kvstead.kernels.bitmap`), a bit a page.
    """

    __slots__ = ("extent", "starts", "words")

    def __init__(self, first: int, limit: int, place: int, page_bytes: int = 1) -> None:
        home = limit if place > 0 else first
        self.extent = Extent(page_bytes, first, limit, place, home, home)
        self.words, self.starts = empty_levels(limit)

    def take(self, num_pages: int, lo: int, hi: int) -> IntArray:
        """Hand out holes, nearest to the span's own end first, and all pages by which it grows to `lo` and `hi`.

        Those are so many that `num_pages` come out, int64[num_pages]. O(num_pages).
        """
        extent = self.extent
        grown_low, grown_high = extent.lo - lo, hi - extent.hi
        if extent.lo == extent.hi:  # an empty span is wherever it starts
            grown_low, grown_high = 0, hi - lo
        num_holes = num_pages - grown_low - grown_high
        assert 0 <= num_holes <= extent.num_holes, f"{num_holes} of {extent.num_holes} holes are wanted"
        pages = np.empty(num_pages, dtype=np.int64)
        if num_holes:
            spans.take_holes(self.words, self.starts, extent.place or LOW, pages[:num_holes])
            extent.num_holes -= num_holes
        if num_holes < num_pages:
            pages[num_holes : num_pages - grown_low] = np.arange(hi - grown_high, hi)
            pages[num_pages - grown_low :] = np.arange(lo, lo + grown_low)
            extent.lo, extent.hi = lo, hi
        return pages

    def release(self, v2p: IntArray, p2v: IntArray, v_pages: IntArray) -> tuple[int, bool]:
        """Unbind virtual pages (`PageMap`) and make their physical pages holes; those at an edge leave the span.

        Returns (-1, whether the span has shrunk); for a page not bound (its index, False), unchanged. O(pages).
        """
        extent = self.extent
        lo, hi = extent.lo, extent.hi
        bad, *edges = spans.release(v2p, p2v, v_pages, self.words, self.starts, lo, hi, extent.place)
        if bad >= 0:
            return bad, False
        extent.lo, extent.hi = edges
        shrunk = hi - lo - (extent.hi - extent.lo)
        extent.num_holes += v_pages.size - shrunk
        return bad, shrunk > 0

    def fresh_for(self, side: int, num_pages: int) -> int:
        """Pages beyond the opposite edge that `retreat` would need. O(num_pages)."""
        extent = self.extent
        size = extent.hi - extent.lo
        if num_pages >= size:
            return num_pages - extent.num_holes
        used = spans.count_used(self.words, *self._band(side, num_pages))
        return max(0, used - (extent.num_holes - (num_pages - used)))

    def retreat(self, side: int, num_pages: int) -> tuple[IntArray, IntArray]:
        """Give up the outermost `num_pages` pages on `side`: (src, dst), the pages to copy from and to, int64[k] each.

        `src` are the used pages of that band, which no packing could leave in place. `dst` are holes outside it and, if
        they run out, pages beyond the opposite edge, which must be free for that (`fresh_for`). With `num_pages` at
        least the whole span, all of it goes to a block beyond. No page is in both. O(num_pages + k).
        """
        extent = self.extent
        fresh = self.fresh_for(side, num_pages)
        band = self._band(side, min(num_pages, extent.hi - extent.lo))
        num_used = spans.count_used(self.words, *band)
        outside = extent.num_holes - (band[1] - band[0] - num_used)
        num_holes = min(outside, num_used)
        src, dst = np.empty((2, num_used), dtype=np.int64)
        extent.shift(side, -num_pages)
        extent.shift(-side, fresh)
        extent.num_holes = outside - num_holes
        assert extent.first <= extent.lo <= extent.hi <= extent.limit, f"no room to retreat by {num_pages} pages"
        start = extent.lo if side > 0 else extent.hi - (num_used - num_holes)
        edges = spans.retreat(
            self.words, self.starts, np.array(band), extent.lo, extent.hi, extent.place, -side, num_holes, start,
            src, dst,
        )  # fmt: skip
        extent.num_holes -= (edges[0] - extent.lo) + (extent.hi - edges[1])
        extent.lo, extent.hi = edges
        return src, dst

    def affordable(self, side: int, max_used: int) -> tuple[int, int]:
        """The longest band on `side` that can go into holes with `max_used` copies: (its pages, copies). O(band)."""
        extent = self.extent
        return spans.longest_band(self.words, extent.edge(side), side, extent.num_holes, max_used)

    def holes(self) -> IntArray:
        """All holes: int64[num_holes], ascending. O(limit)."""
        return set_bits(self.words[: self.extent.limit // 64 + 1])

    def clear(self) -> None:
        """No page is used any more. O(limit)."""
        extent = self.extent
        self.words.fill(0)
        extent.num_holes = 0
        extent.lo = extent.hi = extent.limit if extent.place > 0 else extent.first

    def audit(self) -> None:
        """Check edges, holes and their count against each other. Raises `AuditError`. O(limit)."""
        extent = self.extent
        if not extent.first <= extent.lo <= extent.hi <= extent.limit:
            raise AuditError(f"a span [{extent.lo}, {extent.hi}) lies outside [{extent.first}, {extent.limit}).")
        home = extent.edge(extent.place) if extent.place else 0
        if home != (extent.limit if extent.place > 0 else extent.first if extent.place else 0):
            raise AuditError(f"a span that is anchored at its end starts at {home}. Only its other edge moves.")
        holes = self.holes()
        inside = holes[(holes >= extent.lo) & (holes < extent.hi)]
        if not holes.size == inside.size == extent.num_holes:
            raise AuditError(
                f"span [{extent.lo}, {extent.hi}) counts {extent.num_holes} holes and has {holes.tolist()}. "
                "Only the span's own methods may change them."
            )
        loose = [page for side, page in ((LOW, extent.lo), (HIGH, extent.hi - 1)) if side != extent.place]
        if np.isin(loose, holes).any():
            raise AuditError(f"the span [{extent.lo}, {extent.hi}) has a hole at an edge. It was not trimmed.")
        if not levels_agree(self.words, self.starts):
            raise AuditError("a summary level of the holes is stale. Only the span's own methods may write to it.")

    def _band(self, side: int, num_pages: int) -> tuple[int, int]:
        extent = self.extent
        return (extent.hi - num_pages, extent.hi) if side > 0 else (extent.lo, extent.lo + num_pages)
