"""What SGLang asks of an allocator over a unified buffer that is about the whole buffer."""

from __future__ import annotations

from typing import Any

from kvstead.integrations.sglang.unified_memory_pool import UnifiedKVPool


class SharesBuffer:
    """An allocator of some pools of `unified_buffer`; when pages move is the chain's business."""

    unified_buffer: UnifiedKVPool

    @property
    def lazy_compaction(self) -> bool:
        """Whether pages move only when room is wanted."""
        return not self.unified_buffer.chain.eager

    def set_latest_forward_done_event(self, event: Any) -> None:
        """The forward pass that moves have to come behind: its event."""
        self.unified_buffer.moving.forward_done = event

    def set_inflight_forward(self, forward_done: Any, out_cache_loc_virtual: Any) -> None:
        """As `set_latest_forward_done_event`; what the pass writes is not asked, all of it is waited for."""
        self.unified_buffer.moving.forward_done = forward_done

    def flush_opportunistic(self) -> int:
        """Close holes of all pools, for when nothing else is to do: the number of pages moved."""
        return self.unified_buffer.compact()

    def prewarm_compaction(self) -> None:
        """Nothing: moves are plain copies."""

    def resize(self, config: Any) -> None:
        """The buffer has its size."""
        raise NotImplementedError("a unified buffer keeps its size. Make a new one for another.")
