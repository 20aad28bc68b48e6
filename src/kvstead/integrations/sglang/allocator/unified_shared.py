"""What SGLang asks of the allocators that share a unified buffer, whatever pools it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kvstead.integrations.sglang.allocator.core import CoreAllocator
from kvstead.integrations.sglang.allocator.shares_buffer import SharesBuffer
from kvstead.integrations.sglang.allocator.unified_sides import FullArenaSide, StateArenaSide
from kvstead.integrations.sglang.base_prefix_cache import engine_types


class UnifiedAllocator(SharesBuffer, CoreAllocator):
    """Slots whose ids stay while their bytes move, in the pool "full" and those that go with it.

    The books are on the host on every device: indices on a device are copied there, once a call, which waits for it.
    What there is room for is exact, moves included, so there is one figure where SGLang has several.
    """

    core: Any  # the kvstead allocator of the same pools
    full_attn_allocator: FullArenaSide

    @property
    def full_v2p_page_table(self) -> torch.Tensor:
        """`virtual_to_physical` of the full side."""
        return self.full_attn_allocator.virtual_to_physical

    @property
    def full_p2v_page_table(self) -> torch.Tensor:
        """`physical_to_virtual` of the full side."""
        return self.full_attn_allocator.physical_to_virtual

    @property
    def draft_virtual_id_space(self) -> int:
        """Slots below which all ids are, for pools of the same ids elsewhere."""
        return (self.full_attn_allocator.num_virtual_ids - 1) * self.page_size

    def full_room(self) -> int:
        """Full slots that there is room for, if the other pools take none."""
        room: int = self.core.available_size()
        return room

    def translate_kv_loc(self, loc: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where the full side of slots lies now: as `ArenaView.translate_kv_loc`."""
        return self.full_attn_allocator.translate_kv_loc(loc, out=out)

    def translate_write_loc(
        self, loc: torch.Tensor, *, out: torch.Tensor | None = None, out_width: int | None = None
    ) -> torch.Tensor:
        """As `ArenaView.translate_write_loc`."""
        return self.full_attn_allocator.translate_write_loc(loc, out=out, out_width=out_width)

    def translate_kv_indices_for_transfer(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """Transfers go by physical slots, and pages must not move meanwhile: `set_disagg_move_gate`."""
        return self.translate_kv_loc(kv_indices)

    def is_slot_allocated(self, slot: int) -> bool:
        """Whether the page that a slot lies in is in use."""
        return self.full_attn_allocator.is_slot_allocated(slot)

    def allocator_state_str(self) -> str:
        """Figures of the full side for a log line."""
        return self.full_attn_allocator.allocator_state_str()

    def set_disagg_move_gate(self, gate: Callable[[], bool]) -> None:
        """Let pages move only while `gate` says yes: nothing that has been published is on its way."""
        self.unified_buffer.moving.gates["disagg"] = gate

    def set_host_transfer_move_gate(self, gate: Callable[[], bool]) -> None:
        """The same for copies to and from the host."""
        self.unified_buffer.moving.gates["host transfer"] = gate

    def evict_to_free_tokens(self, tree_cache: Any, num_tokens: int) -> bool | None:
        """Have the prefix cache give back until `num_tokens` fit together: whether they do.

        The pools share bytes, so what is missing of one comes from any. Frees that wait in an open group are made
        available first; the group stays open.
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
            if not any(self._gives_back(tree_cache, wanted) for wanted in self._reclaims(num_tokens)):
                return False
            self.flush_deferred_full_frees()
        return True

    def _reclaims(self, num_tokens: int) -> list[dict[str, int]]:
        """What to evict for so many tokens, by kind; the next when the one before gives nothing."""
        return [{"num_tokens": num_tokens, "swa_num_tokens": num_tokens}]

    def _gives_back(self, tree_cache: Any, wanted: dict[str, int]) -> bool:
        """Evict: whether anything came."""
        gone = tree_cache.evict_for_alloc(engine_types().EvictParams(**wanted))
        return bool(gone.num_tokens_evicted or gone.swa_num_tokens_evicted or gone.mamba_num_evicted)


class UnifiedStateAllocator(UnifiedAllocator):
    """A `UnifiedAllocator` with states beside the tokens, in `mamba_allocator`.

    A state freed while the group is open waits for its end, as its request's tokens do.
    """

    mamba_allocator: StateArenaSide

    def mamba_full_cache_donor(self) -> Any:
        """Itself: bytes of tokens that are given back serve states."""
        return self

    def full_tokens_before_mamba_recheck(self, target_size: int) -> int:
        """Full tokens that have to come free at least before `target_size` states fit; 0 if they do.

        A lower bound, by bytes: it says when to ask again.
        """
        num_bytes = self.unified_buffer.chain.shortfall({"state": target_size})
        return -(-num_bytes // self.full_attn_allocator.entry_bytes)

    def prepare_mamba_allocation(self, target_size: int) -> None:
        """Make available what waits in the open group; pages are moved when the states are taken."""
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
