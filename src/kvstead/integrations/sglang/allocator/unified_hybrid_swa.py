"""SGLang's allocators for models with full and sliding layers in one unified buffer, with and without states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kvstead.allocators import ArenaSWAAllocator, UnifiedMambaSWAAllocator, UnifiedSWAAllocator
from kvstead.errors import InvalidSize
from kvstead.integrations.sglang.allocator.arena_admission import ArenaAdmission, StateAdmission
from kvstead.integrations.sglang.allocator.arena_calls import ArenaCalls, full_view, state_view, window_view
from kvstead.integrations.sglang.allocator.arena_pool import ArenaPoolView, BufferCalls
from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.core_calls import CoreCalls
from kvstead.integrations.sglang.allocator.swa import SWATokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.window_admission import EvictingStates, WindowAdmission
from kvstead.integrations.sglang.allocator.window_calls import WindowCalls
from kvstead.integrations.sglang.attribute_of import AttributeOf
from kvstead.integrations.sglang.unified_memory_pool import UnifiedKVPool


@SWATokenToKVPoolAllocator.register  # SGLang asks by isinstance; the two share their calls, not their state
class UnifiedSWAAllocatorBase(
    WindowAdmission, ArenaAdmission, ArenaCalls, BufferCalls, CoreCalls, WindowCalls, BaseTokenToKVPoolAllocator
):
    """Slots in the pool "full" of `unified_buffer`, with window slots in "swa" until the window has moved on.

    full_max_total_num_tokens, swa_max_total_num_tokens: what each side counts as its size, both or neither; by default
    what it could hold alone. kvcache: has `full_kv_pool`, `swa_kv_pool` and `attach_allocators`. The others as for
    `MultiEndedAllocator`.

    Raises `InvalidSize` for one of the sizes without the other, `LayoutError` for another page size than the buffer's,
    or other pools.
    """

    core: ArenaSWAAllocator
    _core_type: type[UnifiedSWAAllocator | UnifiedMambaSWAAllocator] = UnifiedSWAAllocator
    swa_attn_allocator: ArenaPoolView

    swa_v2p_page_table = AttributeOf[torch.Tensor]("swa_attn_allocator.virtual_to_physical")
    _full_max_total_num_tokens = AttributeOf[int]("_size_full")
    _swa_max_total_num_tokens = AttributeOf[int]("_size_swa")

    def __init__(
        self,
        *,
        unified_buffer: UnifiedKVPool,
        kvcache: Any,
        device: str,
        full_max_total_num_tokens: int | None = None,
        swa_max_total_num_tokens: int | None = None,
        page_size: int = 1,
        need_sort: bool = False,
        forward_stream: Any = None,
        lazy_compaction: bool = False,
    ) -> None:
        full, window = full_max_total_num_tokens, swa_max_total_num_tokens
        if (full is None) != (window is None):
            raise InvalidSize(f"the sides are to have {full} and {window} slots. Give both sizes, or neither.")
        self.unified_buffer = unified_buffer
        unified_buffer.compact_lazily(lazy_compaction, forward_stream)
        self.core = self._core_type.over(unified_buffer.chain, order="fifo")
        if full is None or window is None:
            full = self.core.full_available_size()
            window = min(self.core.swa_available_size(), self.core.size)  # a window slot needs the id of a full one
        self._size_full, self._size_swa = full, window
        dtype = unified_buffer.spec("full").get_dtype()
        super().__init__(min(full, window), page_size, dtype, device, kvcache, need_sort)
        self.full_attn_allocator = full_view(self, kvcache.full_kv_pool)
        self.swa_attn_allocator = window_view(self, kvcache.swa_kv_pool)
        self.full_attn_allocator.require_page_size(page_size)
        kvcache.attach_allocators(full_allocator=self.full_attn_allocator, swa_allocator=self.swa_attn_allocator)

    @property
    def swa_free_group(self) -> list[Any]:
        """The window frees of the open group, one entry a call."""
        pages = self.core.pools["window"]
        return [release for release in self.free_group or () if release.pool is pages]

    @property
    def current_full_capacity(self) -> int:
        """Full slots that are available or in use: what the other pools leave."""
        return self.full_available_size() + self.full_attn_allocator.allocated_count()

    @property
    def current_swa_capacity(self) -> int:
        """Window slots that are available or in use: what the other pools leave."""
        return self.swa_available_size() + self.swa_attn_allocator.allocated_count()

    def full_available_size(self) -> int:
        """Full slots that fit now if the other pools take none, and no more than is left of the side's size."""
        return min(self.conserve_full_available_size(), self.full_room())

    def swa_available_size(self) -> int:
        """Window slots that fit now if the other pools take none, and no more than is left of the side's size."""
        return min(self.conserve_swa_available_size(), self.core.swa_available_size())

    def schedulable_swa_available_size(self) -> int:
        """Window slots that fit now, if the other pools take none."""
        return self.core.swa_available_size()

    def conserve_full_available_size(self) -> int:
        """What is left of the full side's size."""
        return self._size_full - self.full_attn_allocator.allocated_count()

    def conserve_swa_available_size(self) -> int:
        """What is left of the window side's size."""
        return self._size_swa - self.swa_attn_allocator.allocated_count()

    schedulable_full_available_size = ArenaCalls.full_room
    _conserve_full_available_size = conserve_full_available_size
    _conserve_swa_available_size = conserve_swa_available_size

    def new_pages_available(self, num_full_pages: int, num_swa_pages: int) -> bool:
        """Whether so many pages of both sides fit now, together."""
        return self.ensure_capacity(num_full_pages * self.page_size, num_swa_pages * self.page_size)

    def swa_capacity_and_available(
        self, *, full_capacity: int, swa_capacity: int
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """(capacity, available) of the full side and of the window side, as they are now."""
        return super().swa_capacity_and_available(
            full_capacity=self.current_full_capacity, swa_capacity=self.current_swa_capacity
        )

    def translate_loc_from_full_to_swa(
        self, kv_indices: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Where the window side of full slots lies now, 0 for a slot without one: as `translate_kv_loc`."""
        return self.swa_attn_allocator.translate_kv_loc(kv_indices, out=out)

    def set_full_to_swa_mapping(self, full_indices: torch.Tensor, swa_indices: torch.Tensor) -> None:
        """Give full slots the window pages that lie at `swa_indices`, which other full slots had until now."""
        self.swa_attn_allocator.bind(full_indices // self.page_size, swa_indices // self.page_size)

    def clear_full_to_swa_mapping(self, full_indices: torch.Tensor) -> None:
        """Do nothing: slots lose their window pages when these are given to others."""

    def debug_print(self) -> str:
        """Figures for the scheduler's log line."""
        full, window = self.full_room(), self.core.swa_available_size()
        return f"#available: {self.available_size()}, #full-available: {full}, #swa-available: {window}, "


class UnifiedSWATokenToKVPoolAllocator(UnifiedSWAAllocatorBase):
    """A `UnifiedSWAAllocatorBase` of the two pools."""


class UnifiedMambaSWATokenToKVPoolAllocator(StateAdmission, UnifiedSWAAllocatorBase):
    """A `UnifiedSWAAllocatorBase` with states in the pool "mamba". mamba_kvcache: what their slots index."""

    _core_type = UnifiedMambaSWAAllocator
    request_demand: Mapping[str, int] = {"state": 1}

    def __init__(self, *, mamba_kvcache: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.mamba_allocator = state_view(self, mamba_kvcache)

    def create_prefill_budget(self, tree_cache: Any, *, num_mixed_decode_tokens: int = 0) -> Any:
        """As `WindowAdmission.create_prefill_budget`; states that can be evicted count."""
        budget = super().create_prefill_budget(tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)
        budget.allocator = EvictingStates(self, tree_cache)
        return budget

    def _token_bytes(self) -> int:
        return self.full_attn_allocator.entry_bytes + self.swa_attn_allocator.entry_bytes

    def debug_print(self) -> str:
        """Figures for the scheduler's log line."""
        return f"{super().debug_print()}#mamba-available: {self.mamba_allocator.available_size()}, "
