"""Which kvstead allocator stands behind a pool of SGLang's, by the device that its slots live on.

                       on a CPU              on any other device
    one token a page   TokenAllocator        DeviceTokenAllocator
    pages              PagedAllocator        DevicePagedAllocator
    full and window    SplitSWAAllocator     DeviceSplitSWAAllocator
    logical and hot    HiSparseAllocator     DeviceHiSparseAllocator
    windows alone      PureSWAAllocator      PureSWAAllocator, with indices copied to the host at each free

Those on the host check every call. Those on a device read nothing back, so they cannot; with SGLANG_DEBUG_MEMORY_POOL=1
they note faults for the next audit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

import torch

from kvstead.allocators import (
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
from kvstead.integrations.sglang.allocator.ring_windows import RingAllocator

Device: TypeAlias = str | torch.device
OnePool: TypeAlias = PagedAllocator | DevicePagedAllocator
TwoPools: TypeAlias = SplitSWAAllocator | DeviceSplitSWAAllocator
HotPools: TypeAlias = HiSparseAllocator | DeviceHiSparseAllocator


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
