"""SGLang's allocators for models that keep all tokens on the host and the hot ones on the device as well.

The compressed one keeps its pages on the host for every device: a call with indices on a device copies them.
"""

from __future__ import annotations

from abc import ABC
from typing import Any

import torch

from kvstead.allocators import CompressedHiSparseAllocator
from kvstead.errors import LayoutError, MisalignedSize
from kvstead.integrations.sglang.allocator import backends
from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator, refuse_resize
from kvstead.integrations.sglang.allocator.core_calls import CoreCalls
from kvstead.integrations.sglang.allocator.pool_view import PoolCalls, PoolView
from kvstead.integrations.sglang.allocator.slot_mapping import SlotMapping
from kvstead.integrations.sglang.allocator.swa import SWATokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.window_calls import WindowCalls
from kvstead.integrations.sglang.attribute_of import AttributeOf


class HotCalls(ABC):
    """The part of an allocator that is about hot slots. It goes before `CoreCalls`.

    full_to_hisparse_device_index_mapping: int64 on the device, by logical entry, 0 for none, and -1 in the last one.
    One tensor for the allocator's whole life, handed to the pool once. SGLang's coordinator writes to it, to point new
    tokens at its buffers; what a row holds does not change with it, and a free undoes it.

    hisparse_attn_allocator: a view of the hot side, whose slots are buffers and stand for no token.
    """

    core: backends.WithHotSlots
    page_size: int
    _kvcache: Any
    compress_ratio = 1  # tokens that are one entry
    _hot_mapping: SlotMapping

    full_to_hisparse_device_index_mapping = AttributeOf[torch.Tensor]("_hot_mapping.tensor")

    @property
    def hisparse_page_size(self) -> int:
        """Device slots of a page, one an entry."""
        return self.page_size // self.compress_ratio

    def alloc_logical_only(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
    ) -> torch.Tensor | None:
        """As `alloc_extend`, but without device slots."""
        slots = self.core.alloc_logical_only(prefix_lens_cpu, seq_lens_cpu, last_loc)
        self._write_windows(slots)
        return slots

    def alloc_device_buffer(self, allocated_indices: torch.Tensor, need_size: int) -> torch.Tensor | None:
        """Make a buffer of `need_size` device slots from those of a row's entries; None if short.

        Raises as `kvstead.allocators.HiSparseAllocator.alloc_device_buffer`.
        """
        entries = self._in_buffer_order(allocated_indices, need_size)
        buffer = self.core.alloc_device_buffer(self._slots_of(entries), need_size)
        if buffer is not None:
            self._hot_mapping.erase(self._slots_of(allocated_indices))
        return buffer

    def free_hisparse(self, free_indices: torch.Tensor) -> None:
        """Free the device slots of the pages that the slots lie in; the logical pages stay."""
        self.core.free_hisparse(free_indices)
        self._hot_mapping.erase(free_indices)

    def free_hisparse_indices(self, buffer_indices: torch.Tensor) -> None:
        """Free the pages of device slots. Slots in the padding page are left out."""
        self.core.free_hisparse_indices(buffer_indices.where(buffer_indices >= self.hisparse_page_size, 0))

    def get_last_loc_compressed(self, last_locs: torch.Tensor) -> torch.Tensor:
        """The last whole entry of rows that end at these slots; -1 for none."""
        return (last_locs - (self.compress_ratio - 1)) // self.compress_ratio

    def get_last_loc_hisparse_device(self, last_locs: torch.Tensor) -> torch.Tensor:
        """The device slot of that entry."""
        return self.full_to_hisparse_device_index_mapping[self.get_last_loc_compressed(last_locs)]

    def resize(self, config: Any) -> None:
        """Raise `NotImplementedError`: the mapping, and the pools that have it, are made for one size."""
        refuse_resize("A pool with a device side")

    def _device_view(self) -> PoolView:
        calls = PoolCalls(
            available_size=self.core.device_available_size,
            free_pages=self.core.device_free_pages,
            alloc=lambda need_size: self.core.alloc_device_buffer((), need_size),
            free=self.free_hisparse_indices,
        )
        return PoolView(self, calls, self.core.device_size, self._kvcache, self.hisparse_page_size)

    def _write_windows(self, slots: torch.Tensor | None) -> None:
        """Note the window slots of new slots, in a class that has windows."""

    def _in_buffer_order(self, entries: torch.Tensor, need_size: int) -> torch.Tensor:
        """A row's entries in the order in which they follow one another in a buffer."""
        return entries

    def _slots_of(self, entries: torch.Tensor) -> torch.Tensor:
        """The slots of the last tokens of entries."""
        return entries * self.compress_ratio + self.compress_ratio - 1


class HiSparseTokenToKVPoolAllocator(HotCalls, CoreCalls, BaseTokenToKVPoolAllocator):
    """Logical slots for all tokens, and device slots for the hot ones. Frees take effect at once, in a group too.

    size: device slots; there are `host_to_device_ratio` times as many logical ones, and `.size` is their number. The
    other arguments as for `BaseTokenToKVPoolAllocator`. logical_attn_allocator: a view of the logical side.
    """

    core: backends.HotPools

    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        device: str,
        kvcache: Any,
        need_sort: bool,
        host_to_device_ratio: int = 2,
    ) -> None:
        super().__init__(size * host_to_device_ratio, page_size, dtype, device, kvcache, need_sort)
        self.core = backends.hot_pools(size, page_size, device, need_sort, host_to_device_ratio)
        self._hot_mapping = SlotMapping(self.size, page_size, device, self.core.device_slots)
        self.mappings = (self._hot_mapping,)
        self._scratch_size = self._buffer_size = 0
        self.logical_attn_allocator = PoolView(self, self._logical_calls(), self.size, kvcache)
        self.hisparse_attn_allocator = self._device_view()
        kvcache.register_mapping(self.full_to_hisparse_device_index_mapping)

    def configure_spec_scratch(self, capacity: int, *, device_buffer_size: int = 0) -> None:
        """Note what each request takes on the device beside its tokens. Raises `MisalignedSize` for parts of pages."""
        for size in (capacity, device_buffer_size):
            if size < 0 or size % self.page_size:
                raise MisalignedSize(
                    f"{size} slots are not a whole number of pages of {self.page_size}. Ask for a multiple, or for 0."
                )
        self._scratch_size = capacity
        self._buffer_size = device_buffer_size if capacity else 0

    def request_slot_reserve(self, *, has_req_pool_slot: bool, prefill_tokens: int = 0) -> int:
        """Slots that a request takes besides those of its tokens: what its buffer lacks, and its scratch."""
        prefilled = -(-prefill_tokens // self.page_size) * self.page_size
        return max(0, self._buffer_size - prefilled) + (0 if has_req_pool_slot else self._scratch_size)

    def _logical_calls(self) -> PoolCalls:
        """The logical side, whose slots have no device slots. Its frees free device slots too, if there are any."""
        return PoolCalls(
            available_size=self.core.logical_available_size,
            free_pages=self.core.free_pages,
            alloc=lambda need_size: self.core.alloc_logical_only([0], [need_size], [-1]),
            alloc_extend=self.alloc_logical_only,
            alloc_decode=self.alloc_decode,
            free=self.free,
        )


class DeepSeekV4HiSparseTokenToKVPoolAllocator(HotCalls, CoreCalls, WindowCalls, BaseTokenToKVPoolAllocator):
    """A full side, a window side and, for every four tokens of the full one, a slot of the compressed device pool.

    logical_attn_allocator: a new `SWATokenToKVPoolAllocator`; from now on its core keeps the pages of all sides. Frees
    of all sides wait for the end of the one group. Raises `LayoutError` when one of its pages does not fill one page of
    the compressed pool.
    """

    core: CompressedHiSparseAllocator
    compress_ratio = 4

    def __init__(self, logical_attn_allocator: SWATokenToKVPoolAllocator) -> None:
        logical, pool = logical_attn_allocator, logical_attn_allocator.get_kvcache().c4_kv_pool
        if logical.page_size != self.compress_ratio * pool.page_size:
            raise LayoutError(
                f"page size {logical.page_size} is not four times that of the compressed pool, {pool.page_size}, "
                "which has a slot for four tokens. Use such a page size."
            )
        self.logical_attn_allocator, self.hisparse_kvcache = logical, pool
        super().__init__(
            logical.size, logical.page_size, pool.dtype, pool.device, logical.get_kvcache(), logical.need_sort
        )
        self._size_full, self._size_swa = logical.size_full, logical.size_swa
        self.full_to_swa_index_mapping = logical.full_to_swa_index_mapping
        order = "lowest" if logical.need_sort else "lifo"
        sizes = logical.size_full, logical.size_swa, pool.size, logical.page_size
        self.core = logical.core = CompressedHiSparseAllocator(*sizes, device=pool.device, order=order)
        self._hot_mapping = SlotMapping(
            self._kvcache.c4_logical_size,
            self.hisparse_page_size,
            self.device,
            self.core.device_slots,
            tokens_per_entry=self.compress_ratio,
        )
        self.mappings = (*logical.mappings, self._hot_mapping)
        self.hisparse_attn_allocator = self._device_view()
        pool.register_mapping(self.full_to_hisparse_device_index_mapping)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Raise `NotImplementedError`: rows of this model grow by `alloc_extend`."""
        raise NotImplementedError("alloc is not supported: rows of this model grow. Use alloc_extend or alloc_decode.")

    def alloc_extend(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """Grow rows; entries that become whole get device slots. As `CoreCalls.alloc_extend`."""
        slots = super().alloc_extend(*args, **kwargs)
        if slots is not None:
            self._hot_mapping.write(slots)
        return slots

    def free_full(self, free_indices: torch.Tensor) -> None:
        """As `free`: window and device pages that are left are freed too."""
        self.free(free_indices)

    def free_swa(self, free_indices: torch.Tensor) -> None:
        """Free the window pages of the pages that the slots lie in; all else stays."""
        self.logical_attn_allocator.free_swa(free_indices)

    def free_swa_segment(self, free_indices: torch.Tensor, *, start_pos: int) -> None:
        """`free_swa` for a stretch of a row."""
        self.logical_attn_allocator.free_swa_segment(free_indices, start_pos=start_pos)

    def free_compressed(self, compressed_indices: torch.Tensor) -> None:
        """`free_hisparse` for entries given by their own ids."""
        self.free_hisparse(self._slots_of(compressed_indices))

    def debug_print(self) -> str:
        """Figures for the scheduler's log line."""
        return f"{super().debug_print()}#hisparse-available-size: {self.core.device_available_size()}, "

    def _in_buffer_order(self, entries: torch.Tensor, need_size: int) -> torch.Tensor:
        """The entries of a row that have device slots, in the order of their buffer.

        When they are too many for it, the newest begins its last page, where SGLang's coordinator looks for it.
        """
        hot = self.core.device_slots(self._slots_of(entries)).to(entries.device)
        entries, place = entries[hot > 0], need_size - self.hisparse_page_size
        if len(entries) > place + 1 > 0:
            entries[[place, -1]] = entries[[-1, place]]
        return entries

    def _write_windows(self, slots: torch.Tensor | None) -> None:
        if slots is not None:
            for mapping in self.logical_attn_allocator.mappings:
                mapping.write(slots)

    def _handed_out(self, slots: torch.Tensor | None) -> torch.Tensor | None:
        """Note the window slots alone: only `alloc_extend` hands out device slots."""
        self._write_windows(slots)
        return slots
