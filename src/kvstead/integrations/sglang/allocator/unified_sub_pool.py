"""SGLang's allocator of one pool of a unified buffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
import torch

from kvstead.allocators import MultiEndedAllocator as CoreMultiEndedAllocator
from kvstead.arena import PoolChain
from kvstead.errors import DoubleFree, ForeignPage, FreeGroupError, InvalidSize, LayoutError, MisalignedSegment
from kvstead.integrations.sglang.allocator.arena_pool import ArenaPool
from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.core_calls import CoreCalls
from kvstead.integrations.sglang.unified_memory_pool import UnifiedKVPool, chain_name
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, hand_out, to_host


class MultiEndedAllocator(ArenaPool, CoreCalls, BaseTokenToKVPoolAllocator):
    """The slots of one pool, which keep their ids while their bytes move.

    is_id_owner: whether this allocator hands out ids, first freed, first reused; otherwise callers bring them
    (`alloc_with_virtual`). page_size: the buffer's, 1 for a pool of states. lazy_compaction: the same for all pools of
    a buffer. forward_stream: what moves wait for as long as there is no event. kernel_page_multiplier,
    shards_under_dcp, virtual_num_pages: rows are physical slots and all tables reach over all ids, so 1, False and any.

    Ids are on the host on every device: indices on a device are copied there, once a call, which waits for it. Wrong
    calls raise what kvstead's allocators raise. Raises `LayoutError` for another page size or way of compacting than
    the buffer's, `NotImplementedError` for a multiplier or shards.
    """

    core: Any  # kvstead's MultiEndedAllocator, or a PoolOfGivenIds

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
            raise NotImplementedError(
                f"kernel_page_multiplier={kernel_page_multiplier} and shards_under_dcp={shards_under_dcp} are not "
                "supported: rows of a unified buffer are physical slots of one device. Pass 1 and False."
            )
        ArenaPool.__init__(self, unified_buffer, sub_pool_name, self._physical_slots_of)
        self.is_id_owner = is_id_owner
        unified_buffer.compact_lazily(lazy_compaction, forward_stream)
        self.require_page_size(page_size)
        dtype = self.spec.get_dtype()
        BaseTokenToKVPoolAllocator.__init__(self, self.max_slots, page_size, dtype, device, kvcache, need_sort)
        chain, pool = unified_buffer.chain, chain_name(sub_pool_name)
        self.core = CoreMultiEndedAllocator(chain, pool, order="fifo") if is_id_owner else PoolOfGivenIds(chain, pool)

    @property
    def free_virtual_ids(self) -> torch.Tensor | None:
        """Ids of free pages, next to be handed out first: int64[k], a copy; None for a pool that is given its ids."""
        return torch.as_tensor(self.core.free_pages(), device=self.device) if self.is_id_owner else None

    def alloc_with_virtual(self, virtual_pages: torch.Tensor) -> None:
        """Take pages under ids that another allocator has handed out: int64[k].

        Raises `ForeignPage` for ids that are out of range, `InvalidSize` when there are too few pages.
        """
        if self.is_id_owner:
            raise LayoutError(f"pool {self.sub_pool_name!r} hands out its ids. Use alloc.")
        self.core.take(virtual_pages)

    def take_physical(self, need_size: int) -> torch.Tensor | None:
        """Allocate slots and say where they lie now; `physical_to_virtual` has the ids of their pages."""
        slots = self.alloc(need_size)
        return None if slots is None else self.translate_kv_loc(slots)

    def take_physical_pages(self, num_pages: int) -> torch.Tensor | None:
        """As `take_physical`, counted in pages."""
        slots = self.take_physical(num_pages * self.page_size)
        return None if slots is None else slots[:: self.page_size] // self.page_size

    def _physical_slots_of(self, slots: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        places: torch.Tensor = self.core.physical_slots(slots, out)
        return places


class PoolOfGivenIds:
    """The pool `pool` of `chain`, for a caller that brings the ids of pages; nothing else may take from it.

    Frees, groups and errors are those of a `kvstead.allocators.Allocator`. free_group: None, or the pages of each free.
    """

    def __init__(self, chain: PoolChain, pool: str) -> None:
        self.free_group: list[IntArray] | None = None
        self.page_size = chain.page_size(pool)
        self._chain = chain
        self._pool = pool
        self._num_ids = chain.page_map(pool).num_virtual
        self._is_live = np.zeros(self._num_ids + 1, dtype=np.bool_)  # what waits in the group is not

    def available_size(self) -> int:
        """Slots that `take` can hand out now."""
        return self._chain.capacity((self._pool,)) * self.page_size

    def take(self, virtual_pages: Integers) -> None:
        """Give free ids a page each, int64[k]. Raises `ForeignPage` for other ids, `InvalidSize` when short."""
        pages = to_host(virtual_pages)
        if self._chain.take(self._pool, pages) is None:
            raise InvalidSize(
                f"{pages.size} pages of pool {self._pool!r} are asked for and "
                f"{self.available_size() // self.page_size} are available. Ask available_size first."
            )
        self._is_live[pages] = True

    def alloc(self, *_lengths: Any) -> NoReturn:
        """Raise `LayoutError`: callers bring the ids."""
        raise LayoutError(f"pool {self._pool!r} does not hand out ids. Use alloc_with_virtual.")

    alloc_extend = alloc_decode = alloc

    def free(self, slots: Integers) -> None:
        """Free the pages that `slots` lie in. Raises `ForeignPage` or `DoubleFree`, with nothing changed."""
        array = to_host(slots)
        self._free_pages(array.copy() if self.page_size == 1 else np.unique(array // self.page_size))

    def free_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Free a stretch of a row, whole pages at a time."""
        self.free_segments([(slots, start_pos)])

    def free_segments(self, pairs: Iterable[tuple[Integers, int]]) -> None:
        """Free several stretches, (slots, start_pos) each, all or none. They may not share a page."""
        self._free_pages(np.concatenate([np.empty(0, dtype=np.int64), *(self._pages_of(*pair) for pair in pairs)]))

    def physical_slots(self, slots: Integers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where slots lie now: as `kvstead.allocators.MultiEndedAllocator.physical_slots`."""
        array = to_host(slots)
        places = self._chain.page_map(self._pool).translate(array, self.page_size)
        pages = np.clip(array // self.page_size, 0, self._num_ids)
        return hand_out(np.where(self._is_live[pages], places, 0), slots, out, self._chain.device)

    def free_group_begin(self) -> None:
        """Let frees wait. Raises `FreeGroupError` when a group is open."""
        if self.free_group is not None:
            raise FreeGroupError("A free group is open already. End it first; groups do not nest.")
        self.free_group = []

    def free_group_end(self) -> None:
        """Make the pages that wait available. Does nothing without an open group."""
        group, self.free_group = self.free_group, None
        for pages in group or ():
            self._chain.release(self._pool, pages)

    def clear(self) -> None:
        """Make every page free, also pages that are in use; an open group is dropped."""
        self.free_group = None
        self._is_live[:] = False
        self._chain.clear(self._pool)

    def audit(self) -> None:
        """Audit the chain. Raises `AuditError`."""
        self._chain.audit()

    def _free_pages(self, pages: IntArray) -> None:
        """Free pages, at once or when the open group ends; the array is our own."""
        if not pages.size:
            return
        self._require_live(pages)
        self._is_live[pages] = False
        if self.free_group is None:
            self._chain.release(self._pool, pages)
        else:
            self.free_group.append(pages)

    def _pages_of(self, slots: Integers, start_pos: int) -> IntArray:
        array = to_host(slots)
        pages = array[:: self.page_size] // self.page_size
        row = np.repeat(pages * self.page_size, self.page_size)[: array.size]
        if start_pos < 0 or start_pos % self.page_size or np.any(array != row + np.arange(array.size) % self.page_size):
            raise MisalignedSegment(
                f"slots {array[:8].tolist()} .. are no stretch of a row from position {start_pos} on, in pages of "
                f"{self.page_size}. Start it at a page boundary and leave no slot out."
            )
        return pages

    def _require_live(self, pages: IntArray) -> None:
        foreign = pages[(pages < 1) | (pages > self._num_ids)]
        if foreign.size:
            raise ForeignPage(
                f"page {foreign[0]} does not belong to pool {self._pool!r} (1 .. {self._num_ids}). Free only pages "
                "that were taken from it."
            )
        free = pages[~self._is_live[pages]]
        if free.size or np.unique(pages).size < pages.size:
            what = f"page {free[0]} was freed already" if free.size else "a page is named twice in one call"
            raise DoubleFree(f"{what} in pool {self._pool!r}. Free each page once.")
