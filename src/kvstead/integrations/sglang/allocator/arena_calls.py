"""The calls about ids and places of all SGLang's allocators over a unified buffer, and views of its pools."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any

import torch

from kvstead.integrations.sglang.allocator.arena_pool import ArenaPoolCalls, ArenaPoolView
from kvstead.integrations.sglang.attribute_of import AttributeOf
from kvstead.integrations.sglang.unified_memory_pool import UnifiedKVPool
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_device


class ArenaCalls(ABC):
    """The part of an allocator whose slots keep their ids while their bytes move. It goes before `CoreCalls`.

    `full_attn_allocator` is a view of the pool "full". Pages are kept on the host for every device: indices on a
    device are copied there, once a call, which waits for it.
    """

    core: Any  # the kvstead allocator of the same pools
    page_size: int
    unified_buffer: UnifiedKVPool
    full_attn_allocator: ArenaPoolView

    full_v2p_page_table = AttributeOf[torch.Tensor]("full_attn_allocator.virtual_to_physical")
    full_p2v_page_table = AttributeOf[torch.Tensor]("full_attn_allocator.physical_to_virtual")

    @property
    def draft_virtual_id_space(self) -> int:
        """The first slot above all ids, for pools of the same ids elsewhere."""
        return (self.full_attn_allocator.num_virtual_ids - 1) * self.page_size

    def full_room(self) -> int:
        """Full slots that fit now, if the other pools take none."""
        return int(self.core.pools["full"].capacity()) * self.page_size

    def translate_kv_loc(self, loc: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where the full side of slots lies now: as `ArenaPool.translate_kv_loc`."""
        return self.full_attn_allocator.translate_kv_loc(loc, out=out)

    def translate_write_loc(
        self, loc: torch.Tensor, *, out: torch.Tensor | None = None, out_width: int | None = None
    ) -> torch.Tensor:
        """Where the full side of slots lies now: as `ArenaPool.translate_write_loc`."""
        return self.full_attn_allocator.translate_write_loc(loc, out=out, out_width=out_width)

    def translate_kv_indices_for_transfer(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """Physical slots, by which transfers go; pages must not move meanwhile: see `set_disagg_move_gate`."""
        return self.translate_kv_loc(kv_indices)

    def is_slot_allocated(self, slot: int) -> bool:
        """Whether somebody holds the page that a slot lies in."""
        return self.full_attn_allocator.is_slot_allocated(slot)

    def allocator_state_str(self) -> str:
        """Figures of the full side for a log line."""
        return self.full_attn_allocator.allocator_state_str()

    def set_disagg_move_gate(self, gate: Callable[[], bool]) -> None:
        """Let pages move only while `gate` says yes: no page that was published is being transferred."""
        self.unified_buffer.moves.gates["disagg"] = gate

    def set_host_transfer_move_gate(self, gate: Callable[[], bool]) -> None:
        """Let pages move only while `gate` says yes: no page is being copied to or from the host."""
        self.unified_buffer.moves.gates["host transfer"] = gate


def full_view(owner: Any, kvcache: Any) -> ArenaPoolView:
    """The pool "full" of an allocator, with all that comes and goes with its pages."""
    calls = ArenaPoolCalls(
        available_size=owner.full_room,
        alloc=owner.alloc,
        free=owner.free,
        free_segment=owner.free_segment,
        free_ids=owner.core.free_pages,
        physical_slots=owner.core.physical_slots,
    )
    return ArenaPoolView(owner, "full", kvcache, calls)


def window_view(owner: Any, kvcache: Any) -> ArenaPoolView:
    """The pool "swa" of an allocator: the window pages of full pages, by the ids of the full pages."""
    core = owner.core
    calls = ArenaPoolCalls(
        available_size=core.swa_available_size,
        free=owner.free_swa,
        free_segment=owner.free_swa_segment,
        physical_slots=core.physical_window_slots,
        window_pages=lambda: core.window_pages,
        move_window=core.move_window,
    )
    return ArenaPoolView(owner, "swa", kvcache, calls)


def state_view(owner: Any, kvcache: Any) -> ArenaPoolView:
    """The pool "mamba" of an allocator: a slot for the recurrent state of each request. It can be cleared alone."""
    core, chain = owner.core, owner.unified_buffer.chain
    states, pages = core.states, core.pools["state"]

    def move_beside(places: IntArray, sources: IntArray) -> None:
        """Move what the pool of tensors keeps for its states outside the buffer, as its own moves do."""
        dst, src = to_device(places, chain.device), to_device(sources, chain.device)
        if getattr(kvcache, "replayssm_write_pos", None) is not None:
            kvcache.replayssm_write_pos[dst] = 0
        for sibling in getattr(kvcache, "_slot_siblings", ()):
            sibling.copy_slots(src, dst)

    chain.places("state").followers.append(move_beside)

    def clear() -> None:
        if core.free_group is not None:
            core.free_group[:] = [release for release in core.free_group if release.pool is not pages]
        pages.clear()

    calls = ArenaPoolCalls(
        available_size=states.available_size,
        alloc=states.alloc,
        free=states.free,
        clear=clear,
        free_ids=pages.contents,
        physical_slots=states.physical_slots,
    )
    return ArenaPoolView(owner, "mamba", kvcache, calls)
