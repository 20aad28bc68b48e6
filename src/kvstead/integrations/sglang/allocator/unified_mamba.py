"""SGLang's allocator for models with full layers and states in one unified buffer."""

from __future__ import annotations

from typing import Any

import torch

from kvstead.allocators import ArenaAllocator, UnifiedMambaAllocator
from kvstead.integrations.sglang.allocator.arena_admission import ArenaAdmission, StateAdmission
from kvstead.integrations.sglang.allocator.arena_calls import ArenaCalls, full_view, state_view
from kvstead.integrations.sglang.allocator.arena_pool import BufferCalls
from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.core_calls import CoreCalls
from kvstead.integrations.sglang.unified_memory_pool import UnifiedKVPool


class UnifiedMambaTokenToKVPoolAllocator(
    StateAdmission, ArenaAdmission, ArenaCalls, BufferCalls, CoreCalls, BaseTokenToKVPoolAllocator
):
    """Slots for tokens in the pool "full" of `unified_buffer`, and for states in "mamba", one a request.

    kvcache: has `full_kv_pool` and `mamba_pool`. page_size: the buffer's. lazy_compaction, forward_stream: as for
    `MultiEndedAllocator`. Raises `LayoutError` for another page size than the buffer's, or other pools.
    """

    core: ArenaAllocator

    def __init__(
        self,
        *,
        unified_buffer: UnifiedKVPool,
        kvcache: Any,
        device: str,
        page_size: int = 1,
        need_sort: bool = False,
        forward_stream: Any = None,
        lazy_compaction: bool = False,
    ) -> None:
        self.unified_buffer = unified_buffer
        unified_buffer.compact_lazily(lazy_compaction, forward_stream)
        super().__init__(0, page_size, unified_buffer.spec("full").get_dtype(), device, kvcache, need_sort)
        self.core = UnifiedMambaAllocator.over(unified_buffer.chain, order="fifo")
        self.full_attn_allocator = full_view(self, kvcache.full_kv_pool)
        self.mamba_allocator = state_view(self, kvcache.mamba_pool)
        self.full_attn_allocator.require_page_size(page_size)

    @property
    def size(self) -> int:
        """Slots that are available or in use: what the states leave."""
        return self.available_size() + self.full_attn_allocator.allocated_count()

    @size.setter
    def size(self, value: int) -> None:
        """Ignore it: the bytes decide."""

    @property
    def size_full(self) -> int:
        """Slots on the full side's grid."""
        return self.full_attn_allocator.max_slots - 1

    @property
    def size_mamba(self) -> int:
        """States on the grid of their pool."""
        return self.mamba_allocator.max_slots - 1

    full_available_size = CoreCalls.available_size  # slots have no other side

    def get_cpu_copy(self, indices: torch.Tensor, mamba_indices: Any = None, req_pool_index: Any = None) -> Any:
        """Copy entries to the host, by way of the pool, which goes by physical slots."""
        return super().get_cpu_copy(self.translate_kv_loc(indices), mamba_indices, req_pool_index)

    def load_cpu_copy(
        self, kv_cache_cpu: Any, indices: torch.Tensor, mamba_indices: Any = None, req_pool_index: Any = None
    ) -> Any:
        """Write such a copy back to `indices`."""
        return super().load_cpu_copy(kv_cache_cpu, self.translate_kv_loc(indices), mamba_indices, req_pool_index)

    def debug_print(self) -> str:
        """Figures for the scheduler's log line."""
        return f"#available: {self.available_size()}, #mamba-available: {self.mamba_allocator.available_size()}, "
