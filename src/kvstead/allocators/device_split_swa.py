"""The two sides of a `DeviceSWAAllocator` one by one, as `SplitSWAAllocator` has them on the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvstead.allocators.checks import whole_pages
from kvstead.allocators.device_swa import DeviceSWAAllocator
from kvstead.errors import InvalidSize
from kvstead.kernels.arrays import Integers
from kvstead.pages.device_free_list import DeviceRelease


class DeviceSplitSWAAllocator(DeviceSWAAllocator):
    """A `DeviceSWAAllocator` that hands out full pages without window pages, and window pages without full pages.

    As `SplitSWAAllocator`, but the slots of a call must be those of whole pages, page by page. Their values are not
    checked, and nothing waits for the device.
    """

    def __init__(
        self,
        full_size: int,
        swa_size: int,
        page_size: int,
        *,
        device: str | torch.device = "cpu",
        order: str = "lifo",
        index_dtype: torch.dtype = torch.int64,
        checked: bool = False,
    ) -> None:
        super().__init__(
            full_size, swa_size, page_size, device=device, order=order, index_dtype=index_dtype, checked=checked
        )
        self._loose = torch.zeros(self.num_window_pages + 1, dtype=torch.bool, device=self.device)

    def alloc_full(self, num_tokens: int) -> torch.Tensor | None:
        """Full pages without window pages: [num_tokens] slots, or None when short. Raises as `alloc`."""
        return self._slots(self._take_tail(whole_pages(num_tokens, self.page_size), 0))

    def alloc_window(self, num_tokens: int) -> torch.Tensor | None:
        """Loose window pages: [num_tokens] window slots, or None when short. Raises as `alloc`."""
        pages = self._windows.take(whole_pages(num_tokens, self.page_size))
        if pages is not None:
            self._mark(pages, loose=True)
        return self._slots(pages)

    def free_window(self, window_slots: Integers) -> None:
        """Free the loose window pages of `window_slots`. Raises `DoubleFree` for more pages than are held."""
        pages = self._segment(self._windows, window_slots)
        if pages.numel():
            self._windows.require_held(pages.numel())
            self._leave(self._windows, pages)
            self._mark(pages, loose=False)

    def detach_windows(self, slots: Integers) -> None:
        """Unlink the window pages of the pages of `slots`, which become loose; pages without one are passed over."""
        pages = self._segment(self._pool, slots)
        self._mark(self._links.of(pages), loose=True)
        self._links.unlink(pages)

    def attach_windows(self, slots: Integers, window_slots: Integers) -> None:
        """Link the loose window page of each window slot to the page of the full slot beside it.

        Raises `InvalidSize` for different numbers of slots.
        """
        full, window = self._transfer.indices(slots), self._transfer.indices(window_slots)
        if full.numel() != window.numel():
            raise InvalidSize(f"{full.numel()} slots for {window.numel()} window slots. Pass them in pairs.")
        pages, linked = self._segment(self._pool, full), self._segment(self._windows, window)
        self._links.link(pages, linked)
        self._mark(linked, loose=False)

    def window_releases(self) -> Sequence[DeviceRelease]:
        """What the open group holds of the window side, one entry a call; nothing without a group."""
        return [release for release in self.free_group or () if release.pool is self._windows]

    def clear(self) -> None:
        """Make every slot of both sides free, no matter who holds it; an open group is dropped."""
        super().clear()
        self._loose.fill_(0)

    def _held_windows(self) -> torch.Tensor:
        return torch.cat((super()._held_windows(), self._loose[1:].nonzero()[:, 0] + 1))

    def _mark(self, windows: torch.Tensor, *, loose: bool) -> None:
        """Note whether window pages are loose; entry 0 stands for no page."""
        self._loose.index_fill_(0, windows.clamp(0, self.num_window_pages).long(), loose)

    def _slots(self, pages: torch.Tensor | None) -> torch.Tensor | None:
        return None if pages is None else self._ops.expand_pages(pages, self.page_size)
