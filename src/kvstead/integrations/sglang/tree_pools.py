"""Where the slots of a prefix tree come from: an allocator of ours, any of SGLang's, or thin air."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kvstead.allocators import Allocator
from kvstead.errors import LayoutError
from kvstead.kernels import host
from kvstead.kernels.array_types import IntArray
from kvstead.prefix import SlotPool

_MANY_SLOTS = 1 << 26  # of a tree without memory; a byte each, which the system gives only as they are used


def pool_of(allocator: Any, page_size: int) -> SlotPool:
    """The pool behind an allocator: one of ours, any of SGLang's, or none.

    Raises `LayoutError` when its pages are not of `page_size`.
    """
    if allocator is None:
        return UnboundPool(page_size)
    core = getattr(allocator, "core", None)
    pool: SlotPool = core if isinstance(core, Allocator) else EnginePool(allocator)
    if pool.page_size != page_size:
        raise LayoutError(
            f"a tree of pages of {page_size} tokens cannot own pages of {pool.page_size}. Give it the page size of its "
            "allocator."
        )
    return pool


def slots_of(pages: IntArray, page_size: int) -> IntArray:
    """The slots of pages in order, int64[pages * page_size]."""
    slots = np.empty(pages.size * page_size, dtype=np.int64)
    host.expand_pages(pages, page_size, slots)
    return slots


class EnginePool:
    """The slots of an allocator that is not ours. What it raises comes through."""

    def __init__(self, allocator: Any) -> None:
        self.page_size: int = allocator.page_size
        self.num_pages: int = allocator.size_full // allocator.page_size
        self._allocator = allocator

    @property
    def free_group(self) -> object | None:
        """Its open group."""
        group: object | None = self._allocator.free_group
        return group

    def free_segment(self, slots: IntArray, *, start_pos: int) -> None:
        """Give whole pages back."""
        self._allocator.free_segment(torch.from_numpy(slots).to(self._allocator.device), start_pos=start_pos)


class UnboundPool:
    """Slots that stand for nothing, as many as anybody wants, for trees that only compare keys."""

    free_group = None

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = _MANY_SLOTS // page_size
        self._num_used = 0
        self._free: list[int] = []

    def take(self, num_pages: int) -> IntArray:
        """The slots of so many pages, used ones first."""
        num_old = min(num_pages, len(self._free))
        old = self._free[len(self._free) - num_old :]
        del self._free[len(self._free) - num_old :]
        first = self._num_used + 1
        self._num_used += num_pages - num_old
        return slots_of(np.array([*old, *range(first, self._num_used + 1)], dtype=np.int64), self.page_size)

    def free_segment(self, slots: IntArray, *, start_pos: int) -> None:
        """Take whole pages back."""
        self._free.extend((slots[:: self.page_size] // self.page_size).tolist())
