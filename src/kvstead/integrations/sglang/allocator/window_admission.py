"""What fits into a unified buffer whose tokens have windows: full slots and window slots compete for the same bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from kvstead.integrations.sglang.allocator.arena_admission import KEPT_FIRST, least_reclaim
from kvstead.integrations.sglang.allocator.arena_pool import ArenaPoolView
from kvstead.integrations.sglang.unified_memory_pool import UnifiedKVPool


class WindowAdmission(ABC):
    """The part about tokens with windows, in `swa_attn_allocator`. It goes before an `ArenaAdmission`."""

    page_size: int
    size_full: int
    size_swa: int
    swa_attn_allocator: ArenaPoolView
    unified_buffer: UnifiedKVPool
    _pages: Callable[[float], int]
    _whole: Callable[[str, int], int]
    _evictable: Callable[[Any], dict[str, int]]
    _evict_until_fits: Callable[[Any, Mapping[str, int]], bool | None]
    request_demand: Mapping[str, int] = {}  # what a request takes besides its tokens

    def create_prefill_budget(self, tree_cache: Any, *, num_mixed_decode_tokens: int = 0) -> Any:
        """SGLang's budget of what one prefill pass may take, which asks `can_reserve` for both sides together."""
        from sglang.srt.mem_cache.prefill_budget import SharedSWAPrefillBudget

        return SharedSWAPrefillBudget(self, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)

    def can_reserve(
        self,
        full_tokens: float,
        swa_tokens: float,
        *,
        full_evictable_tokens: int = 0,
        swa_evictable_tokens: int = 0,
        mamba_evictable_slots: int = 0,
        empty_pool: bool = False,
        require_token_slack: bool = False,
    ) -> bool:
        """Whether so many slots of both sides fit together once the evictable slots and states are evicted.

        empty_pool: whether one request with so many would fit if nothing were in use. require_token_slack: they have to
        be fewer than each side's size. False for negative numbers.
        """
        if min(full_tokens, swa_tokens) < 0:
            return False
        if require_token_slack and (full_tokens >= self.size_full or swa_tokens >= self.size_swa):
            return False
        demand, chain = self._side_demand(full_tokens, swa_tokens), self.unified_buffer.chain
        if empty_pool:
            return chain.holds({**demand, **self.request_demand})
        evictable = self._side_evictable(full_evictable_tokens, swa_evictable_tokens)
        if mamba_evictable_slots:
            evictable["state"] = self._whole("state", mamba_evictable_slots)
        return chain.fits(demand, without=evictable)

    def reclaim_plan(
        self,
        full_tokens: float,
        swa_tokens: float,
        *,
        full_evictable_tokens: int = 0,
        swa_evictable_tokens: int = 0,
        empty_pool: bool = False,
        prefer_swa: bool = False,
    ) -> tuple[int, int] | None:
        """Full and window slots to evict before so many of both sides fit together; None if that does not suffice.

        As few window slots as possible, and then as few full ones; the other way round if `prefer_swa`.
        """
        if min(full_tokens, swa_tokens) < 0:
            return None
        demand, chain = self._side_demand(full_tokens, swa_tokens), self.unified_buffer.chain
        if empty_pool:
            return (0, 0) if chain.holds({**demand, **self.request_demand}) else None
        evictable = self._side_evictable(full_evictable_tokens, swa_evictable_tokens)
        plan = least_reclaim(chain, demand, evictable, ("full", "window") if prefer_swa else KEPT_FIRST)
        return None if plan is None else (plan["full"] * self.page_size, plan["window"] * self.page_size)

    def ensure_capacity(self, full_tokens: int, swa_tokens: int) -> bool:
        """Whether so many slots of both sides fit now, together; pages move when they are taken."""
        return self.can_reserve(full_tokens, swa_tokens)

    def max_new_tokens_for_memory(
        self,
        input_tokens: int,
        max_new_tokens: int,
        *,
        token_capacity: int,
        sliding_window_size: int | None,
        chunk_size: int | None,
    ) -> int | None:
        """How many of `max_new_tokens` fit behind the prompt in an empty buffer; None if the prompt does not fit."""
        from sglang.srt.mem_cache.prefill_budget import estimate_swa_kv_tokens

        def fits(num_new: int) -> bool:
            window_tokens = estimate_swa_kv_tokens(
                input_tokens,
                num_new,
                sliding_window_size=sliding_window_size,
                page_size=self.page_size,
                allocation_limit=chunk_size,
            )
            full_tokens = input_tokens + num_new + self.page_size
            return self.can_reserve(full_tokens, window_tokens, empty_pool=True, require_token_slack=True)

        first_too_many = bisect_left(range(max_new_tokens + 1), 1, key=lambda num_new: not fits(num_new))
        return first_too_many - 1 if first_too_many else None

    def prealloc_fits_assumes_reclaim(self) -> bool:
        """Whether `prealloc_fits` counts on evictions that are still to come: yes."""
        return True

    def prealloc_ceiling_fits(self, full_tokens: int, swa_tokens: int) -> bool | None:
        """Whether so many slots of both sides would fit together if nothing were in use."""
        return self.can_reserve(full_tokens, swa_tokens, empty_pool=True)

    def prealloc_fits(
        self,
        tree_cache: Any,
        full_tokens: int,
        swa_tokens: int,
        *,
        full_budget_tokens: int,
        swa_budget_tokens: int | None = None,
    ) -> bool:
        """Whether so many slots of both sides fit together after evictions, beside what the budgets leave out.

        A budget below what a side has and could evict reserves the rest for others: that is added to the demand.
        """
        full_evictable, window_evictable = tree_cache.full_evictable_size(), tree_cache.swa_evictable_size()
        full_tokens += self.full_available_size() + full_evictable - full_budget_tokens
        if swa_budget_tokens is not None:
            swa_tokens += self.swa_available_size() + window_evictable - swa_budget_tokens
        demand = self._side_demand(full_tokens, swa_tokens)
        return self.unified_buffer.chain.fits(demand, without=self._evictable(tree_cache))

    def reclaim_for_prealloc(self, tree_cache: Any, full_tokens: int, swa_tokens: int) -> str | None:
        """Evict until so many slots of both sides fit together: None, or why they do not, in words."""
        ready = self.evict_to_free_tokens(tree_cache, full_tokens, swa_num_tokens=swa_tokens)
        if ready or (ready is None and self.ensure_capacity(full_tokens, swa_tokens)):
            return None
        return f"{full_tokens} full and {swa_tokens} window slots do not fit together, and no more can be evicted"

    def evict_to_free_tokens(
        self, tree_cache: Any, num_tokens: int, *, swa_num_tokens: int | None = None
    ) -> bool | None:
        """As `ArenaAdmission.evict_to_free_tokens`. swa_num_tokens: window slots, by default as many."""
        num_windows = num_tokens if swa_num_tokens is None else swa_num_tokens
        return self._evict_until_fits(tree_cache, self._side_demand(num_tokens, num_windows))

    @abstractmethod
    def full_available_size(self) -> int:
        """Full slots that can be handed out, as `UnifiedSWAAllocatorBase` says."""

    @abstractmethod
    def swa_available_size(self) -> int:
        """Window slots that can be handed out, as `UnifiedSWAAllocatorBase` says."""

    def _side_demand(self, full_tokens: float, swa_tokens: float) -> dict[str, int]:
        return {"full": self._pages(full_tokens), "window": self._pages(swa_tokens)}

    def _side_evictable(self, full_tokens: int, swa_tokens: int) -> dict[str, int]:
        return {"full": self._whole("full", full_tokens), "window": self._whole("window", swa_tokens)}


class EvictingStates:
    """An allocator whose `can_reserve` counts the states that a prefix cache could evict."""

    def __init__(self, allocator: WindowAdmission, tree_cache: Any) -> None:
        self._allocator = allocator
        self._tree_cache = tree_cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._allocator, name)

    def can_reserve(self, full_tokens: float, swa_tokens: float, **conditions: Any) -> bool:
        """As the allocator's, with all states counted that can be evicted now."""
        num_states = self._tree_cache.mamba_evictable_size()
        return self._allocator.can_reserve(full_tokens, swa_tokens, mamba_evictable_slots=num_states, **conditions)
