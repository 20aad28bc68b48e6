"""The sides of an allocator with windows, each as an allocator that callers may ask and use alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator

if TYPE_CHECKING:
    from kvstead.integrations.sglang.allocator.swa import SWATokenToKVPoolAllocator


class Side(BaseTokenToKVPoolAllocator):
    """What both layers of a model have that all see the same: the slots of `owner`, its frees and its group.

    size: slots of this side. kvcache: the pool of this side's layers.
    """

    def __init__(self, owner: SWATokenToKVPoolAllocator, size: int, kvcache: Any) -> None:
        super().__init__(size, owner.page_size, owner.dtype, owner.device, kvcache, owner.need_sort)
        self.owner = owner
        self.debug_mode = False

    @property
    def free_group(self) -> list[Any] | None:  # type: ignore[override]  # a plain attribute there, here never written
        """The owner's group."""
        return self.owner.free_group

    @property
    def free_pages(self) -> torch.Tensor:  # type: ignore[override]  # as above
        """Ids of the free pages, in the order in which they will be handed out: int64[k], a copy. O(pages)."""
        return torch.as_tensor(self.owner.core.free_pages(), device=self.device)

    @property
    def num_pages(self) -> int:  # type: ignore[override]  # as above
        """Pages that can be handed out."""
        return self.size // self.page_size

    def available_size(self) -> int:
        """Slots that can be allocated now."""
        return self.owner.full_available_size()

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """`need_size` slots in whole pages, or None when there are not so many."""
        return self.owner.alloc(need_size)

    def free(self, free_index: torch.Tensor) -> None:
        """Give back the pages that the slots lie in."""
        self.owner.free(free_index)

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """Give back a stretch of a row, whole pages at a time."""
        self.owner.free_segment(free_index, start_pos=start_pos)

    def free_group_begin(self) -> None:
        """Open the owner's group."""
        self.owner.free_group_begin()

    def free_group_end(self) -> None:
        """End the owner's group."""
        self.owner.free_group_end()

    def clear(self) -> None:
        """Both sides are cleared together, by their owner."""
        raise NotImplementedError("One side cannot be cleared alone. Call clear of the allocator that it belongs to.")


class FullSide(Side):
    """Full pages: handed out without window pages, and freed as pages whose window side is gone."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """`need_size` slots in whole pages without a window side, or None when there are not so many."""
        return self.owner.core.alloc_full(need_size)

    def free(self, free_index: torch.Tensor) -> None:
        """`free_full` of the owner."""
        self.owner.free_full(free_index)

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """`free_full_segment` of the owner."""
        self.owner.free_full_segment(free_index, start_pos=start_pos)


class WindowSide(Side):
    """Window pages: handed out without full pages, and freed here for as long as they have none."""

    @property
    def free_pages(self) -> torch.Tensor:  # type: ignore[override]  # as above
        """Ids of the free window pages, in the order in which they will be handed out: int64[k], a copy. O(pages)."""
        return torch.as_tensor(self.owner.core.window_free_pages(), device=self.device)

    def available_size(self) -> int:
        """Window slots that can be allocated now."""
        return self.owner.core.swa_available_size()

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """`need_size` window slots in whole pages, or None when there are not so many."""
        return self.owner.core.alloc_window(need_size)

    def free(self, free_index: torch.Tensor) -> None:
        """Give back window pages that belong to no full page. Raises `WindowTaken` for one that does."""
        self.owner.core.free_window(free_index)

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """As `free`, for a stretch of a row."""
        self._require_boundary(start_pos)
        self.free(free_index)
