"""Pages of a model whose windows lie in a ring of each request's own: windows take no pages at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kvstead.kernels.arrays import Integers


class RingAllocator:
    """An allocator of one pool, with the calls of a `SplitSWAAllocator` that has nothing on its window side.

    pages: that pool's; what is not about windows goes to it. num_rows: says how many more requests there is room for.
    ring_size: window slots of each.
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
        """Window slots of the requests that there is room for."""
        return self._num_rows() * self._ring_size

    def window_slots(self, slots: Integers) -> torch.Tensor:
        """0 for every slot, in the shape of `slots`."""
        return torch.zeros(np.shape(slots), dtype=torch.int64, device=self._pages.device)

    def window_free_pages(self) -> torch.Tensor:
        """There are none: int64[0]."""
        return torch.empty(0, dtype=torch.int64, device=self._pages.device)

    def window_releases(self) -> list[Any]:
        """Nothing ever waits."""
        return []

    def alloc_window(self, num_tokens: int) -> torch.Tensor | None:
        """None: there are none."""
        return None

    def alloc_extend_swa_tail(
        self, prefix_lens: Integers, seq_lens: Integers, last_locs: Integers, tail_len: int
    ) -> torch.Tensor | None:
        """As `alloc_extend`, wherever the tail begins."""
        slots: torch.Tensor | None = self._pages.alloc_extend(prefix_lens, seq_lens, last_locs)
        return slots

    def free_swa(self, slots: Integers) -> None:
        """Do nothing: the ring is the request's until it goes."""

    def free_swa_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Do nothing: the ring is the request's until it goes."""
