"""SGLang's allocators for models whose layers slide: beside full ones, or all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kvstead.allocators import SplitSWAAllocator
from kvstead.errors import InvalidSize
from kvstead.integrations.sglang import leaves
from kvstead.integrations.sglang.allocator.base import Segments
from kvstead.integrations.sglang.allocator.core import CoreAllocator
from kvstead.integrations.sglang.allocator.sides import FullSide, Side, WindowSide
from kvstead.integrations.sglang.mapping import IdentityMapping, TokenMapping


class SWATokenToKVPoolAllocator(CoreAllocator):
    """Full pages, each with a window page until its window has moved on.

    size, size_swa: slots of the two sides; the other arguments as for `BaseTokenToKVPoolAllocator`.

    full_to_swa_index_mapping: int64[size + page_size + 1] on the device, where the window side of each full slot lies,
    0 for none, and -1 in the last entry. One tensor for the allocator's whole life, handed to the pool once; to be read
    only.

    A pool whose windows lie in a ring of each request's own says so (`kvcache.swa_req_ring_size`). Then windows take no
    pages, and `req_to_token_pool` says how many more requests there is room for; raises `InvalidSize` without it.
    """

    core: SplitSWAAllocator  # or one with the same calls, see `leaves`

    def __init__(
        self,
        size: int,
        size_swa: int,
        page_size: int,
        dtype: torch.dtype,
        device: str,
        kvcache: Any,
        need_sort: bool,
        req_to_token_pool: Any = None,
    ) -> None:
        ring_size = getattr(kvcache, "swa_req_ring_size", None)
        self._ring_cost = -(-(ring_size or 0) // page_size) * page_size
        self._rows = req_to_token_pool
        if ring_size is not None:
            if req_to_token_pool is None:
                raise InvalidSize(
                    "Windows in rings are counted in requests. Pass req_to_token_pool, which counts them."
                )
            size_swa = req_to_token_pool.available_size() * self._ring_cost
        self._size_full, self._size_swa = size, size_swa
        super().__init__(min(size, size_swa), page_size, dtype, device, kvcache, need_sort)
        self._mapping = self._new_mapping()
        self.full_attn_allocator, self.swa_attn_allocator = self._sides()
        kvcache.register_mapping(self.full_to_swa_index_mapping)

    @property
    def full_to_swa_index_mapping(self) -> torch.Tensor:
        """Where the window side of each full slot lies."""
        return self._mapping.tensor

    @property
    def size_full(self) -> int:
        """Slots of the full side."""
        return self._size_full

    @property
    def size_swa(self) -> int:
        """Slots of the window side."""
        return self._size_swa

    @property
    def swa_req_ring(self) -> bool:
        """Whether windows lie in a ring of each request's own."""
        return self._ring_cost > 0

    @property
    def swa_ring_cost_tokens(self) -> int:
        """Window slots of such a ring, in whole pages; 0 where there is none."""
        return self._ring_cost

    @property
    def swa_free_group(self) -> list[Any]:
        """What the open group holds of the window side, one entry a call."""
        return list(self.core.window_releases())

    def full_available_size(self) -> int:
        """Full slots that can be allocated now."""
        return self.core.full_available_size()

    def swa_available_size(self) -> int:
        """Window slots that can be allocated now."""
        return self.core.swa_available_size()

    def new_pages_available(self, num_full_pages: int, num_swa_pages: int) -> bool:
        """Whether each side has so many pages now; in rings windows take none."""
        fits_window = self.swa_req_ring or num_swa_pages * self.page_size <= self.swa_available_size()
        return fits_window and num_full_pages * self.page_size <= self.full_available_size()

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
        """`alloc_extend` of one row, with window pages only under its last `swa_tail_len` tokens.

        Raises as `kvstead.allocators.SWAAllocator.alloc_extend_swa_tail`.
        """
        return self._handed_out(self.core.alloc_extend_swa_tail(prefix_lens_cpu, seq_lens_cpu, last_loc, swa_tail_len))

    def free(self, free_index: torch.Tensor) -> None:
        """Give back the pages that the slots lie in, with the window pages that they still have."""
        self._free(self.core.free, free_index)

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """`free` for a stretch of a row, whole pages at a time."""
        self._free(self.core.free_segment, free_index, start_pos=start_pos)

    def free_segments(self, segments: Segments) -> None:
        """`free` for several stretches of one row, (slots, start_pos) each, all or none."""
        self._free_all(self.core.free_segments, segments)

    def free_full(self, free_index: torch.Tensor) -> None:
        """As `free`; where a window page is left, it goes too."""
        self._free(self.core.free_full, free_index)

    def free_full_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """As `free_segment`."""
        self._free(self.core.free_full_segment, free_index, start_pos=start_pos)

    def free_full_segments(self, segments: Segments) -> None:
        """As `free_segments`."""
        self._free_all(self.core.free_full_segments, segments)

    def free_swa(self, free_index: torch.Tensor) -> None:
        """Give back the window pages of the pages that the slots lie in; the full pages stay."""
        self._free(self.core.free_swa, free_index)

    def free_swa_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """`free_swa` for a stretch of a row."""
        self._free(self.core.free_swa_segment, free_index, start_pos=start_pos)

    def set_full_to_swa_mapping(self, full_indices: torch.Tensor, swa_indices: torch.Tensor) -> None:
        """Make window pages that belong to no full page those of the full slots beside them.

        Raises as `SplitSWAAllocator.attach_windows`.
        """
        self.core.attach_windows(full_indices, swa_indices)
        self._mapping.write(full_indices, self.core.window_slots(full_indices))

    def clear_full_to_swa_mapping(self, full_indices: torch.Tensor) -> None:
        """Part the pages of full slots from their window pages, whose holder is then the caller."""
        self.core.detach_windows(full_indices)
        self._mapping.erase(full_indices)

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """Window slots of full slots, in the shape of `kv_indices`: 0 for none, -1 for -1."""
        return self.full_to_swa_index_mapping[kv_indices]

    def translate_swa_indices_for_transfer(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """The window slots of full slots as the transfer engine counts them: they are the entries' own."""
        return self.translate_loc_from_full_to_swa(kv_indices)

    def clear(self) -> None:
        """Every slot of both sides is free again, whoever held it; an open group is dropped."""
        super().clear()
        self._mapping.erase_all()

    def resize(self, config: Any) -> None:
        """Have `config.full_max_total_num_tokens` and `config.swa_max_total_num_tokens` slots, all of them free.

        Raises `InvalidSize` for more full slots than the mapping was made for.
        """
        window = self._size_swa if self.swa_req_ring else int(config.swa_max_total_num_tokens)
        self._resize(int(config.full_max_total_num_tokens), window)

    def _resize(self, full: int, window: int) -> None:
        self._mapping.require_room(full)
        self._size_full, self._size_swa, self.size = full, window, min(full, window)
        self.full_attn_allocator.size, self.swa_attn_allocator.size = full, window
        self.core = self._new_core()
        self._mapping.erase_all()

    def evict_to_free_tokens(self, tree_cache: Any, num_tokens: int) -> bool | None:
        """Have the prefix cache give back what is missing to `num_tokens` on each side, as far as it can."""
        if tree_cache is not None and tree_cache.supports_prefix_sharing():
            missing_full = num_tokens - self.full_available_size()
            missing_windows = num_tokens - self.swa_available_size()
            self._evict(tree_cache, num_tokens=missing_full, swa_num_tokens=missing_windows)
        return None

    def reclaim_for_prealloc(self, tree_cache: Any, full_tokens: int, swa_tokens: int) -> str | None:
        """Have the prefix cache give back what `swa_tokens` window slots lack: None, or in words what still lacks."""
        self._evict(tree_cache, swa_num_tokens=swa_tokens - self.swa_available_size())
        if (available := self.swa_available_size()) < swa_tokens:
            return f"{swa_tokens} window slots are needed and {available} available after eviction"
        return None

    def swa_capacity_and_available(
        self, *, full_capacity: int, swa_capacity: int
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """(capacity, available) of the full side and of the window side."""
        return (full_capacity, self.full_available_size()), (swa_capacity, self.swa_available_size())

    def create_prefill_budget(self, tree_cache: Any, *, num_mixed_decode_tokens: int = 0) -> Any:
        """SGLang's own account of what one prefill pass may take of each side."""
        from sglang.srt.mem_cache.prefill_budget import SWAPrefillBudget

        return SWAPrefillBudget(self, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)

    def debug_print(self) -> str:
        """Figures for the scheduler's log line."""
        return f"#full-available-size: {self.full_available_size()}, #swa-available-size: {self.swa_available_size()}, "

    def _conserve_full_available_size(self) -> int:
        return self.full_available_size()

    def _conserve_swa_available_size(self) -> int:
        return self.swa_available_size()

    def _new_core(self) -> Any:
        where = (self.page_size, self.device, self.need_sort)
        if self.swa_req_ring:
            return leaves.ring_pool(self._size_full, *where, self._rows.available_size, self._ring_cost)
        return leaves.window_pools(self._size_full, self._size_swa, *where)

    def _new_mapping(self) -> TokenMapping:
        return TokenMapping(self._size_full, self.page_size, self.device)

    def _sides(self) -> tuple[Side, Side]:
        full = FullSide(self, self._size_full, getattr(self._kvcache, "full_kv_pool", None))
        return full, WindowSide(self, self._size_swa, getattr(self._kvcache, "swa_kv_pool", None))

    def _handed_out(self, slots: torch.Tensor | None) -> torch.Tensor | None:
        if slots is not None:
            self._mapping.write(slots, self.core.window_slots(slots))
        return slots

    def _free(self, free: Callable[..., None], free_index: torch.Tensor, **position: int) -> None:
        free(free_index, **position)
        self._mapping.erase(free_index)

    def _free_all(self, free: Callable[..., None], segments: Segments) -> None:
        free(segments := list(segments))
        for free_index, _ in segments:
            self._mapping.erase(free_index)


class PureSWATokenToKVPoolAllocator(SWATokenToKVPoolAllocator):
    """Pages that are their own window pages: `free_swa` is `free`, and `free_full` does nothing.

    size_swa: slots; the other arguments as for `BaseTokenToKVPoolAllocator`. The second of `free_swa` and `free` of a
    slot raises `DoubleFree`.
    """

    def __init__(
        self, size_swa: int, page_size: int, dtype: torch.dtype, device: str, kvcache: Any, need_sort: bool
    ) -> None:
        super().__init__(size_swa, size_swa, page_size, dtype, device, kvcache, need_sort)

    @property
    def swa_free_group(self) -> list[Any]:
        """What the open group holds."""
        return list(self.free_group or ())

    def resize(self, config: Any) -> None:
        """Have `config.swa_max_total_num_tokens` slots, all of them free.

        Raises `InvalidSize` for more than the mapping was made for.
        """
        size = int(config.swa_max_total_num_tokens)  # SGLang says 0 for the full side, there being none
        self._resize(size, size)

    def set_full_to_swa_mapping(self, full_indices: torch.Tensor, swa_indices: torch.Tensor) -> None:
        """Raise: a slot's window side is the slot itself."""
        raise NotImplementedError("The window side of a slot is the slot itself, and cannot be another.")

    def clear_full_to_swa_mapping(self, full_indices: torch.Tensor) -> None:
        """Raise: a slot's window side is the slot itself."""
        raise NotImplementedError("The window side of a slot is the slot itself. Give it back with free_swa.")

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """`kv_indices` itself."""
        return kv_indices

    def create_prefill_budget(self, tree_cache: Any, *, num_mixed_decode_tokens: int = 0) -> Any:
        """SGLang's own account of what one prefill pass may take, of windows alone."""
        from sglang.srt.mem_cache.prefill_budget import SWAPrefillBudget

        return SWAPrefillBudget(self, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens, all_swa=True)

    def _new_core(self) -> Any:
        return leaves.pure_window_pool(self._size_swa, self.page_size, self.device, self.need_sort)

    def _new_mapping(self) -> TokenMapping:
        return IdentityMapping(self._size_swa, self.page_size, self.device)

    def _sides(self) -> tuple[Side, Side]:
        only = Side(self, self._size_swa, getattr(self._kvcache, "swa_kv_pool", None))
        return only, only


def is_swa_req_ring(allocator: Any) -> bool:
    """Whether an allocator of any kind keeps windows in a ring of each request's own."""
    return isinstance(allocator, SWATokenToKVPoolAllocator) and allocator.swa_req_ring
