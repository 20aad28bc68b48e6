"""The two sides of a windowed allocator one by one, for engines that bring either side in from elsewhere.

full page       1    2    3    4            `alloc_full`: pages without window pages
window_pages    7    0    0    5            `alloc_window`: window pages that are linked to no full page, *loose* ones
                     ^                      `attach_windows`: link a loose page
             loose: 6                       `detach_windows`: unlink a page, which becomes loose
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from kvstead.allocators.checks import whole_pages
from kvstead.allocators.swa import SWAAllocator, WindowSide
from kvstead.errors import ForeignPage, InvalidSize, MisalignedSegment, UseAfterFree, WindowTaken
from kvstead.kernels import host
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, to_host
from kvstead.pages import FreeList, LinkedPool, PageTable, Release


class LooseWindowPool(LinkedPool):
    """A linked pool some of whose live pages are linked to no page yet. loose: bool[num_pages + 1], which those are."""

    __slots__ = ("loose",)

    def __init__(self, name: str, pool: FreeList, pages: PageTable) -> None:
        super().__init__(name, pool, pages)
        self.loose = np.zeros(pool.num_pages + 1, dtype=np.bool_)

    def held(self) -> IntArray:
        """The live pages that links and loose pages account for: int64[k], in any order. O(pages)."""
        return np.concatenate((super().held(), np.flatnonzero(self.loose)))

    def clear(self) -> None:
        """Unlink every page; none is loose."""
        super().clear()
        self.loose[:] = False

    def require_loose(self, page: int) -> None:
        """Raise unless the page is live and loose: `ForeignPage`, `DoubleFree` or `WindowTaken`."""
        table = self.pool.table
        if not 0 < page <= table.num_pages or table.state[page] != host.LIVE:
            table.refuse(page)
        if not self.loose[page]:
            holder = int(np.flatnonzero(self.linked == page)[0])
            raise WindowTaken(f"window page {page} is linked to page {holder}. Free or detach it through that page.")

    def require_attachable(self, page: int, window: int) -> None:
        """Raise unless the two are linked already, or can be."""
        if not 0 < page <= self.pages.num_pages:
            raise ForeignPage(
                f"page {page} does not belong to this pool (1 .. {self.pages.num_pages}). Attach to live pages."
            )
        if self.pages.state[page] != host.LIVE:
            raise UseAfterFree(f"page {page} is not live. Attach to pages that rows or the cache hold.")
        held = int(self.linked[page])
        if not held:
            self.require_loose(window)
        elif held != window:
            raise WindowTaken(f"page {page} has window page {held} already. Free that first.")


class LooseWindows(WindowSide):
    """What a windowed allocator with a `LooseWindowPool` can do besides."""

    free_group: list[Release] | None
    _slots: Callable[[IntArray], torch.Tensor]

    def alloc_full(self, num_tokens: int) -> torch.Tensor | None:
        """Full pages without window pages: int64[num_tokens] slots, or None when short. Raises as `alloc`."""
        pages = self._take(whole_pages(num_tokens, self.page_size), 0, 0)
        return None if pages is None else self._slots(pages)

    def alloc_window(self, num_tokens: int) -> torch.Tensor | None:
        """Loose window pages: int64[num_tokens] window slots, or None when short. Raises as `alloc`."""
        link = self._loose_pool()
        pages = link.pool.take(whole_pages(num_tokens, self.page_size))
        if pages is None:
            return None
        link.loose[pages] = True
        return self._slots(pages)

    def free_window(self, window_slots: Integers) -> None:
        """Free the loose window pages that `window_slots` lie in, each once, in the order first seen.

        Changes nothing if it raises `ForeignPage` or `DoubleFree` (nobody holds the page) or `WindowTaken` (linked).
        """
        link = self._loose_pool()
        pages = list(dict.fromkeys((to_host(window_slots) // self.page_size).tolist()))
        for page in pages:
            link.require_loose(page)
        if pages:
            self._release(link.pool, np.array(pages, dtype=np.int64))
            link.loose[pages] = False

    def detach_windows(self, slots: Integers) -> None:
        """Unlink the window pages of the pages that `slots` lie in, which become loose.

        Pages without one are passed over. Raises `ForeignPage` for padding or a slot outside the pool.
        """
        link = self._loose_pool()
        link.loose[link.unlink(np.unique(to_host(slots) // self.page_size))] = True

    def attach_windows(self, slots: Integers, window_slots: Integers) -> None:
        """Link the loose window page of each window slot to the page of the full slot beside it.

        slots, window_slots: as many of each, at the same offsets, any part of the pages they lie in. Pairs that are
        already linked are left unchanged. Raises `InvalidSize` for different numbers, `MisalignedSegment` for other
        offsets or a page paired with two, `ForeignPage` or `UseAfterFree` for a full page that nobody holds,
        `WindowTaken` for one with another window page or a window page that is linked elsewhere, `DoubleFree` for a
        window page that nobody holds; then nothing is changed.
        """
        full, window = to_host(slots), to_host(window_slots)
        if full.size != window.size:
            raise InvalidSize(f"{full.size} slots for {window.size} window slots. Pass them in pairs.")
        link = self._loose_pool()
        pairs = _page_pairs(full, window, self.page_size)
        for page, window_page in pairs.tolist():
            link.require_attachable(page, window_page)
        link.linked[pairs[:, 0]] = pairs[:, 1]
        link.loose[pairs[:, 1]] = False

    def window_releases(self) -> Sequence[Release]:
        """What the open group holds of the window side, one entry a call; nothing without a group."""
        return [release for release in self.free_group or () if release.pool is self._window.pool]

    def _loose_pool(self) -> LooseWindowPool:
        assert isinstance(self._window, LooseWindowPool), "the constructor makes it one"
        return self._window


class SplitSWAAllocator(LooseWindows, SWAAllocator):
    """An `SWAAllocator` that hands out full pages without window pages, and window pages without full pages.

    The caller holds a loose window page until it is attached or freed with `free_window`; it counts as live. Everything
    else is as for an `SWAAllocator`, the arguments too.
    """

    _link_type = LooseWindowPool


def _page_pairs(full: IntArray, window: IntArray, page_size: int) -> IntArray:
    """int64[k, 2]: the pairs of pages, each once."""
    pairs = np.unique(np.stack((full // page_size, window // page_size), axis=1), axis=0)
    if np.any(full % page_size != window % page_size) or any(np.unique(side).size < len(pairs) for side in pairs.T):
        raise MisalignedSegment(
            f"full slots {full[:8].tolist()} .. and window slots {window[:8].tolist()} .. do not match page by page of "
            f"{page_size} and offset by offset. Pass the same stretch of a row on both sides."
        )
    return pairs
