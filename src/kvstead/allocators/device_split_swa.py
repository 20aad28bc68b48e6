"""The two sides of a `DeviceSWAAllocator` one by one, as `SplitSWAAllocator` has them on the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvstead.allocators.checks import whole_pages
from kvstead.allocators.device_swa import DeviceSWAAllocator
from kvstead.errors import InvalidSize
from kvstead.kernels.arrays import Integers
from kvstead.pages.device_free_list import DeviceFreeList, DeviceRelease


class DeviceSplitSWAAllocator(DeviceSWAAllocator):
    """A `DeviceSWAAllocator` that hands out full pages without peers, and window pages without full pages.

    As `SplitSWAAllocator`, which says what is meant, but that slots are to be those of whole pages, page by page, and
    are taken at their word: nothing waits for the device.
    """

    def alloc_full(self, num_tokens: int) -> torch.Tensor | None:
        """Full pages without peers: [num_tokens] slots, or None when short. Raises as `alloc`."""
        return self._slots(self._take_tail(whole_pages(num_tokens, self.page_size), 0))

    def alloc_window(self, num_tokens: int) -> torch.Tensor | None:
        """Loose window pages: [num_tokens] window slots, or None when short. Raises as `alloc`."""
        pages = self._windows.take(whole_pages(num_tokens, self.page_size))
        if pages is not None:
            self._mark(pages, loose=True)
        return self._slots(pages)

    def free_window(self, window_slots: Integers) -> None:
        """Give back the loose window pages of `window_slots`. Raises `DoubleFree` for more pages than are held."""
        pages = self._segment(self._windows, window_slots)
        if pages.numel():
            self._windows.require_held(pages.numel())
            self._give(self._windows, pages)
            self._mark(pages, loose=False)

    def detach_windows(self, slots: Integers) -> None:
        """Make the peers of the pages of `slots` loose; pages without a peer are passed over."""
        pages = self._segment(self._free_list, slots)
        self._mark(self._peers.of(pages), loose=True)
        self._peers.drop(pages)

    def attach_windows(self, slots: Integers, window_slots: Integers) -> None:
        """Make loose window pages peers: that of each window slot of the page of the full slot beside it.

        Raises `InvalidSize` for different numbers of slots.
        """
        full, window = self._sender.indices(slots), self._sender.indices(window_slots)
        if full.numel() != window.numel():
            raise InvalidSize(f"{full.numel()} slots for {window.numel()} window slots. Pass them in pairs.")
        pages, peers = self._segment(self._free_list, full), self._segment(self._windows, window)
        self._peers.pair(pages, peers)
        self._mark(peers, loose=False)

    def window_releases(self) -> Sequence[DeviceRelease]:
        """What the open group holds of the window side, one entry a call; nothing without a group."""
        return [release for release in self.free_group or () if release.pool is self._windows]

    def clear(self) -> None:
        """Every slot of both sides is free again, whoever held it; an open group is dropped."""
        super().clear()
        self._loose.fill_(0)

    def _pair(self, window_pages: DeviceFreeList) -> None:
        super()._pair(window_pages)
        self._loose = torch.zeros(window_pages.num_pages + 1, dtype=torch.bool, device=self.device)

    def _held_windows(self) -> torch.Tensor:
        return torch.cat((super()._held_windows(), self._loose[1:].nonzero()[:, 0] + 1))

    def _mark(self, windows: torch.Tensor, *, loose: bool) -> None:
        """Say of window pages whether they are loose; entry 0 stands for no page."""
        self._loose.index_fill_(0, windows.clamp(0, self.num_window_pages).long(), loose)

    def _slots(self, pages: torch.Tensor | None) -> torch.Tensor | None:
        return None if pages is None else self._ops.expand_pages(pages, self.page_size)
