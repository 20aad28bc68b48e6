"""SGLang's allocators for models with sliding windows, in some of their layers or in all."""
# ruff: noqa: PLW0108 - a resize replaces the core, so its methods are looked up when they are called

from __future__ import annotations

from typing import Any

import torch

from kvstead.errors import InvalidSize
from kvstead.integrations.sglang.allocator import backends
from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.core_calls import CoreCalls
from kvstead.integrations.sglang.allocator.pool_view import PoolCalls, PoolView
from kvstead.integrations.sglang.allocator.slot_mapping import SlotMapping, identity_mapping, require_capacity
from kvstead.integrations.sglang.allocator.window_calls import WindowCalls


class SWATokenToKVPoolAllocator(CoreCalls, WindowCalls, BaseTokenToKVPoolAllocator):
    """Full pages, each with a window page until its window has moved on.

    size, size_swa: slots of the two sides; the other arguments as for `BaseTokenToKVPoolAllocator`.

    full_to_swa_index_mapping: int64[size + page_size + 1] on the device, the window slot of each full slot, 0 for none,
    and -1 in the last entry. One tensor for the allocator's whole life, handed to the pool once; only to be read.
    full_attn_allocator, swa_attn_allocator: views of the two sides.

    A pool whose windows lie in a ring of each request's own says so (`kvcache.swa_req_ring_size`). Then windows take no
    pages, and `req_to_token_pool` says how many more requests fit; raises `InvalidSize` without it.
    """

    core: backends.WithLooseWindows
    full_to_swa_index_mapping: torch.Tensor

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
        if ring_size is not None:
            if req_to_token_pool is None:
                raise InvalidSize(
                    "req_to_token_pool is missing, and windows in rings are counted in requests. Pass their table."
                )
            self.swa_ring_cost_tokens = -(-ring_size // page_size) * page_size
            size_swa = req_to_token_pool.available_size() * self.swa_ring_cost_tokens
        self.swa_req_ring = self.swa_ring_cost_tokens > 0
        self._rows = req_to_token_pool
        self._size_full, self._size_swa = size, size_swa
        super().__init__(min(size, size_swa), page_size, dtype, device, kvcache, need_sort)
        self.core = self._new_core()
        self.full_to_swa_index_mapping = self._new_mapping()
        self.full_attn_allocator, self.swa_attn_allocator = self._views()
        kvcache.register_mapping(self.full_to_swa_index_mapping)

    @property
    def swa_free_group(self) -> list[Any]:
        """The window frees of the open group, one entry a call."""
        return list(self.core.window_releases())

    def new_pages_available(self, num_full_pages: int, num_swa_pages: int) -> bool:
        """Whether each side has so many pages now; windows in rings take none."""
        fits_window = self.swa_req_ring or num_swa_pages * self.page_size <= self.swa_available_size()
        return fits_window and num_full_pages * self.page_size <= self.full_available_size()

    def set_full_to_swa_mapping(self, full_indices: torch.Tensor, swa_indices: torch.Tensor) -> None:
        """Link window pages that belong to no full page to the pages of the full slots beside them.

        Raises as `SplitSWAAllocator.attach_windows`.
        """
        self.core.attach_windows(full_indices, swa_indices)
        self._handed_out(full_indices)

    def clear_full_to_swa_mapping(self, full_indices: torch.Tensor) -> None:
        """Unlink the window pages of the pages of full slots; from then on they are the caller's to free."""
        self.core.detach_windows(full_indices)
        self._erase(full_indices)

    def resize(self, config: Any) -> None:
        """Have `config.full_max_total_num_tokens` and `config.swa_max_total_num_tokens` slots, all of them free.

        Raises `InvalidSize` for more full slots than the mapping was made for.
        """
        window = self._size_swa if self.swa_req_ring else int(config.swa_max_total_num_tokens)
        self._resize(int(config.full_max_total_num_tokens), window)

    def evict_to_free_tokens(self, tree_cache: Any, num_tokens: int) -> bool | None:
        """Evict what is missing to `num_tokens` on each side, as far as the prefix cache can."""
        if tree_cache is not None and tree_cache.supports_prefix_sharing():
            missing_full = num_tokens - self.full_available_size()
            missing_windows = num_tokens - self.swa_available_size()
            self._evict(tree_cache, num_tokens=missing_full, swa_num_tokens=missing_windows)
        return None

    # What SGLang's leak check reads.
    _conserve_full_available_size = WindowCalls.full_available_size
    _conserve_swa_available_size = WindowCalls.swa_available_size

    def _resize(self, full: int, window: int) -> None:
        require_capacity(self.full_to_swa_index_mapping, full, self.page_size)
        self._size_full, self._size_swa, self.size = full, window, min(full, window)
        self.full_attn_allocator.size, self.swa_attn_allocator.size = full, window
        self.core = self._new_core()
        for mapping in self.mappings:
            mapping.erase_all()

    def _new_core(self) -> Any:
        where = (self.page_size, self.device, self.need_sort)
        if self.swa_req_ring:
            num_rows = self._rows.available_size
            return backends.ring_pool(self._size_full, *where, num_rows, self.swa_ring_cost_tokens)
        return backends.window_pools(self._size_full, self._size_swa, *where)

    def verify_byte_accounting(self) -> list[str]:
        """As for every allocator; on the host, entries of the mapping that somebody else wrote as well."""
        faults = super().verify_byte_accounting()
        if torch.device(self.device).type == "cpu":
            faults += [fault for mapping in self.mappings if (fault := mapping.foreign_writes())]
        return faults

    def _new_mapping(self) -> torch.Tensor:
        mapping = SlotMapping(
            self._size_full, self.page_size, self.device, find=lambda slots: self.core.window_slots(slots)
        )
        self.mappings = (mapping,)
        return mapping.tensor

    def _views(self) -> tuple[PoolView, PoolView]:
        """The full and the window side, each with slots that are not linked. A resize replaces `core`."""
        full = PoolCalls(
            available_size=self.full_available_size,
            free_pages=lambda: self.core.free_pages(),
            alloc=lambda need_size: self.core.alloc_full(need_size),
            free=self.free_full,
            free_segment=self.free_full_segment,
        )
        window = PoolCalls(
            available_size=self.swa_available_size,
            free_pages=lambda: self.core.window_free_pages(),
            alloc=lambda need_size: self.core.alloc_window(need_size),
            free=lambda free_index: self.core.free_window(free_index),
        )
        full_pool, window_pool = (getattr(self._kvcache, name, None) for name in ("full_kv_pool", "swa_kv_pool"))
        return PoolView(self, full, self._size_full, full_pool), PoolView(self, window, self._size_swa, window_pool)


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
        """All frees of the open group, one entry a call."""
        return list(self.free_group or ())

    def resize(self, config: Any) -> None:
        """Have `config.swa_max_total_num_tokens` slots, all of them free.

        Raises `InvalidSize` for more than the mapping was made for.
        """
        size = int(config.swa_max_total_num_tokens)  # SGLang says 0 for the full side, as there is none
        self._resize(size, size)

    def set_full_to_swa_mapping(self, full_indices: torch.Tensor, swa_indices: torch.Tensor) -> None:
        """Raise `NotImplementedError`: the window slot of a slot is the slot itself."""
        raise NotImplementedError("The window slot of a slot is the slot itself and cannot be another.")

    def clear_full_to_swa_mapping(self, full_indices: torch.Tensor) -> None:
        """Raise `NotImplementedError`: the window slot of a slot is the slot itself."""
        raise NotImplementedError("The window slot of a slot is the slot itself. Free it with free_swa.")

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """Return `kv_indices` as they are."""
        return kv_indices

    def create_prefill_budget(self, tree_cache: Any, *, num_mixed_decode_tokens: int = 0) -> Any:
        """SGLang's budget of what one prefill pass may take, in windows alone."""
        from sglang.srt.mem_cache.prefill_budget import SWAPrefillBudget

        return SWAPrefillBudget(self, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens, all_swa=True)

    def _new_core(self) -> Any:
        return backends.pure_window_pool(self._size_swa, self.page_size, self.device, self.need_sort)

    def _new_mapping(self) -> torch.Tensor:
        return identity_mapping(self._size_swa, self.page_size, self.device)

    def _views(self) -> tuple[PoolView, PoolView]:
        calls = PoolCalls(
            available_size=self.full_available_size,
            free_pages=lambda: self.core.free_pages(),
            alloc=self.alloc,
            free=self.free,
            free_segment=self.free_segment,
        )
        only = PoolView(self, calls, self._size_swa, getattr(self._kvcache, "swa_kv_pool", None))
        return only, only


def is_swa_req_ring(allocator: Any) -> bool:
    """Whether an allocator of any kind keeps windows in a ring of each request's own."""
    return isinstance(allocator, SWATokenToKVPoolAllocator) and allocator.swa_req_ring
