"""What fits into a unified buffer, and what to evict until it does. Its pools share bytes, so this is one question."""

from __future__ import annotations

import math
from abc import ABC
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from kvstead.arena import PoolChain
from kvstead.integrations.sglang.allocator.arena_pool import ArenaPoolView
from kvstead.integrations.sglang.base_prefix_cache import engine_types
from kvstead.integrations.sglang.unified_memory_pool import UnifiedKVPool

_EVICTABLE = {"full": "full_evictable_size", "window": "swa_evictable_size", "state": "mamba_evictable_size"}
KEPT_FIRST = ("state", "window", "full")  # pools, those of which as little as possible is evicted first


class ArenaAdmission(ABC):
    """The part of an allocator over a unified buffer that admits and evicts. It goes before `CoreCalls`.

    Figures are exact, moves included, so there is one where SGLang has several. A demand is a number of pages of each
    pool of the chain, by name.
    """

    page_size: int
    free_group: Any
    free_group_begin: Callable[[], None]
    free_group_end: Callable[[], None]
    full_attn_allocator: ArenaPoolView
    unified_buffer: UnifiedKVPool

    def evict_to_free_tokens(self, tree_cache: Any, num_tokens: int) -> bool | None:
        """Evict until `num_tokens` fit together: whether they do; None without a prefix cache that shares.

        What is missing of one pool may come from any: as few tokens as possible, states only if tokens do not suffice,
        and nothing if all that can be evicted does not suffice. Frees that wait in an open group are made available
        first; the group stays open.
        """
        return self._evict_until_fits(tree_cache, self._demand(num_tokens))

    def get_extend_allocation_demand(
        self,
        prefix_lens_cpu: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        *,
        conservative_num_tokens: int,
        shard_size: int,
    ) -> int:
        """Slots of the pages that rows will open."""
        if shard_size != 1:
            return conservative_num_tokens
        size = self.page_size
        return int((-(-seq_lens_cpu // size) - -(-prefix_lens_cpu // size)).sum()) * size

    def flush_deferred_full_frees(self) -> None:
        """Make available what waits in the open group, which stays open."""
        if self.free_group:
            self.free_group_end()
            self.free_group_begin()

    def _demand(self, num_tokens: int) -> dict[str, int]:
        """Pages of each pool of tokens for so many tokens of all layers."""
        return {pool: self._pages(num_tokens) for pool in self.unified_buffer.chain.pools if pool != "state"}

    def _evictable(self, tree_cache: Any) -> dict[str, int]:
        """Pages of each pool that the prefix cache could evict."""
        pools = self.unified_buffer.chain.pools
        return {pool: self._whole(pool, getattr(tree_cache, _EVICTABLE[pool])()) for pool in pools}

    def _whole(self, pool: str, num_slots: int) -> int:
        """Whole pages of so many evictable slots, and no more than are in use."""
        chain = self.unified_buffer.chain
        return min(num_slots // chain.page_size(pool), chain.num_used(pool))

    def _pages(self, num_tokens: float) -> int:
        """Pages of so many tokens. SGLang estimates some numbers of tokens as fractions."""
        return -(-math.ceil(num_tokens) // self.page_size)

    def _evict_until_fits(self, tree_cache: Any, demand: Mapping[str, int]) -> bool | None:
        """Evict until the demand fits, as `evict_to_free_tokens` says."""
        if tree_cache is None or not tree_cache.supports_prefix_sharing():
            return None
        chain = self.unified_buffer.chain

        def fits() -> bool:
            return chain.fits(demand)

        with self._frees_take_effect():
            while not fits():
                plan = least_reclaim(chain, demand, self._evictable(tree_cache))
                if plan is None or not self._evict_by(tree_cache, plan, fits):
                    return False
        return True

    def _evict_by(self, tree_cache: Any, plan: Mapping[str, int], fits: Callable[[], bool]) -> bool:
        """Evict tokens of the plan, or states if it has no tokens, until enough came free: whether anything was."""
        tokens = {
            "num_tokens": plan.get("full", 0) * self.page_size,
            "swa_num_tokens": plan.get("window", 0) * self.page_size,
        }
        wanted = tokens if any(tokens.values()) else {"mamba_num": plan.get("state", 0)}
        params = engine_types().EvictParams(**wanted)
        evicted = tree_cache.evict_for_alloc(params, allocation_reclaim_satisfied=fits)
        return bool(evicted.num_tokens_evicted or evicted.swa_num_tokens_evicted or evicted.mamba_num_evicted)

    @contextmanager
    def _frees_take_effect(self) -> Iterator[None]:
        """Let frees take effect at once, those that wait too; a group that was open is open again afterwards."""
        was_open = self.free_group is not None
        if was_open:
            self.free_group_end()
        try:
            yield
        finally:
            if was_open:
                self.free_group_begin()


class StateAdmission(ABC):
    """The part about recurrent states beside the tokens, in `mamba_allocator`. It goes before an `ArenaAdmission`.

    A state freed while the group is open waits for its end, as the tokens of its request do.
    """

    mamba_allocator: ArenaPoolView
    full_attn_allocator: ArenaPoolView
    unified_buffer: UnifiedKVPool
    flush_deferred_full_frees: Callable[[], None]

    def mamba_full_cache_donor(self) -> Any:
        """The allocator itself: bytes of evicted tokens serve states."""
        return self

    def full_tokens_before_mamba_recheck(self, target_size: int) -> int:
        """Full tokens that have to come free at least before `target_size` states fit; 0 if they do.

        A lower bound, by bytes: it says when to ask again.
        """
        num_bytes = self.unified_buffer.chain.shortfall({"state": target_size})
        return -(-num_bytes // self.full_attn_allocator.entry_bytes)

    def prepare_mamba_allocation(self, target_size: int) -> None:
        """Make available what waits in the open group; pages move when the states are taken."""
        self.flush_deferred_full_frees()

    def mamba_slot_full_token_cost(self) -> int:
        """Tokens whose bytes a state takes, rounded up."""
        return -(-self.mamba_allocator.entry_bytes // self._token_bytes())

    def _token_bytes(self) -> int:
        """Bytes of a token on all sides."""
        return self.full_attn_allocator.entry_bytes


def least_reclaim(
    chain: PoolChain, demand: Mapping[str, int], evictable: Mapping[str, int], kept_first: Sequence[str] = KEPT_FIRST
) -> dict[str, int] | None:
    """Pages of each pool to evict before the demand fits; None if evicting all of the evictable ones does not suffice.

    As few as possible of the first pool in `kept_first`, then of the second, and so on. O(pools log pages).
    """
    plan = dict(evictable)
    if not chain.fits(demand, without=plan):
        return None
    for pool in kept_first:
        if plan.get(pool):
            plan[pool] = bisect_left(
                range(plan[pool]),
                1,
                key=lambda num: chain.fits(demand, without={**plan, pool: num}),
            )
    return plan
