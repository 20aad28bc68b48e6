"""SGLang's allocators of one arena under the clock, as its own factories make them, with real bytes on the CPU.

It zeroes pages that it hands out. Growing rows on pages of several tokens is a Triton kernel with nothing in its place
on a CPU; for pages of one token it calls `alloc`.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from sides import ARENA_STATES, STATE_BYTES, TOKEN_BYTES, Call, arena_bytes

# isort: split
import side_sglang  # noqa: F401 - what SGLang reads while it is imported

# isort: split
from sglang.srt.mem_cache.unified_memory_pool import (
    init_unified_mamba_pools,
    init_unified_mamba_swa_pools,
    init_unified_swa_pools,
)
from sglang.srt.runtime_context import get_parallel

get_parallel().override_permanently(attn_dcp_size=1)  # one device, as far as its allocators ask

_HEAD = TOKEN_BYTES // 4  # K and V of one head, two bytes each
_COMMON = {
    "device": "cpu",
    "kv_cache_dtype": torch.float16,
    "head_num": 1,
    "head_dim": _HEAD,
    "v_head_dim": _HEAD,
    "start_layer": 0,
    "full_attention_layer_ids": [0],
    "enable_memory_saver": False,
    "need_sort": False,
}
_WINDOWS = {"swa_head_num": 1, "swa_head_dim": _HEAD, "swa_v_head_dim": _HEAD, "swa_attention_layer_ids": [1]}
_STATES = {
    "mamba_layer_ids": [2],
    "mamba2_cache_params": SimpleNamespace(
        shape=SimpleNamespace(conv=[(8, STATE_BYTES // 16)], temporal=(0, 0, 0)),
        dtype=SimpleNamespace(conv=torch.bfloat16, temporal=torch.float32),
        layers=[2],
    ),
    "max_mamba_cache_size": ARENA_STATES,
    "model_context_len": 4096,
    "extra_max_context_len": 1,
    "max_num_reqs": ARENA_STATES,
    "enable_mamba_extra_buffer": False,
    "enable_mamba_extra_buffer_lazy": False,
    "speculative_num_draft_tokens": None,
    "disable_overlap_schedule": True,
}


def _bundle(kind: str, num_tokens: int, page_size: int, *, lazy: bool) -> Any:
    """Arena, pools and allocators."""
    settings = {**_COMMON, "page_size": page_size, "lazy_compaction": lazy}
    if kind == "windows":
        return init_unified_swa_pools(**settings, **_WINDOWS, end_layer=2, total_bytes=arena_bytes(kind, num_tokens))
    if kind == "states":
        one_side = {"end_layer": 1, "is_draft_worker": False, "use_mla_backend": False}
        return init_unified_mamba_pools(**settings, **_STATES, **one_side, max_total_num_tokens=num_tokens)
    sizes = {"full_max_total_num_tokens": num_tokens, "swa_max_total_num_tokens": num_tokens}
    return init_unified_mamba_swa_pools(**settings, **_WINDOWS, **_STATES, **sizes, end_layer=2)


class SGLangUnifiedPool:
    """One of its allocators, called without anything between."""

    def __init__(self, kind: str, num_tokens: int, page_size: int, *, eager: bool) -> None:
        bundle = _bundle(kind, num_tokens, page_size, lazy=not eager)
        assert bundle.unified_memory_pool.total_bytes == arena_bytes(kind, num_tokens), "the same bytes on both sides"
        self._pool = bundle.token_to_kv_pool_allocator
        self._page_size = page_size
        self._bytes_moved = 0
        self.has_states = "states" in kind
        self.alloc, self.free, self.clear = self._pool.alloc, self._pool.free, self._pool.clear
        self.free_segment, self.available_size = self._pool.free_segment, self._pool.available_size
        members = [self._pool.full_attn_allocator]
        if self.has_states:
            states = bundle.req_to_token_pool.mamba_allocator
            self.alloc_states, self.free_states = states.alloc, states.free
            members.append(self._pool.mamba_allocator)
        if "windows" in kind:
            self.drop_windows = self._pool.free_swa
            members.append(self._pool.swa_attn_allocator)
        for member in members:
            member._move_pages = partial(self._count, member, member._move_pages)  # noqa: SLF001 - the one way to see it

    def _count(self, member: Any, move: Any, src_pages: torch.Tensor, dst_pages: torch.Tensor) -> None:
        """Every copy that a member makes goes through here."""
        self._bytes_moved += src_pages.numel() * member.entry_bytes_per_page
        move(src_pages, dst_pages)

    def decode_call(self, seq: torch.Tensor, _last: torch.Tensor) -> Call | None:
        """Grow rows by one token: a new page each, or not on a CPU."""
        return partial(self.alloc, len(seq)) if self._page_size == 1 else None

    def bytes_moved(self) -> int:
        """Bytes copied so far."""
        return self._bytes_moved
