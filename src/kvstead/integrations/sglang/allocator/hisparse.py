"""SGLang's allocators for models that keep all tokens on the host and the hot ones on the device as well.

The books of the compressed one are on the host, whatever the device: a call that is handed indices on a device copies
them.
"""

from __future__ import annotations

from typing import Any

import torch

from kvstead.allocators import CompressedHiSparseAllocator
from kvstead.errors import LayoutError, MisalignedSize
from kvstead.integrations.sglang import leaves
from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.swa import SWATokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.tiers import LogicalTier, TieredAllocator
from kvstead.integrations.sglang.mapping import TokenMapping


class HiSparseTokenToKVPoolAllocator(TieredAllocator):
    """Logical slots for all tokens, and device slots for the hot ones. Frees take effect at once, in a group too.

    size: device slots; there are `host_to_device_ratio` times as many logical ones, and `.size` is their number. The
    other arguments as for `BaseTokenToKVPoolAllocator`.
    """

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
        self._device_size, self._ratio = size, host_to_device_ratio
        super().__init__(size * host_to_device_ratio, page_size, dtype, device, kvcache, need_sort)
        self._mapping = TokenMapping(self.size, page_size, device)
        self._scratch_size = self._buffer_size = 0
        kvcache.register_mapping(self.full_to_hisparse_device_index_mapping)

    @property
    def logical_attn_allocator(self) -> BaseTokenToKVPoolAllocator:
        """The logical side alone."""
        return LogicalTier(self)

    def alloc_logical_only(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
    ) -> torch.Tensor | None:
        """`alloc_extend` without device slots."""
        return self.core.alloc_logical_only(prefix_lens_cpu, seq_lens_cpu, last_loc)

    def configure_spec_scratch(self, capacity: int, *, device_buffer_size: int = 0) -> None:
        """Note what each request takes on the device beside its tokens. Raises `MisalignedSize` for parts of pages."""
        for size in (capacity, device_buffer_size):
            if size < 0 or size % self.page_size:
                raise MisalignedSize(
                    f"{size} slots are no whole number of pages of {self.page_size}. Ask for a multiple, or for 0."
                )
        self._scratch_size = capacity
        self._buffer_size = device_buffer_size if capacity else 0

    def request_slot_reserve(self, *, has_req_pool_slot: bool, prefill_tokens: int = 0) -> int:
        """Slots that a request takes besides those of its tokens: what its buffer lacks, and its scratch."""
        prefilled = -(-prefill_tokens // self.page_size) * self.page_size
        return max(0, self._buffer_size - prefilled) + (0 if has_req_pool_slot else self._scratch_size)

    def _new_core(self) -> leaves.TwoTiers:
        return leaves.tiered_pool(self._device_size, self.page_size, self.device, self.need_sort, self._ratio)

    def _handed_out(self, slots: torch.Tensor | None) -> torch.Tensor | None:
        if slots is not None:
            self._mapping.write(slots, self.core.device_slots(slots))
        return slots


class DeepSeekV4HiSparseTokenToKVPoolAllocator(TieredAllocator):
    """A full side, a window side and, for every four tokens of the full one, a slot of the compressed device pool.

    logical_attn_allocator: a new `SWATokenToKVPoolAllocator`, whose books are those of all sides from now on. Frees of
    all sides wait for the end of the one group. Raises `LayoutError` when a page of its does not fill one page of the
    compressed pool.
    """

    core: CompressedHiSparseAllocator
    compress_ratio = 4

    def __init__(self, logical_attn_allocator: SWATokenToKVPoolAllocator) -> None:
        logical, pool = logical_attn_allocator, logical_attn_allocator.get_kvcache().c4_kv_pool
        if logical.page_size != self.compress_ratio * pool.page_size:
            raise LayoutError(
                f"pages of {logical.page_size} tokens do not fill pages of {pool.page_size} slots, four tokens a slot. "
                "Use a page size four times that of the compressed pool."
            )
        self.logical_attn_allocator, self.hisparse_kvcache = logical, pool
        super().__init__(
            logical.size, logical.page_size, pool.dtype, pool.device, logical.get_kvcache(), logical.need_sort
        )
        shared: Any = self.core  # a `SplitSWAAllocator` with hot pages
        logical.core = shared
        entries = self._kvcache.c4_logical_size
        self._mapping = TokenMapping(entries, self.hisparse_page_size, self.device)
        pool.register_mapping(self.full_to_hisparse_device_index_mapping)

    @property
    def size_full(self) -> int:
        """Slots of the full side."""
        return self.logical_attn_allocator.size_full

    @property
    def size_swa(self) -> int:
        """Slots of the window side."""
        return self.logical_attn_allocator.size_swa

    @property
    def full_to_swa_index_mapping(self) -> torch.Tensor:
        """Where the window side of each full slot lies."""
        return self.logical_attn_allocator.full_to_swa_index_mapping

    def full_available_size(self) -> int:
        """Full slots that can be allocated now, with their device slots."""
        return self.core.full_available_size()

    def swa_available_size(self) -> int:
        """Window slots that can be allocated now."""
        return self.core.swa_available_size()

    def swa_capacity_and_available(
        self, *, full_capacity: int, swa_capacity: int
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """(capacity, available) of the full side and of the window side."""
        return (full_capacity, self.full_available_size()), (swa_capacity, self.swa_available_size())

    def reclaim_for_prealloc(self, tree_cache: Any, full_tokens: int, swa_tokens: int) -> str | None:
        """Have the prefix cache give back what `swa_tokens` window slots lack: None, or in words what still lacks."""
        return self.logical_attn_allocator.reclaim_for_prealloc(tree_cache, full_tokens, swa_tokens)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Raise: rows of this model grow by `alloc_extend`."""
        raise NotImplementedError("Whole pages are not handed out here. Use alloc_extend or alloc_decode.")

    def alloc_extend(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """Grow rows; entries that become whole get device slots. As `CoreAllocator.alloc_extend`."""
        return self._handed_out(self.logical_attn_allocator.alloc_extend(*args, **kwargs))

    def alloc_decode(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """Grow each row by one token, without device slots. As `CoreAllocator.alloc_decode`."""
        return self.logical_attn_allocator.alloc_decode(*args, **kwargs)

    def alloc_logical_only(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
    ) -> torch.Tensor | None:
        """`alloc_extend` without device slots."""
        slots = self.core.alloc_logical_only(prefix_lens_cpu, seq_lens_cpu, last_loc)
        if slots is not None:
            self.logical_attn_allocator.set_full_to_swa_mapping(slots, self.core.window_slots(slots))
        return slots

    def alloc_extend_swa_tail(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        swa_tail_len: int,
    ) -> torch.Tensor | None:
        """`alloc_logical_only` of one row, with window pages only under its last `swa_tail_len` tokens."""
        return self.logical_attn_allocator.alloc_extend_swa_tail(
            prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens, swa_tail_len
        )

    def free_full(self, free_indices: torch.Tensor) -> None:
        """As `free`; where a window page is left, it goes too."""
        self.free(free_indices)

    def free_swa(self, free_indices: torch.Tensor) -> None:
        """Give back the window pages of the pages that the slots lie in; all else stays."""
        self.logical_attn_allocator.free_swa(free_indices)

    def free_swa_segment(self, free_indices: torch.Tensor, *, start_pos: int) -> None:
        """`free_swa` for a stretch of a row."""
        self.logical_attn_allocator.free_swa_segment(free_indices, start_pos=start_pos)

    def free_compressed(self, compressed_indices: torch.Tensor) -> None:
        """`free_hisparse` for entries given by their own ids."""
        self.free_hisparse(self._slots_of(compressed_indices))

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """Window slots of full slots: 0 for none, -1 for -1."""
        return self.logical_attn_allocator.translate_loc_from_full_to_swa(kv_indices)

    def translate_swa_indices_for_transfer(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """The window slots of full slots as the transfer engine counts them: they are the entries' own."""
        return self.logical_attn_allocator.translate_swa_indices_for_transfer(kv_indices)

    def create_prefill_budget(self, tree_cache: Any, *, num_mixed_decode_tokens: int = 0) -> Any:
        """SGLang's own account of what one prefill pass may take of each side."""
        from sglang.srt.mem_cache.prefill_budget import SWAPrefillBudget

        return SWAPrefillBudget(self, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)

    def debug_print(self) -> str:
        """Figures for the scheduler's log line."""
        available = self.core.device_available_size()
        return f"{self.logical_attn_allocator.debug_print()}#hisparse-available-size: {available}, "

    @property
    def _logical(self) -> Any:
        return self.logical_attn_allocator

    def _in_buffer_order(self, entries: torch.Tensor, need_size: int) -> torch.Tensor:
        """A row's entries; the newest of those that are too many for the buffer begins the last page of it.

        That is where the coordinator looks for it.
        """
        hot = self.core.device_slots(self._slots_of(entries)).to(entries.device)
        entries, place = entries[hot > 0], need_size - self.hisparse_page_size
        if len(entries) > place + 1 > 0:
            entries[[place, -1]] = entries[[-1, place]]
        return entries

    def _new_core(self) -> CompressedHiSparseAllocator:
        logical, pool = self.logical_attn_allocator, self.hisparse_kvcache
        order = "lowest" if self.need_sort else "lifo"
        sizes = logical.size_full, logical.size_swa, pool.size, logical.page_size
        return CompressedHiSparseAllocator(*sizes, device=self.device, order=order)

    def _handed_out(self, slots: torch.Tensor | None) -> torch.Tensor | None:
        if slots is not None:
            hot = self.core.device_slots(slots)
            there = hot > 0
            self._mapping.write(slots[there] // self.compress_ratio, hot[there])
        return slots
