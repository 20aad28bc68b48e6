"""SGLang 0.5.23 under the clock, in an interpreter of its own. Its defaults: no checks, plain torch paths on a CPU.

On a GPU its allocators run Triton kernels instead; these figures say nothing about those.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from absent_packages import stand_in
from device import device
from sides import Call

# What SGLang imports, on the way to its allocators, that is only there for a GPU.
_GPU_ONLY = ("compressed_tensors", "gguf", "sgl_kernel", "torchvision", "tvm_ffi")

# Both are read while SGLang is imported.
os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
os.environ["SGLANG_RUST_BUILD_MODE"] = "never"
stand_in(_GPU_ONLY)

from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402


class _NoStorage:
    """In the place of the tensors that the slots index."""


@BaseSWAKVPool.register
class _NoWindowStorage:
    """The same for two sides; it keeps the mapping, as the real one does."""

    swa_req_ring_size = None

    def register_mapping(self, full_to_swa_index_mapping: torch.Tensor) -> None:
        """Where each slot's window slot is."""
        self.full_to_swa_index_mapping = full_to_swa_index_mapping

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """Window slots of slots."""
        return self.full_to_swa_index_mapping[kv_indices]


def _paged(size: int, page_size: int, where: str = "cpu") -> Any:
    return PagedTokenToKVPoolAllocator(size, page_size, torch.bfloat16, where, _NoStorage(), need_sort=False)


def window_pool(full_size: int, window_size: int, page_size: int) -> Any:
    """Full and window side, both last in, first out."""
    storage = _NoWindowStorage()
    return SWATokenToKVPoolAllocator(full_size, window_size, page_size, torch.bfloat16, "cpu", storage, need_sort=False)


def _cache(core: str, pool: Any, page_size: int, **windows: Any) -> UnifiedRadixCache:
    """Its unified radix cache on the core called `core`."""
    parts = (ComponentType.FULL, ComponentType.SWA) if windows else (ComponentType.FULL,)
    settings = {"req_to_token_pool": None, **windows}
    cache = UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            token_to_kv_pool_allocator=pool,
            page_size=page_size,
            tree_components=parts,
            tree_core_backend=core,
            **settings,
        )
    )
    assert core in type(cache.tree_core).__name__.lower() or core == "python", "the core that was asked for"
    return cache


def window_cache(core: str, pool: Any, page_size: int, span: int, table: Any = None) -> UnifiedRadixCache:
    """One with windows of `span` tokens; `table` holds the rows of requests."""
    return _cache(core, pool, page_size, sliding_window_size=span, req_to_token_pool=table)


class SGLangTree:
    """Its unified radix cache on one of its tree cores. Keys are arrays of int64, rows tensors."""

    def __init__(self, pool: Any, cache: UnifiedRadixCache) -> None:
        self._pool, self._tree = pool, cache
        self.available_size = pool.available_size

    def alloc(self, num_tokens: int) -> torch.Tensor:
        """Slots for tokens that are not cached yet."""
        return self._pool.alloc(num_tokens)

    def shared_slots(self, found: Any) -> torch.Tensor:
        """The tree's own slots for what a match found."""
        return self._tree.path_device_indices(found.last_device_node)

    def row(self, shared: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """A request's row."""
        return torch.cat((shared, own))

    def key(self, tokens: np.ndarray) -> RadixKey:
        """A prompt."""
        return RadixKey(array("q", tokens.astype(np.int64).tobytes()))

    def match_call(self, key: RadixKey) -> Call:
        """Find the longest cached prefix."""
        return partial(self._tree.match_prefix, MatchPrefixParams(key=key))

    def num_matched(self, result: Any) -> int:
        """Tokens that a match found."""
        return result.device_prefix_len

    def insert_call(self, key: RadixKey, row: torch.Tensor, num_matched: int) -> Call:
        """Cache a whole prompt; what was matched needs no freeing as a duplicate."""
        return partial(self._tree.insert, InsertParams(key=key, value=row, prev_prefix_len=num_matched))

    def evict_call(self, num_tokens: int) -> Call:
        """Give tokens back."""
        return partial(self._tree.evict, EvictParams(num_tokens=num_tokens))


class SGLangWindowTree(SGLangTree):
    """The same with windows."""

    def __init__(self, pool: Any, cache: UnifiedRadixCache) -> None:
        super().__init__(pool, cache)
        self.available_size = pool.full_available_size
        self.window_available_size = pool.swa_available_size

    def alloc(self, num_tokens: int) -> torch.Tensor:
        """Slots with window slots, as the pool's own `alloc` pairs them, which knows pages of one token only."""
        pool = self._pool
        slots = pool.full_attn_allocator.alloc(num_tokens)
        pool.set_full_to_swa_mapping(slots, pool.swa_attn_allocator.alloc(num_tokens))
        return slots

    def evict_windows_call(self, num_tokens: int) -> Call:
        """Give window slots back."""
        return partial(self._tree.evict, EvictParams(swa_num_tokens=num_tokens))


class SGLangSide:
    """SGLang with its defaults."""

    names: Sequence[str] = ("rust", "python")

    def __init__(self) -> None:
        torch.set_num_threads(1)  # as its model runner does where there is a GPU

    def token_pool(self, size: int) -> Any:
        """Page size 1, first in, first out."""
        return TokenToKVPoolAllocator(size, torch.bfloat16, "cpu", _NoStorage(), need_sort=False)

    def paged_pool(self, size: int, page_size: int) -> Any:
        """Last in, first out."""
        return _paged(size, page_size)

    def extend_call(self, pool: Any, prefix: torch.Tensor, seq: torch.Tensor, last: torch.Tensor) -> Call:
        """Grow rows from `prefix` to `seq` tokens; it wants the lengths on the host and their sum as well."""
        return partial(pool.alloc_extend, prefix, prefix, seq, seq, last, int((seq - prefix).sum()))

    def decode_call(self, pool: Any, seq: torch.Tensor, last: torch.Tensor) -> Call:
        """Grow rows by one token to `seq`."""
        return partial(pool.alloc_decode, seq, seq, last)

    def ready_call(self, num_pages: int) -> Call:
        """Make a pool and hand out its first page."""
        return lambda: _paged(num_pages, 1).alloc(1)

    def pool_bytes(self, num_pages: int) -> int:
        """Its list of free pages."""
        return _paged(num_pages, 1).free_pages.untyped_storage().nbytes()

    def tree(self, name: str, size: int, page_size: int) -> SGLangTree:
        """An empty least-recently-used tree on the core called `name`."""
        pool = _paged(size, page_size)
        return SGLangTree(pool, _cache(name, pool, page_size))

    def window_pool(self, full_size: int, window_size: int, page_size: int) -> Any:
        """Every page may have a window page."""
        return window_pool(full_size, window_size, page_size)

    def window_tree(self, size: int, page_size: int, span: int) -> SGLangWindowTree:
        """An empty least-recently-used tree with windows, on the core that it uses by default."""
        pool = window_pool(size, size, page_size)
        return SGLangWindowTree(pool, window_cache(self.names[0], pool, page_size, span))

    def batch(self, lengths: Sequence[int], span: int, page_size: int) -> Any:
        """Requests that decode. Importing its scheduler takes long, so only this scenario does."""
        from side_sglang_windows import SGLangBatch  # noqa: PLC0415

        return SGLangBatch(lengths, span, page_size)

    def unified_pool(self, kind: str, num_tokens: int, page_size: int, *, eager: bool) -> Any:
        """Pools of one arena."""
        from side_sglang_unified import SGLangUnifiedPool  # noqa: PLC0415 - as above

        return SGLangUnifiedPool(kind, num_tokens, page_size, eager=eager)


class SGLangDeviceSide(SGLangSide):
    """The same, with its indices on a device."""

    def token_pool(self, size: int) -> Any:
        """Page size 1, first in, first out."""
        return TokenToKVPoolAllocator(size, torch.bfloat16, device(), _NoStorage(), need_sort=False)

    def paged_pool(self, size: int, page_size: int) -> Any:
        """Last in, first out."""
        return _paged(size, page_size, device())

    def extend_call(self, pool: Any, prefix: torch.Tensor, seq: torch.Tensor, last: torch.Tensor) -> Call:
        """Grow rows from `prefix` to `seq` tokens; it wants the lengths on both, and their sum."""
        lengths = prefix, prefix.cpu(), seq, seq.cpu()
        return partial(pool.alloc_extend, *lengths, last, int((seq - prefix).sum()))

    def decode_call(self, pool: Any, seq: torch.Tensor, last: torch.Tensor) -> Call:
        """Grow rows by one token to `seq`."""
        return partial(pool.alloc_decode, seq, seq.cpu(), last)
