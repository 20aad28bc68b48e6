"""What there is to know of one pool of a unified buffer, read from its chain when asked.

page       min_page_index            lo                    hi             num_pages
           |  . . . . . . . . . . . . | U |   | U | U |   | U | . . . . . |          U used   blank: a hole
"up"       | U | U |   | U | . . . . .      lo stays          watermark_physical = hi
"down"       . . . . . | U |   | U | U |    hi stays          watermark_physical = lo - 1
"""

from __future__ import annotations

import numpy as np
import torch

from kvstead.arena import Extent, SubPool
from kvstead.errors import LayoutError
from kvstead.integrations.sglang.allocator.shares_buffer import SharesBuffer
from kvstead.integrations.sglang.unified_memory_pool import UnifiedKVPool, chain_name
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import hand_out, to_host


class ArenaView(SharesBuffer):
    """The pool `sub_pool_name` of `unified_buffer`; nothing is kept but the tensors that kernels read.

    Ids are pages, counted from byte 0. What other classes decide (whose turn it is, what may be reused when) is decided
    by the chain, so neighbours are bound already, frees leave nothing pending, and there is no history to clear.
    """

    sub_pool_name: str

    def look_at(self, unified_buffer: UnifiedKVPool, sub_pool_name: str) -> None:
        """Start with a pool. Raises `LayoutError` for an unknown one."""
        self.spec = unified_buffer.spec(sub_pool_name)
        self.unified_buffer = unified_buffer
        self.sub_pool_name = sub_pool_name
        self._entry = unified_buffer.entry_spec(sub_pool_name)

    def require_page_size(self, page_size: int) -> None:
        """Raise `LayoutError` unless the pool's pages are of that size."""
        if page_size != self._entry.page_size:
            raise LayoutError(
                f"pages of pool {self.sub_pool_name!r} have {self._entry.page_size} slots in the buffer, not "
                f"{page_size}. Pass the same to both."
            )

    @property
    def max_slots(self) -> int:
        """Slots on the pool's grid."""
        return self.unified_buffer.max_slots(self.sub_pool_name)

    @property
    def min_slot_index(self) -> int:
        """The first slot above the sink."""
        return self.unified_buffer.min_slot_index(self.sub_pool_name)

    @property
    def num_pages(self) -> int:
        """Pages on the pool's grid."""
        return self._extent.limit

    @property
    def min_page_index(self) -> int:
        """The first page above the sink."""
        return self._extent.first

    @property
    def entry_bytes(self) -> int:
        """Bytes of a slot."""
        return self._entry.entry_bytes

    @property
    def entry_bytes_per_page(self) -> int:
        """Bytes of a page."""
        return self._entry.page_bytes

    @property
    def grow_direction(self) -> str:
        """Where the pool lies: "up" from the bottom, "down" from the top, or "float" between."""
        direction: str = self.spec.grow_direction
        return direction

    @property
    def watermark_physical(self) -> int:
        """The page that the pool grows into next, were there no holes; of a floating one the upper."""
        return self._extent.lo - 1 if self._extent.place > 0 else self._extent.hi

    @property
    def live_page_count(self) -> int:
        """Pages in use, those among them that wait in an open group."""
        return self._extent.num_used

    @property
    def num_virtual_ids(self) -> int:
        """Ids of pages that callers may hold are 1 to below this."""
        return int(self._page_table().size - 1)

    @property
    def virtual_to_physical(self) -> torch.Tensor:
        """Where each page lies: int64[num_virtual_ids + 1]; 0 for 0, below 0 for what nobody holds, -1 at the end.

        The same tensor at every call. On the CPU it is the chain's own; elsewhere it is brought up to date when it is
        read, and by every translation.
        """
        return self._pool.map.mirror(self.unified_buffer.device)

    @property
    def physical_to_virtual(self) -> torch.Tensor:
        """The id of what lies at each page: int64[num_pages + 1], a copy; 0 for 0, -1 where nobody holds it."""
        return torch.as_tensor(np.maximum(self._owner_table(), -1), device=self.unified_buffer.device)

    @property
    def _free_phys_pages(self) -> torch.Tensor:
        """The holes: int64[k], ascending."""
        return torch.as_tensor(self._pool.span.holes(), device=self.unified_buffer.device)

    def _allocated_pages(self) -> int:
        """Pages of the span, holes among them."""
        return self._extent.hi - self._extent.lo

    def _byte_low_frontier(self) -> int:
        """Where the span begins."""
        return self._extent.lo * self._extent.page_bytes

    def _byte_high_frontier(self) -> int:
        """Where the span ends."""
        return self._extent.hi * self._extent.page_bytes

    def allocated_count(self) -> int:
        """Slots of `live_page_count`."""
        return self._extent.num_used * self._entry.page_size

    def is_slot_allocated(self, slot: int) -> bool:
        """Whether the page that a slot lies in is in use."""
        page, table = slot // self._entry.page_size, self._page_table()
        return 0 <= page < table.size - 1 and bool(table[page] >= 0)

    def allocator_state_str(self) -> str:
        """Figures for a log line."""
        extent = self._extent
        return (
            f"pool {self.sub_pool_name!r}: pages [{extent.lo}, {extent.hi}) of [{extent.first}, {extent.limit}), "
            f"{extent.num_holes} of them holes"
        )

    def translate_kv_loc(self, virt_tokens: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where slots lie now: int64, in the shape of `virt_tokens`; 0, in the sink, for what nobody holds and for -1.

        out: an int64 tensor of that shape to write to. Good until pages are taken next. Raises `ForeignPage` for an id
        outside the pool, `InvalidSize` for another `out`.
        """
        table = self.virtual_to_physical  # up to date from here on
        slots = self._pool.map.translate(to_host(virt_tokens), self._entry.page_size)
        return hand_out(slots, virt_tokens, out, table.device)

    def translate_write_loc(
        self, widened_loc: torch.Tensor, *, out: torch.Tensor | None = None, out_width: int | None = None
    ) -> torch.Tensor:
        """As `translate_kv_loc`. out_width: as many entries of `out` are written, 0 behind those of `widened_loc`."""
        if out is None or out_width is None:
            return self.translate_kv_loc(widened_loc, out=out)
        self.translate_kv_loc(widened_loc, out=out[: widened_loc.numel()])
        out[widened_loc.numel() : out_width].zero_()
        return out

    def translate_kv_loc_dense(self, virt_tokens: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """As `translate_kv_loc`: kernels read by physical slots."""
        return self.translate_kv_loc(virt_tokens, out=out)

    def bind_peer(self, peer: ArenaView) -> None:
        """Nothing: the chain has its order. Raises `LayoutError` for a pool of another buffer."""
        if peer.unified_buffer is not self.unified_buffer:
            raise LayoutError(
                f"pools {self.sub_pool_name!r} and {peer.sub_pool_name!r} lie in different buffers and cannot give way "
                "to one another. Make both over one."
            )

    bind_low_peer = bind_peer
    bind_high_peer = bind_peer

    def clear_inverse_history(self) -> None:
        """Nothing: no history of moves is kept."""

    @property
    def _pool(self) -> SubPool:
        return self.unified_buffer.chain.pools[chain_name(self.sub_pool_name)]

    @property
    def _extent(self) -> Extent:
        return self._pool.span.extent

    def _page_table(self) -> IntArray:
        """Where each id's page lies, below 0 for what nobody holds."""
        return self._pool.map.v2p

    def _owner_table(self) -> IntArray:
        """The id of what lies at each page, below 0 where nobody holds it."""
        return self._pool.map.p2v
