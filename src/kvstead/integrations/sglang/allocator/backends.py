"""Which kvstead allocator stands behind a pool of SGLang's, by the device that its slots live on.

                       on a CPU              on any other device
    one token a page   TokenAllocator        DeviceTokenAllocator
    pages              PagedAllocator        DevicePagedAllocator
    full and window    SplitSWAAllocator     DeviceSplitSWAAllocator
    logical and hot    HiSparseAllocator     DeviceHiSparseAllocator
    windows alone      PureSWAAllocator      PureSWAAllocator, with indices copied to the host at each free
    windows in rings   RingAllocator over an allocator of one token a page, or of pages

Those on the host check every call. Those on a device read nothing back, so they cannot; with SGLANG_DEBUG_MEMORY_POOL=1
they note faults for the next audit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

from kvstead.allocators import (
    ArenaAllocator,
    ArenaSWAAllocator,
    CompressedHiSparseAllocator,
    DeviceHiSparseAllocator,
    DevicePagedAllocator,
    DeviceSplitSWAAllocator,
    DeviceTokenAllocator,
    HiSparseAllocator,
    PagedAllocator,
    PureSWAAllocator,
    SplitSWAAllocator,
    TokenAllocator,
)
from kvstead.kernels.arrays import Integers

Device: TypeAlias = str | torch.device
OnePool: TypeAlias = PagedAllocator | DevicePagedAllocator
TwoPools: TypeAlias = SplitSWAAllocator | DeviceSplitSWAAllocator
HotPools: TypeAlias = HiSparseAllocator | DeviceHiSparseAllocator

# What the parts of SGLang's allocators call. Slots are tensors on the pool's device, lengths of rows are on the host.
WithLooseWindows: TypeAlias = TwoPools | CompressedHiSparseAllocator
WithWindows: TypeAlias = WithLooseWindows | ArenaSWAAllocator
WithHotSlots: TypeAlias = HotPools | CompressedHiSparseAllocator
Core: TypeAlias = OnePool | WithWindows | WithHotSlots | ArenaAllocator


class RingAllocator:
    """An allocator of one pool with the calls of a `SplitSWAAllocator`, whose window side is empty.

    pages: the allocator of that pool, which answers all calls that are not about windows. num_rows: how many more
    requests fit. ring_size: window slots of each request.
    """

    def __init__(self, pages: Any, num_rows: Callable[[], int], ring_size: int) -> None:
        self._pages = pages
        self._num_rows = num_rows
        self._ring_size = ring_size
        self.full_available_size = pages.available_size
        self.alloc_full = pages.alloc
        self.free_full, self.free_full_segment = pages.free, pages.free_segment
        self.free_full_segments = pages.free_segments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pages, name)

    def swa_available_size(self) -> int:
        """Window slots of the requests that fit."""
        return self._num_rows() * self._ring_size

    def window_slots(self, slots: Integers) -> torch.Tensor:
        """0 for every slot, in the shape of `slots`."""
        return torch.zeros(np.shape(slots), dtype=torch.int64, device=self._pages.device)

    def window_free_pages(self) -> torch.Tensor:
        """No pages, as int64[0]: the rings are not in pages."""
        return torch.empty(0, dtype=torch.int64, device=self._pages.device)

    def window_releases(self) -> list[Any]:
        """Window frees of the open group: always none."""
        return []

    def alloc_window(self, num_tokens: int) -> torch.Tensor | None:
        """Return None: no window slots can be allocated alone."""
        return None

    def alloc_extend_swa_tail(
        self, prefix_lens: Integers, seq_lens: Integers, last_locs: Integers, tail_len: int
    ) -> torch.Tensor | None:
        """As `alloc_extend`; the tail takes no pages."""
        slots: torch.Tensor | None = self._pages.alloc_extend(prefix_lens, seq_lens, last_locs)
        return slots

    def free_swa(self, slots: Integers) -> None:
        """Do nothing: the ring belongs to the request until it ends."""

    def free_swa_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Do nothing: the ring belongs to the request until it ends."""


def is_resident(device: Device) -> bool:
    """Whether a pool on `device` has its free list there too."""
    return torch.device(device).type != "cpu"


def is_checked() -> bool:
    """Whether the user asks for checks on the device."""
    return os.environ.get("SGLANG_DEBUG_MEMORY_POOL", "").lower() in {"1", "true"}


def token_pool(size: int, device: Device, need_sort: bool) -> OnePool:
    """Slots one by one; freed slots queue behind all others."""
    if is_resident(device):
        order = "sorted" if need_sort else "fifo"
        return DeviceTokenAllocator(size, device=device, order=order, checked=is_checked())
    return TokenAllocator(size, device=device, order="lowest" if need_sort else "fifo")


def paged_pool(size: int, page_size: int, device: Device, need_sort: bool) -> OnePool:
    """Slots in pages, of one token too; freed pages are reused first."""
    if is_resident(device):
        order = "sorted" if need_sort else "lifo"
        return DevicePagedAllocator(size, page_size, device=device, order=order, checked=is_checked())
    return PagedAllocator(size, page_size, device=device, order="lowest" if need_sort else "lifo")


def window_pools(full_size: int, swa_size: int, page_size: int, device: Device, need_sort: bool) -> TwoPools:
    """Pages with window pages, reused as those of one pool of that page size."""
    order = "fifo" if page_size == 1 else "lifo"
    sizes = (full_size, swa_size, page_size)
    if is_resident(device):
        order = "sorted" if need_sort else order
        return DeviceSplitSWAAllocator(*sizes, device=device, order=order, checked=is_checked())
    return SplitSWAAllocator(*sizes, device=device, order="lowest" if need_sort else order)


def hot_pools(size: int, page_size: int, device: Device, need_sort: bool, ratio: int) -> HotPools:
    """`size` device slots and `ratio` times as many logical ones, in pages; freed pages are reused first."""
    if is_resident(device):
        order = "sorted" if need_sort else "lifo"
        return DeviceHiSparseAllocator(size, page_size, ratio=ratio, device=device, order=order, checked=is_checked())
    return HiSparseAllocator(size, page_size, ratio=ratio, device=device, order="lowest" if need_sort else "lifo")


def ring_pool(
    size: int, page_size: int, device: Device, need_sort: bool, num_rows: Callable[[], int], ring_size: int
) -> RingAllocator:
    """Pages whose windows lie in a ring of each request's own."""
    pages = token_pool(size, device, need_sort) if page_size == 1 else paged_pool(size, page_size, device, need_sort)
    return RingAllocator(pages, num_rows, ring_size)


def pure_window_pool(size: int, page_size: int, device: Device, need_sort: bool) -> PureSWAAllocator:
    """Pages that are their own window pages; freed slots queue behind all others."""
    return PureSWAAllocator(size, page_size, device=device, order="lowest" if need_sort else "fifo")
