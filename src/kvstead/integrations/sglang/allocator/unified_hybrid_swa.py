"""SGLang's allocators for models with full and sliding layers in one unified buffer, with and without states."""

from __future__ import annotations

from typing import Any

import torch

from kvstead.allocators import UnifiedMambaSWAAllocator, UnifiedSWAAllocator
from kvstead.errors import InvalidSize
from kvstead.integrations.sglang.allocator.swa import SWATokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.unified_shared import UnifiedAllocator, UnifiedStateAllocator
from kvstead.integrations.sglang.allocator.unified_sides import FullArenaSide, StateArenaSide, WindowArenaSide
from kvstead.integrations.sglang.unified_memory_pool import UnifiedKVPool


class _NoMapping:
    """In the place of the tensor from full to window slots: both sides' tables say it."""

    tensor = None

    def erase(self, slots: torch.Tensor) -> None:
        """Nothing to change."""

    def erase_all(self) -> None:
        """Nothing to change."""


class UnifiedSWAAllocatorBase(UnifiedAllocator, SWATokenToKVPoolAllocator):
    """Slots in the pool "full" of `unified_buffer`, with window slots in "swa" until the window has moved on.

    full_max_total_num_tokens, swa_max_total_num_tokens: what each side counts as its size, both or neither; by default
    what it could hold alone. kvcache: has `full_kv_pool`, `swa_kv_pool` and `attach_allocators`. The others as for
    `MultiEndedAllocator`.

    Raises `InvalidSize` for one of the sizes without the other, `LayoutError` for another page size than the buffer's,
    or other pools.
    """

    core: UnifiedSWAAllocator  # type: ignore[assignment]  # its sides cannot be taken apart
    full_attn_allocator: FullArenaSide  # type: ignore[assignment]  # as above
    swa_attn_allocator: WindowArenaSide  # type: ignore[assignment]  # as above

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
        dtype = unified_buffer.spec("full").get_dtype()
        SWATokenToKVPoolAllocator.__init__(self, full or 0, window or 0, page_size, dtype, device, kvcache, need_sort)
        self.full_attn_allocator.require_page_size(page_size)
        if full is None:
            self._size_full = self.core.full_available_size()
            self._size_swa = min(self.core.swa_available_size(), self.core.size)  # a window slot needs a full one's id
            self.size = min(self._size_full, self._size_swa)
        kvcache.attach_allocators(full_allocator=self.full_attn_allocator, swa_allocator=self.swa_attn_allocator)

    @property
    def swa_v2p_page_table(self) -> torch.Tensor:
        """`virtual_to_physical` of the window side."""
        return self.swa_attn_allocator.virtual_to_physical

    @property
    def swa_free_group(self) -> list[Any]:
        """What the open group holds of the window side, one entry a call."""
        return [release for release in self.free_group or () if release.pool.pool == "window"]

    @property
    def _full_max_total_num_tokens(self) -> int:
        return self._size_full

    @property
    def _swa_max_total_num_tokens(self) -> int:
        return self._size_swa

    @property
    def current_full_capacity(self) -> int:
        """Full slots that are available or in use: what the other pools leave."""
        return self.full_available_size() + self.full_attn_allocator.allocated_count()

    @property
    def current_swa_capacity(self) -> int:
        """Window slots that are available or in use."""
        return self.swa_available_size() + self.swa_attn_allocator.allocated_count()

    def full_room(self) -> int:
        """Full slots that there is room for, if the other pools take none."""
        return self.core.full_available_size()

    def full_available_size(self) -> int:
        """`full_room`, and no more than is left of the side's size."""
        return min(self._conserve_full_available_size(), self.full_room())

    def swa_available_size(self) -> int:
        """The same for the window side."""
        return min(self._conserve_swa_available_size(), self.core.swa_available_size())

    def schedulable_full_available_size(self) -> int:
        """As `full_room`."""
        return self.full_room()

    def schedulable_swa_available_size(self) -> int:
        """Window slots that there is room for, if the other pools take none."""
        return self.core.swa_available_size()

    def new_pages_available(self, num_full_pages: int, num_swa_pages: int) -> bool:
        """Whether so many pages of both sides fit now, together."""
        return self.ensure_capacity(num_full_pages * self.page_size, num_swa_pages * self.page_size)

    def ensure_capacity(self, full_tokens: int, swa_tokens: int) -> bool:
        """Whether so many slots of both sides fit now, together; pages are moved when they are taken."""
        return self.core.fits(full_tokens, num_window_tokens=swa_tokens)

    def reclaim_for_prealloc(self, tree_cache: Any, full_tokens: int, swa_tokens: int) -> str | None:
        """Have the prefix cache give back until so many slots of both sides fit together: None, or in words why not."""
        if self._evict_until(
            tree_cache, lambda: 0 if self.ensure_capacity(full_tokens, swa_tokens) else self.page_size
        ):
            return None
        return f"{full_tokens} full and {swa_tokens} window slots do not fit together, and no more can be evicted"

    def swa_capacity_and_available(
        self, *, full_capacity: int, swa_capacity: int
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """(capacity, available) of the full side and of the window side, as they are now."""
        full, window = self.full_available_size(), self.swa_available_size()
        return (self.current_full_capacity, full), (self.current_swa_capacity, window)

    def translate_loc_from_full_to_swa(
        self, kv_indices: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Where the window side of full slots lies now, 0 for a slot without one: as `translate_kv_loc`."""
        return self.swa_attn_allocator.translate_kv_loc(kv_indices, out=out)

    def set_full_to_swa_mapping(self, full_indices: torch.Tensor, swa_indices: torch.Tensor) -> None:
        """Give full slots the window pages that lie at `swa_indices`, and that others held so far."""
        self.swa_attn_allocator.bind(full_indices // self.page_size, swa_indices // self.page_size)

    def clear_full_to_swa_mapping(self, full_indices: torch.Tensor) -> None:
        """Nothing: who loses its window pages loses them when another is given them."""

    def conserve_full_available_size(self) -> int:
        """What is left of the full side's size."""
        return self._size_full - self.full_attn_allocator.allocated_count()

    def conserve_swa_available_size(self) -> int:
        """What is left of the window side's size."""
        return self._size_swa - self.swa_attn_allocator.allocated_count()

    _conserve_full_available_size = conserve_full_available_size
    _conserve_swa_available_size = conserve_swa_available_size

    def debug_print(self) -> str:
        """Figures for the scheduler's log line."""
        full, window = self.full_room(), self.core.swa_available_size()
        return f"#available: {self.available_size()}, #full-available: {full}, #swa-available: {window}, "

    def _new_core(self) -> Any:
        return UnifiedSWAAllocator.over(self.unified_buffer.chain, order="fifo")

    def _new_mapping(self) -> Any:
        return _NoMapping()

    def _sides(self) -> Any:
        pools = self._kvcache
        return FullArenaSide(self, "full", pools.full_kv_pool), WindowArenaSide(self, "swa", pools.swa_kv_pool)

    def _handed_out(self, slots: torch.Tensor | None) -> torch.Tensor | None:
        return slots


class UnifiedSWATokenToKVPoolAllocator(UnifiedSWAAllocatorBase):
    """A `UnifiedSWAAllocatorBase` of the two pools."""

    def evict_to_free_tokens(
        self, tree_cache: Any, num_tokens: int, *, swa_num_tokens: int | None = None
    ) -> bool | None:
        """As `UnifiedAllocator.evict_to_free_tokens`, on both sides for the larger of the two numbers."""
        return super().evict_to_free_tokens(tree_cache, max(num_tokens, swa_num_tokens or 0))


class UnifiedMambaSWATokenToKVPoolAllocator(UnifiedSWAAllocatorBase, UnifiedStateAllocator):
    """A `UnifiedSWAAllocatorBase` with states in the pool "mamba". mamba_kvcache: what their slots index."""

    core: UnifiedMambaSWAAllocator  # type: ignore[assignment]  # as above

    def __init__(self, *, mamba_kvcache: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.mamba_allocator = StateArenaSide(self, "mamba", mamba_kvcache)

    def debug_print(self) -> str:
        """Figures for the scheduler's log line."""
        return f"{super().debug_print()}#mamba-available: {self.mamba_allocator.available_size()}, "

    def _new_core(self) -> Any:
        return UnifiedMambaSWAAllocator.over(self.unified_buffer.chain, order="fifo")

    def _token_bytes(self) -> int:
        return self.full_attn_allocator.entry_bytes + self.swa_attn_allocator.entry_bytes
