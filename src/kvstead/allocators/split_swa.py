"""The two sides of an `SWAAllocator` one by one, for engines that bring either side in from elsewhere.

full page       1    2    3    4            `alloc_full`: pages without a peer
window_pages    7    0    0    5            `alloc_window`: window pages without a full page, *loose* ones
                     ^                      `attach_windows`: a loose page becomes a peer
             loose: 6                       `detach_windows`: a peer becomes loose
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kvstead.allocators.checks import whole_pages
from kvstead.allocators.paged import all_slots
from kvstead.allocators.swa import SWAAllocator
from kvstead.errors import ForeignPage, InvalidSize, MisalignedSegment, UseAfterFree, WindowTaken
from kvstead.kernels import host
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, to_device, to_host
from kvstead.pages import FreeList, Release


class SplitSWAAllocator(SWAAllocator):
    """An `SWAAllocator` that hands out full pages without peers, and window pages without full pages.

    A loose window page is its holder's until it is attached, or given back with `free_window`; it counts as live. All
    else is as for an `SWAAllocator`, and so are the arguments.
    """

    def alloc_full(self, num_tokens: int) -> torch.Tensor | None:
        """Full pages without peers: int64[num_tokens] slots, or None when short. Raises as `alloc`."""
        pages = self._take_tail(whole_pages(num_tokens, self.page_size), 0)
        return None if pages is None else to_device(all_slots(pages, self.page_size), self.device)

    def alloc_window(self, num_tokens: int) -> torch.Tensor | None:
        """Loose window pages: int64[num_tokens] window slots, or None when short. Raises as `alloc`."""
        pages = self._windows.take(whole_pages(num_tokens, self.page_size))
        if pages is None:
            return None
        self._loose[pages] = True
        return to_device(all_slots(pages, self.page_size), self.device)

    def free_window(self, window_slots: Integers) -> None:
        """Give back the loose window pages that `window_slots` lie in, each once, in the order first seen.

        Raises `ForeignPage` or `DoubleFree` for a page that nobody holds, `WindowTaken` for a peer; then nothing is
        changed.
        """
        pages = list(dict.fromkeys((to_host(window_slots) // self.page_size).tolist()))
        for page in pages:
            self._require_loose(page)
        if pages:
            self._free_pages(self._windows, np.array(pages, dtype=np.int64))
            self._loose[pages] = False

    def detach_windows(self, slots: Integers) -> None:
        """Make the peers of the pages that `slots` lie in loose; pages without a peer are passed over.

        Raises `ForeignPage` for padding or a slot outside the pool.
        """
        self._loose[self._unmap_from(self.window_pages, np.unique(to_host(slots) // self.page_size))] = True

    def attach_windows(self, slots: Integers, window_slots: Integers) -> None:
        """Make loose window pages peers: that of each window slot of the page of the full slot beside it.

        slots, window_slots: of the same number, the same offsets, and any part of the pages they lie in. A pair that is
        one already stays. Raises `InvalidSize` for different numbers, `MisalignedSegment` for other offsets or a page
        paired with two, `ForeignPage` or `UseAfterFree` for a full page that nobody holds, `WindowTaken` for one with
        another peer or a window page that is another's peer, `DoubleFree` for a window page that nobody holds; then
        nothing is changed.
        """
        full, window = to_host(slots), to_host(window_slots)
        if full.size != window.size:
            raise InvalidSize(f"{full.size} slots for {window.size} window slots. Pass them in pairs.")
        pairs = self._page_pairs(full, window)
        for page, peer in pairs.tolist():
            self._require_fit(page, peer)
        self.window_pages[pairs[:, 0]] = pairs[:, 1]
        self._loose[pairs[:, 1]] = False

    def window_releases(self) -> Sequence[Release]:
        """What the open group holds of the window side, one entry a call; nothing without a group."""
        return [release for release in self.free_group or () if release.pool is self._windows]

    def clear(self) -> None:
        """Every slot of both sides is free again, whoever held it; an open group is dropped."""
        super().clear()
        self._loose[:] = False

    def _pair(self, window_pages: FreeList) -> None:
        super()._pair(window_pages)
        self._loose = np.zeros(window_pages.num_pages + 1, dtype=np.bool_)

    def _held_windows(self) -> IntArray:
        return np.concatenate((super()._held_windows(), np.flatnonzero(self._loose)))

    def _page_pairs(self, full: IntArray, window: IntArray) -> IntArray:
        """int64[k, 2]: the pairs of pages, each once."""
        size = self.page_size
        pairs = np.unique(np.stack((full // size, window // size), axis=1), axis=0)
        if np.any(full % size != window % size) or any(np.unique(side).size < len(pairs) for side in pairs.T):
            raise MisalignedSegment(
                f"full slots {full[:8].tolist()} .. do not lie beside window slots {window[:8].tolist()} .., page by "
                f"page of {size} and offset by offset. Pass the same stretch of a row on both sides."
            )
        return pairs

    def _require_fit(self, page: int, peer: int) -> None:
        """Raise unless the two are peers, or can be made so."""
        if not 0 < page <= self.num_pages:
            raise ForeignPage(f"page {page} is none of this pool's (1 .. {self.num_pages}). Attach to live pages.")
        if self._free_list.table.state[page] != host.LIVE:
            raise UseAfterFree(f"page {page} is held by nobody. Attach to pages of live rows or nodes.")
        held = int(self.window_pages[page])
        if not held:
            self._require_loose(peer)
        elif held != peer:
            raise WindowTaken(f"page {page} has window page {held} already. Free that first.")

    def _require_loose(self, peer: int) -> None:
        """Raise unless somebody holds the window page, and not as a peer."""
        table = self._windows.table
        if not 0 < peer <= self.num_window_pages or table.state[peer] != host.LIVE:
            table.refuse(peer)
        if not self._loose[peer]:
            page = int(np.flatnonzero(self.window_pages == peer)[0])
            raise WindowTaken(f"window page {peer} is the peer of page {page}. Free or detach it through that.")
