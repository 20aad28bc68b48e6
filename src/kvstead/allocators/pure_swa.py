"""The allocator of a model in which every layer slides: one pool, every slot its own window slot."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from kvstead.allocators.base import Segment
from kvstead.allocators.paged import PagedAllocator
from kvstead.allocators.swa import refuse_window_slot
from kvstead.kernels.arrays import Integers, to_device, to_host


class PureSWAAllocator(PagedAllocator):
    """A `PagedAllocator` with the frees, sizes and `window_slots` of an `SWAAllocator`, and one pool on both sides.

    The window side of a slot is the slot itself. So `free_swa` is `free`, and the second of the two raises
    `DoubleFree`: whoever frees a row leaves out what its window has left behind. `free_full` does nothing, whatever it
    is given.
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
        """Tokens that can be allocated now: the one pool's."""
        return self.available_size()

    def swa_available_size(self) -> int:
        """Tokens that can be allocated now: the one pool's."""
        return self.available_size()

    def free_swa(self, slots: Integers) -> None:
        """As `free`."""
        self.free(slots)

    def free_swa_segment(self, slots: Integers, *, start_pos: int) -> None:
        """As `free_segment`."""
        self.free_segment(slots, start_pos=start_pos)

    def free_swa_segments(self, pairs: Iterable[Segment]) -> None:
        """As `free_segments`."""
        self.free_segments(pairs)

    def free_full(self, slots: Integers) -> None:
        """Do nothing: there is no side but the window's."""

    def free_full_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Do nothing: there is no side but the window's."""

    def free_full_segments(self, pairs: Iterable[Segment]) -> None:
        """Do nothing: there is no side but the window's."""

    def window_slots(self, slots: Integers) -> torch.Tensor:
        """The slots themselves, -1 for -1: int64 on the device, in the shape of `slots`, a new tensor.

        Raises `ForeignPage` for anything but -1, padding and slots of the pool. O(slots).
        """
        array = to_host(slots)
        bad = np.flatnonzero((array < -1) | (array >= self.size + self.page_size))
        if bad.size:
            refuse_window_slot(int(array[bad[0]]), self.size + self.page_size)
        return to_device(array.copy(), self.device).reshape(np.shape(slots))
