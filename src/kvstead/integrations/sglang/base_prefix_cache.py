"""What a prefix cache is asked and what it answers, in SGLang's words.

In a process that has loaded SGLang its own types are used (`engine_types`), so that its callers get what they know; the
plain ones below stand in for them elsewhere.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from kvstead.integrations.sglang.radix_key import RadixKey


@dataclass(slots=True)
class CacheInitParams:
    """What a cache is made of.

    token_to_kv_pool_allocator: gets back what is evicted; None for a tree without memory. page_size: that allocator's.
    """

    disable: bool
    req_to_token_pool: Any
    token_to_kv_pool_allocator: Any
    page_size: int
    is_eagle: bool = False
    eviction_policy: str = "lru"
    eviction_policy_config: dict[str, Any] | None = None
    enable_kv_cache_events: bool = False


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
    """How many tokens, window slots and states are wanted back."""

    num_tokens: int = 0
    swa_num_tokens: int = 0
    mamba_num: int = 0


class MatchResult(NamedTuple):
    """The cached part of a key: its length in tokens, and the node where it ends, which is all three of the nodes."""

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
    """Tokens, window slots and states given back."""

    num_tokens_evicted: int = 0
    swa_num_tokens_evicted: int = 0
    mamba_num_evicted: int = 0


class IncLockRefResult(NamedTuple):
    """By how many tokens what can be evicted has changed."""

    delta: int | None = None


class DecLockRefResult(NamedTuple):
    """By how many tokens what can be evicted has changed."""

    delta: int | None = None


class TreeLock(NamedTuple):
    """One lock of a node, for whoever gives it back."""

    node: Any
    receipt: Any = None


def engine_types() -> Any:
    """The module whose types are handed out: SGLang's, where this process has loaded it, else this one."""
    return sys.modules.get("sglang.srt.mem_cache.base_prefix_cache", sys.modules[__name__])
