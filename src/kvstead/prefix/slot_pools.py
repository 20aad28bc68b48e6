"""The parts of an allocator that a tree needs: what it returns slots, window pages and states to."""

from __future__ import annotations

from typing import Protocol, cast

from kvstead.errors import LayoutError
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers


class SlotPool(Protocol):
    """The part of an allocator that every tree needs."""

    @property
    def page_size(self) -> int:
        """Slots in each page of the pool."""

    @property
    def num_pages(self) -> int:
        """Pages that can be handed out, ids 1 .. `num_pages`."""

    @property
    def free_group(self) -> object | None:
        """None, or the group in which frees wait."""

    def free_segment(self, slots: IntArray, *, start_pos: int) -> None:
        """Free the whole pages that `slots` list, in row order; raises before anything has changed."""


class WindowPool(SlotPool, Protocol):
    """The part of an allocator with windows that a tree with windows needs besides."""

    @property
    def window_pages(self) -> IntArray:
        """The window page of each page, 0 for none."""

    def free_window_pages(self, pages: IntArray) -> None:
        """Free the window pages that are linked to `pages`; nothing for pages without one."""

    def move_window(self, src: IntArray, dst: IntArray) -> None:
        """Link the window pages of slots' pages to the pages of other slots; raises before anything has changed."""


class StateSlots(Protocol):
    """The part of an allocator of recurrent states that a tree with states needs."""

    def free(self, slots: Integers) -> None:
        """Free state slots; raises before anything has changed."""


def window_pool(allocator: SlotPool) -> WindowPool:
    """The allocator, as one with windows. Raises `LayoutError` for one without."""
    if not hasattr(allocator, "window_pages"):
        raise LayoutError(f"{type(allocator).__name__} has no window side. Give the tree an SWAAllocator.")
    return cast("WindowPool", allocator)
