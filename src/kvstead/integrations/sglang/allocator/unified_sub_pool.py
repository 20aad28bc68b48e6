"""SGLang's allocator of one pool of a unified buffer."""

from __future__ import annotations

from typing import Any

import torch

from kvstead.allocators import MultiEndedAllocator as CoreMultiEndedAllocator
from kvstead.errors import LayoutError
from kvstead.integrations.sglang.allocator.arena_view import ArenaView
from kvstead.integrations.sglang.allocator.core import CoreAllocator
from kvstead.integrations.sglang.allocator.guest_pages import GuestPages
from kvstead.integrations.sglang.unified_memory_pool import UnifiedKVPool, chain_name


class MultiEndedAllocator(ArenaView, CoreAllocator):  # type: ignore[override]  # `num_pages`, read only here
    """The slots of one pool, which keep their ids while their bytes move.

    is_id_owner: whether this allocator hands ids out, first freed, first reused; one that does not is given them
    (`alloc_with_virtual`). page_size: the buffer's, 1 for a pool of states. lazy_compaction: one for all pools of a
    buffer. forward_stream: what moves wait for while no event says more. kernel_page_multiplier, shards_under_dcp,
    virtual_num_pages: rows are physical slots and all tables reach over all ids, so 1, False and anything.

    Ids are on the host on every device: indices on a device are copied there, once a call, which waits for it. Wrong
    calls raise what kvstead's allocators raise. Raises `LayoutError` for another page size or way of compacting than
    the buffer's, `NotImplementedError` for a multiplier or shards.
    """

    core: Any  # kvstead's MultiEndedAllocator, or guest pages

    def __init__(
        self,
        *,
        kvcache: Any,
        unified_buffer: UnifiedKVPool,
        sub_pool_name: str,
        device: str,
        is_id_owner: bool,
        virtual_num_pages: int | None = None,
        page_size: int = 1,
        shards_under_dcp: bool = False,
        need_sort: bool = False,
        forward_stream: Any = None,
        lazy_compaction: bool = False,
        kernel_page_multiplier: int = 1,
    ) -> None:
        if kernel_page_multiplier != 1 or shards_under_dcp:
            raise NotImplementedError("rows of a unified buffer are physical slots of one device. Pass 1 and False.")
        self.look_at(unified_buffer, sub_pool_name)
        self.is_id_owner = is_id_owner
        unified_buffer.compact_lazily(lazy_compaction, forward_stream)
        self.require_page_size(page_size)
        super().__init__(self.max_slots, page_size, self.spec.get_dtype(), device, kvcache, need_sort)

    @property
    def free_virtual_ids(self) -> torch.Tensor | None:
        """Ids of free pages, next to be handed out first: int64[k], a copy; None for one who is given ids."""
        return torch.as_tensor(self.core.free_pages(), device=self.device) if self.is_id_owner else None

    def schedulable_available_size(self) -> int:
        """As `available_size`, which counts what moves can make room for."""
        return self.available_size()

    def alloc_with_virtual(self, virtual_pages: torch.Tensor) -> None:
        """Take pages under ids that another allocator has handed out: int64[k].

        Raises `ForeignPage` for ids that are out of range, `InvalidSize` without room.
        """
        self._require_owner(is_owner=False)
        self.core.take(virtual_pages)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """`need_size` slots in whole pages, or None when there are not so many."""
        self._require_owner(is_owner=True)
        return super().alloc(need_size)

    def alloc_extend(self, *rows: Any, **more: Any) -> torch.Tensor | None:
        """Grow rows, as `CoreAllocator.alloc_extend`."""
        self._require_owner(is_owner=True)
        return super().alloc_extend(*rows, **more)

    def alloc_decode(self, *rows: Any, **more: Any) -> torch.Tensor | None:
        """Grow each row by one, as `CoreAllocator.alloc_decode`."""
        self._require_owner(is_owner=True)
        return super().alloc_decode(*rows, **more)

    def take_physical(self, need_size: int) -> torch.Tensor | None:
        """Physical slots, as they lie now, of `need_size` new ones; `physical_to_virtual` has their pages' ids."""
        slots = self.alloc(need_size)
        return None if slots is None else self.translate_kv_loc(slots)

    def take_physical_pages(self, num_pages: int) -> torch.Tensor | None:
        """`take_physical` in pages."""
        slots = self.take_physical(num_pages * self.page_size)
        return None if slots is None else slots[:: self.page_size] // self.page_size

    def _new_core(self) -> Any:
        chain, pool = self.unified_buffer.chain, chain_name(self.sub_pool_name)
        return CoreMultiEndedAllocator(chain, pool, order="fifo") if self.is_id_owner else GuestPages(chain, pool)

    def _require_owner(self, *, is_owner: bool) -> None:
        if self.is_id_owner != is_owner:
            what = "is given its ids: use alloc_with_virtual" if is_owner else "hands its ids out: use alloc"
            raise LayoutError(f"pool {self.sub_pool_name!r} {what}.")
