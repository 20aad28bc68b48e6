"""Pages of a model that keeps the window of each request in a ring of its own, so that windows take no pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kvstead.kernels.arrays import Integers


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
