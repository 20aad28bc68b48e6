"""Allocators of one pool of its own bytes: pages of any size, of one token, and where every layer slides."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from kvstead.allocators.allocator import Allocator
from kvstead.allocators.checks import own_pages, state_pages
from kvstead.allocators.growth import Segment
from kvstead.kernels.arrays import Integers, to_device, to_host
from kvstead.pages import Release
from kvstead.pages.free_group import DefersFrees
from kvstead.pages.page_table import refuse_slot


class PagedAllocator(DefersFrees[Release], Allocator):
    """Slots in pages of `page_size`, for rows that grow page by page.

    size: slots; a remainder that fills no page is unusable (`.size` is the floored figure). page_size: any positive
    number. num_states: slots for recurrent states beside them, in a pool of their own (`states`; None: no states).
    device: where handed-out slots live. order: `lifo`, `fifo` or `lowest`, see `FreeList`; a new pool starts at page 1.

    Raises `InvalidSize` for a negative size, a page size below 1 or an unknown order.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        *,
        num_states: int | None = None,
        device: str | torch.device = "cpu",
        order: str = "lifo",
    ) -> None:
        super().__init__(own_pages(size, page_size, order), page_size, device, states=state_pages(num_states, order))


class TokenAllocator(PagedAllocator):
    """Slots one by one: `PagedAllocator` with pages of one token, and by default first freed, first reused."""

    def __init__(self, size: int, *, device: str | torch.device = "cpu", order: str = "fifo") -> None:
        super().__init__(size, 1, device=device, order=order)


class PureSWAAllocator(PagedAllocator):
    """A `PagedAllocator` with the frees, sizes and `window_slots` of an `SWAAllocator`, and one pool for both sides.

    The window side of a slot is the slot itself. So `free_swa` is `free`, and a slot freed by both raises `DoubleFree`:
    free of a row only what its window has not left behind. `free_full` does nothing. Arguments as for `PagedAllocator`.
    """

    def __init__(
        self,
        size: int,
        page_size: int = 1,
        *,
        num_states: int | None = None,
        device: str | torch.device = "cpu",
        order: str = "fifo",
    ) -> None:
        super().__init__(size, page_size, num_states=num_states, device=device, order=order)

    def full_available_size(self) -> int:
        """Tokens that can be allocated now, as `available_size`."""
        return self._pool.num_free * self.page_size

    swa_available_size = full_available_size
    free_swa, free_swa_segment, free_swa_segments = Allocator.free, Allocator.free_segment, Allocator.free_segments

    def free_full(self, slots: Integers) -> None:
        """Do nothing: the window side is the only side."""

    def free_full_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Do nothing: the window side is the only side."""

    def free_full_segments(self, pairs: Iterable[Segment]) -> None:
        """Do nothing: the window side is the only side."""

    def window_slots(self, slots: Integers) -> torch.Tensor:
        """The slots themselves, -1 for -1: int64 on the device, in the shape of `slots`, a new tensor.

        Raises `ForeignPage` for anything but -1, padding and slots of the pool. O(slots).
        """
        array = to_host(slots)
        bad = np.flatnonzero((array < -1) | (array >= self.size + self.page_size))
        if bad.size:
            refuse_slot(int(array[bad[0]]), self.size + self.page_size)
        return to_device(array.copy(), self.device).reshape(np.shape(slots))
