"""Allocators of one pool whose free list lives on a device: pages of any size, and the page size of one token."""

from __future__ import annotations

import torch

from kvstead.allocators.device_allocator import DeviceAllocator
from kvstead.pages.device_free_list import DeviceRelease
from kvstead.pages.free_group import DefersFrees


class DevicePagedAllocator(DefersFrees[DeviceRelease], DeviceAllocator):
    """A `PagedAllocator` whose free list lives on `device`, with the same ids in the same order.

    size, page_size: as there. device: any that torch knows. order: `lifo`, `fifo` or `sorted` (see `DeviceFreeList`).
    index_dtype: of slots handed out, int64 or int32. checked: keep the state of every page on the device, too, and note
    the first fault there for the next `audit`.

    Waiting for the device: `audit`, and `free` at a page size above 1 unless it is told `num_pages`. Nothing else.

    Errors: what the host can see is refused and changes nothing (sizes, lengths, alignment, more pages freed than are
    held). What only the device could see is not: a fault that `audit` tells of has taken effect; clear the pool.

    Raises `InvalidSize` for a negative size, a page size below 1, an unknown order, or slots beyond `index_dtype`.
    """


class DeviceTokenAllocator(DevicePagedAllocator):
    """Slots one by one: `DevicePagedAllocator` with pages of one token, and by default first freed, first reused."""

    def __init__(
        self,
        size: int,
        *,
        device: str | torch.device = "cpu",
        order: str = "fifo",
        index_dtype: torch.dtype = torch.int64,
        checked: bool = False,
    ) -> None:
        super().__init__(size, 1, device=device, order=order, index_dtype=index_dtype, checked=checked)
