"""What fits into a unified buffer, and what to evict until it does. Its pools share bytes, so this is one question."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any

import torch

from kvstead.integrations.sglang.allocator.arena_pool import ArenaPoolView
from kvstead.integrations.sglang.base_prefix_cache import engine_types
from kvstead.integrations.sglang.unified_memory_pool import UnifiedKVPool


class ArenaAdmission(ABC):
    """The part of an allocator over a unified buffer that admits and evicts. It goes before `CoreCalls`.

    Figures are exact, moves included, so there is one where SGLang has several.
    """

    page_size: int
    free_group: Any
    free_group_begin: Callable[[], None]
    free_group_end: Callable[[], None]
    available_size: Callable[[], int]
    full_attn_allocator: ArenaPoolView

    def evict_to_free_tokens(self, tree_cache: Any, num_tokens: int) -> bool | None:
        """Evict until `num_tokens` fit together: whether they do; None without a prefix cache that shares.

        What is missing of one pool may come from any. Frees that wait in an open group are made available first; the
        group stays open.
        """
        if tree_cache is None or not tree_cache.supports_prefix_sharing():
            return None
        return self._evict_until(tree_cache, lambda: num_tokens - self.available_size())

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

    def _evict_until(self, tree_cache: Any, missing: Callable[[], int]) -> bool:
        """Evict until no tokens are missing: whether it comes to that."""
        self.flush_deferred_full_frees()
        while (num_tokens := missing()) > 0:
            if not any(_evicts(tree_cache, wanted) for wanted in self._reclaims(num_tokens)):
                return False
            self.flush_deferred_full_frees()
        return True

    def _reclaims(self, num_tokens: int) -> list[dict[str, int]]:
        """What to evict for so many tokens, by kind; the next when the one before frees nothing."""
        return [{"num_tokens": num_tokens, "swa_num_tokens": num_tokens}]


class StateAdmission(ArenaAdmission):
    """An `ArenaAdmission` with recurrent states beside the tokens, in `mamba_allocator`.

    A state freed while the group is open waits for its end, as the tokens of its request do.
    """

    mamba_allocator: ArenaPoolView
    unified_buffer: UnifiedKVPool

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

    def _reclaims(self, num_tokens: int) -> list[dict[str, int]]:
        num_states = -(-num_tokens * self._token_bytes() // self.mamba_allocator.entry_bytes)
        return [*super()._reclaims(num_tokens), {"mamba_num": num_states}]


def _evicts(tree_cache: Any, wanted: dict[str, int]) -> bool:
    """Evict: whether anything was evicted."""
    evicted = tree_cache.evict_for_alloc(engine_types().EvictParams(**wanted))
    return bool(evicted.num_tokens_evicted or evicted.swa_num_tokens_evicted or evicted.mamba_num_evicted)
