"""The calls about windows, of every allocator of SGLang's that has a full side and a window side."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any

import torch

from kvstead.integrations.sglang.allocator.backends import WithWindows
from kvstead.integrations.sglang.allocator.base import Segments
from kvstead.integrations.sglang.attribute_of import AttributeOf


class WindowCalls(ABC):
    """The part of an allocator with two sides that is about windows. It goes between `CoreCalls` and the base class.

    full_to_swa_index_mapping: the window slot of each full slot, for allocators with such a tensor. A subclass has
    `_size_full` and `_size_swa`, slots of each side.
    """

    core: WithWindows
    _handed_out: Callable[[torch.Tensor | None], torch.Tensor | None]
    _erase: Callable[[torch.Tensor], None]
    _evict: Callable[..., None]
    full_to_swa_index_mapping: torch.Tensor | None = None
    swa_req_ring = False  # whether windows lie in a ring of each request's own
    swa_ring_cost_tokens = 0  # window slots of such a ring, in whole pages

    size_full = AttributeOf[int]("_size_full")
    size_swa = AttributeOf[int]("_size_swa")

    def full_available_size(self) -> int:
        """Full slots that can be allocated now."""
        return self.core.full_available_size()

    def swa_available_size(self) -> int:
        """Window slots that can be allocated now."""
        return self.core.swa_available_size()

    def swa_capacity_and_available(
        self, *, full_capacity: int, swa_capacity: int
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """(capacity, available) of the full side and of the window side."""
        return (full_capacity, self.full_available_size()), (swa_capacity, self.swa_available_size())

    def alloc_extend_swa_tail(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        swa_tail_len: int,
    ) -> torch.Tensor | None:
        """`alloc_extend` of one row, with window pages only under its last `swa_tail_len` tokens.

        Raises as `kvstead.allocators.SWAAllocator.alloc_extend_swa_tail`.
        """
        return self._handed_out(self.core.alloc_extend_swa_tail(prefix_lens_cpu, seq_lens_cpu, last_loc, swa_tail_len))

    def free_full(self, free_index: torch.Tensor) -> None:
        """Free full pages whose windows were freed before; a window page that is still there is freed too."""
        self.core.free_full(free_index)
        self._erase(free_index)

    def free_full_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """`free_full` for a stretch of a row, whole pages at a time."""
        self.core.free_full_segment(free_index, start_pos=start_pos)
        self._erase(free_index)

    def free_full_segments(self, segments: Segments) -> None:
        """`free_full` for several stretches of one row, all or none."""
        self.core.free_full_segments(segments := list(segments))
        for free_index, _ in segments:
            self._erase(free_index)

    def free_swa(self, free_index: torch.Tensor) -> None:
        """Free the window pages of the pages that the slots lie in; the full pages stay."""
        self.core.free_swa(free_index)
        self._erase(free_index)

    def free_swa_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """`free_swa` for a stretch of a row."""
        self.core.free_swa_segment(free_index, start_pos=start_pos)
        self._erase(free_index)

    def follow_core(self, *, lost: torch.Tensor, gained: torch.Tensor) -> None:
        """Note in the tensors of window slots which slots lost their windows and which got some, by calls to `core`."""
        self._erase(lost)
        self._handed_out(gained)

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """Window slots of full slots, in the shape of `kv_indices`: 0 for none, -1 for -1."""
        assert self.full_to_swa_index_mapping is not None, "allocators without this tensor translate otherwise"
        return self.full_to_swa_index_mapping[kv_indices]

    def translate_swa_indices_for_transfer(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """Window slots of full slots as the transfer engine counts them, which is as the pool does."""
        return self.translate_loc_from_full_to_swa(kv_indices)

    def create_prefill_budget(self, tree_cache: Any, *, num_mixed_decode_tokens: int = 0) -> Any:
        """SGLang's budget of what one prefill pass may take of each side."""
        from sglang.srt.mem_cache.prefill_budget import SWAPrefillBudget

        return SWAPrefillBudget(self, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)

    def reclaim_for_prealloc(self, tree_cache: Any, full_tokens: int, swa_tokens: int) -> str | None:
        """Evict the window slots that are missing to `swa_tokens`: None, or what is still missing, in words."""
        self._evict(tree_cache, swa_num_tokens=swa_tokens - self.swa_available_size())
        if (available := self.swa_available_size()) < swa_tokens:
            return f"{swa_tokens} window slots are needed, {available} are available after eviction"
        return None

    def debug_print(self) -> str:
        """Figures for the scheduler's log line."""
        return f"#full-available-size: {self.full_available_size()}, #swa-available-size: {self.swa_available_size()}, "
