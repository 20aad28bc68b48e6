"""Parameters and results of a prefix cache, as SGLang names them.

In a process that has loaded SGLang, SGLang's own types are used (`engine_types`). Elsewhere the ones below stand in.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from kvstead.integrations.sglang.radix_node import RadixKey


@dataclass(slots=True)
class CacheInitParams:
    """What a cache is made from.

    token_to_kv_pool_allocator: where evicted slots are freed; None for a tree without memory. page_size: that
    allocator's.
    """

    disable: bool
    req_to_token_pool: Any
    token_to_kv_pool_allocator: Any
    page_size: int
    is_eagle: bool = False
    eviction_policy: str = "lru"
    eviction_policy_config: dict[str, Any] | None = None
    enable_kv_cache_events: bool = False
    dynamo_kv_event_format: bool = False
    kv_event_lora_names: Any = None
    sliding_window_size: int | None = None
    draft_swa_window: int = 0


@dataclass(slots=True)
class MatchPrefixParams:
    """A key to look up."""

    key: RadixKey
    req: Any = None


@dataclass(slots=True)
class InsertParams:
    """A key to keep, with a slot for each of its tokens."""

    key: RadixKey
    value: torch.Tensor | None = None
    priority: int = 0


@dataclass(slots=True)
class EvictParams:
    """How many tokens, window slots and states to evict."""

    num_tokens: int = 0
    swa_num_tokens: int = 0
    mamba_num: int = 0


class MatchResult(NamedTuple):
    """The cached part of a key: its length in tokens and the node where it ends; all three nodes are that one."""

    device_prefix_len: int
    last_device_node: Any
    last_host_node: Any
    best_match_node: Any
    host_hit_length: int = 0


class InsertResult(NamedTuple):
    """How many leading tokens were cached before, and the node where the key ends."""

    prefix_len: int
    last_device_node: Any = None


class EvictResult(NamedTuple):
    """Tokens, window slots and states that were evicted."""

    num_tokens_evicted: int = 0
    swa_num_tokens_evicted: int = 0
    mamba_num_evicted: int = 0


class IncLockRefResult(NamedTuple):
    """The change of `evictable_size`, in tokens."""

    delta: int | None = None


class DecLockRefResult(NamedTuple):
    """The change of `evictable_size`, in tokens."""

    delta: int | None = None


@dataclass(slots=True)
class TreeLock:
    """One lock of a node, to be passed to `unlock`; `swa_released` when it no longer keeps windows."""

    node: Any
    receipt: Any = None
    swa_released: bool = False


def engine_types() -> Any:
    """The module with the types to use: SGLang's if this process has loaded it, else this one."""
    return sys.modules.get("sglang.srt.mem_cache.base_prefix_cache", sys.modules[__name__])
