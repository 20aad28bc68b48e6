"""One pool of an allocator, as an allocator that callers may ask and use alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator
from kvstead.integrations.sglang.attribute_of import AttributeOf


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCalls:
    """The calls of an owner that answer those of a `PoolView`, by the view's names. None: the pool has no such call.

    free_pages: ids of free pages. free_segment: without it `free` is called.
    """

    available_size: Callable[[], int]
    free: Callable[[torch.Tensor], None]
    free_segment: Callable[..., None] | None = None
    free_pages: Callable[[], Any] | None = None
    alloc: Callable[[int], torch.Tensor | None] | None = None
    alloc_extend: Callable[..., torch.Tensor | None] | None = None
    alloc_decode: Callable[..., torch.Tensor | None] | None = None
    clear: Callable[[], None] | None = None


class PoolView(BaseTokenToKVPoolAllocator):
    """A view of one pool of `owner`, which keeps the pages and has the free group.

    calls: what the owner does for the view. size: slots of this pool. kvcache: the tensors that its slots index.
    page_size: the owner's, if not given.

    free_pages: ids of the free pages, in the order in which they will be handed out: int64[k], a copy. O(pages).
    """

    debug_mode = False
    free_group = AttributeOf[list[Any] | None]("owner.free_group")
    free_pages = AttributeOf[torch.Tensor | None]("_free_pages")

    def __init__(self, owner: Any, calls: PoolCalls, size: int, kvcache: Any, page_size: int | None = None) -> None:
        super().__init__(size, page_size or owner.page_size, owner.dtype, owner.device, kvcache, owner.need_sort)
        self.owner = owner
        self._calls = calls

    @property
    def num_pages(self) -> int:
        """Pages that can be handed out."""
        return self.size // self.page_size

    @num_pages.setter
    def num_pages(self, _number: int) -> None:
        """Ignore it: it follows from `size`."""

    @property
    def _free_pages(self) -> torch.Tensor | None:
        return None if self._calls.free_pages is None else torch.as_tensor(self._calls.free_pages(), device=self.device)

    def available_size(self) -> int:
        """Slots that can be allocated now."""
        return self._calls.available_size()

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Allocate `need_size` slots of this pool alone, in whole pages; None when there are too few.

        Raises `NotImplementedError` for a pool whose pages come with those of another.
        """
        if self._calls.alloc is None:
            raise NotImplementedError("Window pages are handed out with full pages. Ask the allocator that has both.")
        return self._calls.alloc(need_size)

    def alloc_extend(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """Grow rows in this pool alone, where it has pages for rows."""
        call = self._calls.alloc_extend or super().alloc_extend
        return call(*args, **kwargs)

    def alloc_decode(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """Grow each row by one in this pool alone, where it has pages for rows."""
        call = self._calls.alloc_decode or super().alloc_decode
        return call(*args, **kwargs)

    def free(self, free_index: torch.Tensor) -> None:
        """Free slots of this pool, as its owner frees them."""
        self._calls.free(free_index)

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """`free` for a stretch of a row, whole pages at a time."""
        call = self._calls.free_segment or super().free_segment
        call(free_index, start_pos=start_pos)

    def free_group_begin(self) -> None:
        """Open the owner's group. Raises `FreeGroupError` when it is open."""
        self.owner.free_group_begin()

    def free_group_end(self) -> None:
        """End the owner's group, if it is open."""
        self.owner.free_group_end()

    def clear(self) -> None:
        """Make every slot of this pool free. Raises `NotImplementedError` where pools are only cleared together."""
        if self._calls.clear is None:
            raise NotImplementedError(
                "One pool cannot be cleared alone. Call clear of the allocator that it belongs to."
            )
        self._calls.clear()
