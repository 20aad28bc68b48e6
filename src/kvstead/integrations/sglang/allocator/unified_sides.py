"""The pools of a unified allocator, each as an allocator that callers may ask alone.

They have no books of their own: what one of them hands out or frees, the allocator that it belongs to does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvstead.allocators import StateAllocator
from kvstead.integrations.sglang.allocator.arena_view import ArenaView
from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_host

if TYPE_CHECKING:
    from kvstead.integrations.sglang.allocator.unified_hybrid_swa import UnifiedSWAAllocatorBase
    from kvstead.integrations.sglang.allocator.unified_shared import UnifiedAllocator


class ArenaSide(ArenaView, BaseTokenToKVPoolAllocator):  # type: ignore[override]  # `num_pages`, read only here
    """The pool `sub_pool_name` of `owner`, whose group is its group. kvcache: what the slots index."""

    is_id_owner = True

    def __init__(self, owner: UnifiedAllocator, sub_pool_name: str, kvcache: Any) -> None:
        self.look_at(owner.unified_buffer, sub_pool_name)
        super().__init__(
            self.max_slots, self._entry.page_size, self.spec.get_dtype(), owner.device, kvcache, owner.need_sort
        )
        self.owner = owner

    @property
    def free_group(self) -> list[Any] | None:  # type: ignore[override]  # a plain attribute there, here never written
        """The owner's group."""
        return self.owner.free_group

    def free_group_begin(self) -> None:
        """Open the owner's group."""
        self.owner.free_group_begin()

    def free_group_end(self) -> None:
        """End the owner's group."""
        self.owner.free_group_end()

    def schedulable_available_size(self) -> int:
        """As `available_size`, which counts what moves can make room for."""
        return self.available_size()

    def clear(self) -> None:
        """Pools are cleared together, by their owner."""
        raise NotImplementedError("One pool cannot be cleared alone. Call clear of the allocator that it belongs to.")


class FullArenaSide(ArenaSide):
    """Slots for the layers that see everything, with all that comes and goes with them."""

    @property
    def free_virtual_ids(self) -> torch.Tensor:
        """Ids of free pages, next to be handed out first: int64[k], a copy."""
        return torch.as_tensor(self.owner.core.free_pages(), device=self.device)

    def available_size(self) -> int:
        """Slots that there is room for, if the other pools take none."""
        return self.owner.full_room()

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """As the owner's."""
        return self.owner.alloc(need_size)

    def free(self, free_index: torch.Tensor) -> None:
        """As the owner's."""
        self.owner.free(free_index)

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """As the owner's."""
        self.owner.free_segment(free_index, start_pos=start_pos)


class WindowArenaSide(ArenaSide):
    """The window pages of full slots, by the ids of the full pages."""

    is_id_owner = False
    free_virtual_ids = None
    owner: UnifiedSWAAllocatorBase

    def look_at(self, *pool: Any) -> None:
        """Start with a pool."""
        super().look_at(*pool)
        self._mirror: torch.Tensor | None = None

    @property
    def virtual_to_physical(self) -> torch.Tensor:
        """Where the window page of each full page lies: 0 for 0, -1 for one without, -1 at the end.

        The same int64 tensor at every call, brought up to date when it is read, which costs O(pages), and, once it has
        been read, by every translation.
        """
        table = torch.from_numpy(self._page_table())
        if self._mirror is None:
            self._mirror = torch.empty(table.shape, dtype=torch.int64, device=self.device)
        return self._mirror.copy_(table)

    def available_size(self) -> int:
        """Window slots that there is room for, if the other pools take none."""
        return self.owner.core.swa_available_size()

    def translate_kv_loc(self, virt_tokens: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where the window side of full slots lies now, 0 for a slot without one; else as for every pool."""
        if self._mirror is not None:
            self._mirror.copy_(torch.from_numpy(self._page_table()))
        return self.owner.core.physical_window_slots(virt_tokens, out)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Window pages come with full pages."""
        raise NotImplementedError("Window pages are handed out with full pages. Ask the allocator that has both.")

    def free(self, free_index: torch.Tensor) -> None:
        """`free_swa` of the owner."""
        self.owner.free_swa(free_index)

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """`free_swa_segment` of the owner."""
        self.owner.free_swa_segment(free_index, start_pos=start_pos)

    def bind(self, virtual_ids: torch.Tensor, physical_ids: torch.Tensor) -> None:
        """Give full pages the window pages that lie at `physical_ids`, which other full pages hold: int64[k] each.

        Those lose them. Raises as `SWAAllocator.move_window`.
        """
        takers, givers = to_host(virtual_ids), self._owner_table()[to_host(physical_ids)]
        moved = takers != givers
        self.owner.core.move_window(givers[moved] * self.page_size, takers[moved] * self.page_size)

    def _page_table(self) -> IntArray:
        window_pages = self.owner.core.window_pages
        table: IntArray = np.where(window_pages == 0, -1, super()._page_table()[window_pages])
        table[0] = 0
        return table

    def _owner_table(self) -> IntArray:
        table, pages = np.full_like(super()._owner_table(), -1), self._page_table()
        held = np.flatnonzero(pages >= 0)
        table[pages[held]] = held
        return table


class StateArenaSide(ArenaSide):
    """A slot for the state of each request."""

    @property
    def free_virtual_ids(self) -> torch.Tensor:
        """Free slots, next to be handed out first: int64[k], a copy."""
        return torch.as_tensor(self._states.pages.contents(), device=self.device)

    def available_size(self) -> int:
        """States that there is room for."""
        return self._states.available_size()

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """`need_size` slots, or None when there are not so many."""
        return self._states.alloc(need_size)

    def free(self, free_index: torch.Tensor) -> None:
        """Give slots back, each named once: at once, or when the owner's group ends."""
        self._states.free(free_index)

    def clear(self) -> None:
        """Every state is free again, whoever held it; those that wait in the owner's group too."""
        group, pages = self.owner.core.free_group, self._states.pages
        if group is not None:
            group[:] = [release for release in group if release.pool is not pages]
        pages.clear()

    @property
    def _states(self) -> StateAllocator:
        states: StateAllocator = self.owner.core.states
        return states
