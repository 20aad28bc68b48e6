"""Where the slots of a prefix tree come from: a kvstead allocator, one of SGLang's, or none at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kvstead.allocators import Allocator
from kvstead.allocators.swa import WindowSide
from kvstead.errors import LayoutError
from kvstead.integrations.sglang.attribute_of import AttributeOf
from kvstead.kernels import host
from kvstead.kernels.array_types import IntArray
from kvstead.prefix import SlotPool

_MANY_SLOTS = 1 << 26  # of a tree without memory; a byte each, which the system commits only when it is used
_NO_SLOTS = np.empty(0, dtype=np.int64)


def pool_of(allocator: Any, page_size: int) -> SlotPool:
    """The pool behind an allocator of ours or of SGLang's; slots that stand for nothing for None.

    Raises `LayoutError` when its pages are not of `page_size`.
    """
    if allocator is None:
        return UnboundPool(page_size)
    core = getattr(allocator, "core", None)
    pool: SlotPool = core if isinstance(core, Allocator) else EnginePool(allocator)
    if pool.page_size != page_size:
        raise LayoutError(
            f"page size {page_size} of the tree is not that of its allocator, {pool.page_size}. Pass the allocator's."
        )
    return pool


def slots_of(pages: IntArray, page_size: int) -> IntArray:
    """The slots of pages in order, int64[pages * page_size]."""
    slots = np.empty(pages.size * page_size, dtype=np.int64)
    host.expand_pages(pages, page_size, slots)
    return slots


class EnginePool:
    """The slots of an allocator that is not ours. Its errors are passed on."""

    free_group = AttributeOf[object | None]("_allocator.free_group")  # None when none is open

    def __init__(self, allocator: Any) -> None:
        self.page_size: int = allocator.page_size
        self.num_pages: int = allocator.size_full // allocator.page_size
        self._allocator = allocator

    def free_segment(self, slots: IntArray, *, start_pos: int) -> None:
        """Free whole pages in the allocator."""
        self._allocator.free_segment(torch.from_numpy(slots).to(self._allocator.device), start_pos=start_pos)


class WindowedPool:
    """The slots and windows of an allocator of ours that keeps its pages on the host.

    Its tensors of window slots follow what a tree does. Raises `LayoutError` for any other allocator.
    """

    num_pages = AttributeOf[int]("_core.num_pages")
    page_size = AttributeOf[int]("_core.page_size")
    free_group = AttributeOf[object | None]("_core.free_group")
    window_pages = AttributeOf[IntArray]("_core.window_pages")

    def __init__(self, allocator: Any) -> None:
        core = getattr(allocator, "core", None)
        if not (isinstance(core, Allocator) and isinstance(core, WindowSide)):
            raise LayoutError(
                f"{type(allocator).__name__} keeps no pages with windows on the host, where a tree looks them up. Use "
                "kvstead's allocators on a CPU, or those of unified memory; or leave the tree to SGLang."
            )
        self._allocator = allocator
        self._core: Any = core

    def free_segment(self, slots: IntArray, *, start_pos: int) -> None:
        """Free whole pages and the window pages that they have."""
        self._core.free_segment(slots, start_pos=start_pos)
        self._follow(lost=slots)

    def free_window_pages(self, pages: IntArray) -> None:
        """Free the window pages of pages, which stay."""
        self._core.free_window_pages(pages)
        self._follow(lost=slots_of(pages, self.page_size))

    def move_window(self, src: IntArray, dst: IntArray) -> None:
        """Link the window pages of slots' pages to the pages of other slots; raises before anything has changed."""
        self._core.move_window(src, dst)
        size = self.page_size
        self._follow(lost=slots_of(src // size, size), gained=slots_of(dst // size, size))

    def _follow(self, lost: IntArray, gained: IntArray = _NO_SLOTS) -> None:
        self._allocator.follow_core(lost=torch.from_numpy(lost), gained=torch.from_numpy(gained))


class UnboundPool:
    """Any number of slots that stand for nothing, for trees that only compare keys."""

    free_group = None

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = _MANY_SLOTS // page_size
        self._num_used = 0
        self._free: list[int] = []

    def take(self, num_pages: int) -> IntArray:
        """The slots of so many pages, freed ones first."""
        num_old = min(num_pages, len(self._free))
        old = self._free[len(self._free) - num_old :]
        del self._free[len(self._free) - num_old :]
        first = self._num_used + 1
        self._num_used += num_pages - num_old
        return slots_of(np.array([*old, *range(first, self._num_used + 1)], dtype=np.int64), self.page_size)

    def free_segment(self, slots: IntArray, *, start_pos: int) -> None:
        """Note that whole pages can be used again."""
        self._free.extend((slots[:: self.page_size] // self.page_size).tolist())
