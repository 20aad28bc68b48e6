"""What there is to know of one pool of a unified buffer, read from its chain when asked.

page       min_page_index            lo                    hi             num_pages
           |  . . . . . . . . . . . . | U |   | U | U |   | U | . . . . . |          U used   blank: a hole
"up"       | U | U |   | U | . . . . .      lo stays          watermark_physical = hi
"down"       . . . . . | U |   | U | U |    hi stays          watermark_physical = lo - 1
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvstead.arena import Extent
from kvstead.errors import LayoutError
from kvstead.integrations.sglang.allocator.base import refuse_resize
from kvstead.integrations.sglang.allocator.pool_view import PoolCalls, PoolView
from kvstead.integrations.sglang.attribute_of import AttributeOf
from kvstead.integrations.sglang.unified_memory_pool import UnifiedKVPool, chain_name
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_host


class BufferCalls(ABC):
    """The part of an allocator over `unified_buffer` that is about the whole buffer: when its pages move."""

    unified_buffer: UnifiedKVPool

    @property
    def lazy_compaction(self) -> bool:
        """Whether pages move only when their bytes are wanted."""
        return not self.unified_buffer.chain.eager

    def set_latest_forward_done_event(self, event: Any) -> None:
        """Name the event of the forward pass that moves have to come behind."""
        self.unified_buffer.moves.forward_done = event

    def set_inflight_forward(self, forward_done: Any, out_cache_loc_virtual: Any) -> None:
        """As `set_latest_forward_done_event`; moves wait for the whole pass, not only for the slots it writes."""
        self.unified_buffer.moves.forward_done = forward_done

    def flush_opportunistic(self) -> int:
        """Close holes of all pools, for when nothing else is to do: the number of pages moved."""
        return self.unified_buffer.compact()

    def moves_blocked(self) -> bool:
        """Whether a gate forbids that pages move now."""
        return not self.unified_buffer.moves.may_move()

    def flush_for_allocation(self) -> int:
        """Do nothing, and return 0: a call that takes pages moves what stands in its way."""
        return 0

    def prewarm_compaction(self) -> None:
        """Do nothing: moves are plain copies."""

    def resize(self, config: Any) -> None:
        """Raise `NotImplementedError`: the bytes are divided anew at every call, their number is fixed."""
        refuse_resize("A unified buffer")


class ArenaPool(BufferCalls):
    """The part of an allocator that is about the pool `sub_pool_name` of `unified_buffer`. Only tensors are kept.

    physical_slots: where slots lie now, as `kvstead.allocators.MultiEndedAllocator.physical_slots`. window_pages: for a
    window pool, whose ids are those of full pages: the window page of each full page, 0 for none, -1 at the end.

    Pages are counted from byte 0. The chain decides which neighbour gives way and what may be reused when, so there
    are no neighbours to link, and frees leave nothing pending.

    Raises `LayoutError` for an unknown pool.
    """

    page_size: int
    available_size: Callable[[], int]
    _extent = AttributeOf[Extent]("_member.span.extent")

    num_pages = AttributeOf[int]("_extent.limit")
    min_page_index = AttributeOf[int]("_extent.first")
    live_page_count = AttributeOf[int]("_extent.num_used")  # pages that wait in an open group are in use
    entry_bytes = AttributeOf[int]("_entry.entry_bytes")
    entry_bytes_per_page = AttributeOf[int]("_entry.page_bytes")
    grow_direction = AttributeOf[str]("spec.grow_direction")  # "up" from the bottom, "down" from the top, or "float"

    def __init__(
        self,
        unified_buffer: UnifiedKVPool,
        sub_pool_name: str,
        physical_slots: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor],
        window_pages: Callable[[], IntArray] | None = None,
    ) -> None:
        self.spec = unified_buffer.spec(sub_pool_name)
        self.unified_buffer = unified_buffer
        self.sub_pool_name = sub_pool_name
        self._entry = unified_buffer.entry_spec(sub_pool_name)
        self._member = unified_buffer.chain.pools[chain_name(sub_pool_name)]
        self._physical_slots = physical_slots
        self._window_pages = window_pages
        self._window_table: torch.Tensor | None = None  # made when it is first read

    def require_page_size(self, page_size: int) -> None:
        """Raise `LayoutError` unless the pool's pages are of that size."""
        if page_size != self._entry.page_size:
            raise LayoutError(
                f"page size {page_size} is not that of pool {self.sub_pool_name!r}, whose pages in the buffer have "
                f"{self._entry.page_size} slots. Pass the same to both."
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
    def watermark_physical(self) -> int:
        """The page that the pool grows into next, were there no holes; of a floating one the upper."""
        return self._extent.lo - 1 if self._extent.place > 0 else self._extent.hi

    @property
    def num_virtual_ids(self) -> int:
        """Ids of pages that callers may hold are 1 to below this."""
        return int(self._page_table().size - 1)

    @property
    def virtual_to_physical(self) -> torch.Tensor:
        """Where each page lies: int64[num_virtual_ids + 1]; 0 for 0, below 0 for what is not in use, -1 at the end.

        The same tensor at every call. On the CPU it is the chain's own, elsewhere it is brought up to date when it is
        read, and by every translation. That of a window pool is brought up to date likewise, O(pages), on the CPU too.
        """
        device = self.unified_buffer.device
        if self._window_pages is None:
            return self._member.map.mirror(device)
        table = torch.from_numpy(self._page_table())
        if self._window_table is None:
            self._window_table = torch.empty(table.shape, dtype=torch.int64, device=device)
        return self._window_table.copy_(table)

    @property
    def physical_to_virtual(self) -> torch.Tensor:
        """The id of what lies at each page: int64[num_pages + 1], a copy; 0 for 0, -1 for what is not in use."""
        return torch.as_tensor(np.maximum(self._owner_table(), -1), device=self.unified_buffer.device)

    @property
    def _free_phys_pages(self) -> torch.Tensor:
        """The holes: int64[k], ascending."""
        return torch.as_tensor(self._member.span.holes(), device=self.unified_buffer.device)

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
        """Slots in use, in whole pages; those that wait in an open group count."""
        return self._extent.num_used * self._entry.page_size

    def is_slot_allocated(self, slot: int) -> bool:
        """Whether somebody holds the page that a slot lies in. The padding page is always held."""
        page = slot // self._entry.page_size
        if not 0 < page < self.num_virtual_ids:
            return page == 0
        return bool(self._physical_slots(torch.tensor([page * self._entry.page_size]), None))

    def allocator_state_str(self) -> str:
        """Figures for a log line."""
        extent = self._extent
        return (
            f"pool {self.sub_pool_name!r}: pages [{extent.lo}, {extent.hi}) of [{extent.first}, {extent.limit}), "
            f"{extent.num_holes} of them holes"
        )

    def translate_kv_loc(self, virt_tokens: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where slots lie now: int64, in the shape of `virt_tokens`; 0, in the sink, for slots nobody holds and for -1.

        out: an int64 tensor of that shape to write to. Valid until pages are taken next. Raises `ForeignPage` for an id
        outside the pool, `InvalidSize` for another `out`.
        """
        if self._window_pages is None or self._window_table is not None:
            _ = self.virtual_to_physical  # brings it up to date
        return self._physical_slots(virt_tokens, out)

    def translate_write_loc(
        self, widened_loc: torch.Tensor, *, out: torch.Tensor | None = None, out_width: int | None = None
    ) -> torch.Tensor:
        """As `translate_kv_loc`. out_width: as many entries of `out` are written, 0 behind those of `widened_loc`."""
        if out is None or out_width is None:
            return self.translate_kv_loc(widened_loc, out=out)
        self.translate_kv_loc(widened_loc, out=out[: widened_loc.numel()])
        out[widened_loc.numel() : out_width].zero_()
        return out

    translate_kv_loc_dense = translate_kv_loc  # kernels read by physical slots

    def schedulable_available_size(self) -> int:
        """As `available_size`, which counts what moves can free."""
        return self.available_size()

    def bind_peer(self, peer: ArenaPool) -> None:
        """Check that both pools lie in one buffer, whose chain has its order. Raises `LayoutError` if not."""
        if peer.unified_buffer is not self.unified_buffer:
            raise LayoutError(
                f"pools {self.sub_pool_name!r} and {peer.sub_pool_name!r} lie in different buffers and cannot give way "
                "to one another. Make both over one."
            )

    bind_low_peer = bind_peer
    bind_high_peer = bind_peer

    def clear_inverse_history(self) -> None:
        """Do nothing: no history of moves is kept."""

    def _page_table(self) -> IntArray:
        """Where each id's page lies, below 0 for what is not in use."""
        own = self._member.map.v2p
        if self._window_pages is None:
            return own
        pages = self._window_pages()
        table: IntArray = np.where(pages == 0, -1, own[pages])
        table[0] = 0
        return table

    def _owner_table(self) -> IntArray:
        """The id of what lies at each page, below 0 for what is not in use."""
        own = self._member.map.p2v
        if self._window_pages is None:
            return own
        table, pages = np.full_like(own, -1), self._page_table()
        held = np.flatnonzero(pages >= 0)
        table[pages[held]] = held
        return table


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaPoolCalls(PoolCalls):
    """The calls of an owner that answer those of an `ArenaPoolView`.

    free_ids: ids that can be handed out, in order. physical_slots, window_pages: see `ArenaPool`. move_window: give
    the window pages of some full slots to others, as `kvstead.allocators.SWAAllocator.move_window`.
    """

    physical_slots: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
    free_ids: Callable[[], IntArray] | None = None
    window_pages: Callable[[], IntArray] | None = None
    move_window: Callable[[IntArray, IntArray], None] | None = None


class ArenaPoolView(ArenaPool, PoolView):
    """A `PoolView` of the pool `sub_pool_name` of the owner's unified buffer. kvcache: what the slots index."""

    _calls: ArenaPoolCalls

    def __init__(self, owner: Any, sub_pool_name: str, kvcache: Any, calls: ArenaPoolCalls) -> None:
        ArenaPool.__init__(self, owner.unified_buffer, sub_pool_name, calls.physical_slots, calls.window_pages)
        PoolView.__init__(self, owner, calls, self.max_slots, kvcache, self._entry.page_size)
        self.dtype = self.spec.get_dtype()
        self.is_id_owner = calls.free_ids is not None

    @property
    def free_virtual_ids(self) -> torch.Tensor | None:
        """Ids of free pages, next to be handed out first: int64[k], a copy; None for a pool that is given its ids."""
        return None if self._calls.free_ids is None else torch.as_tensor(self._calls.free_ids(), device=self.device)

    def bind(self, virtual_ids: torch.Tensor, physical_ids: torch.Tensor) -> None:
        """Give full pages the window pages that lie at `physical_ids`, which other full pages hold: int64[k] each.

        Those lose them. Raises as `SWAAllocator.move_window`, and `LayoutError` for a pool of another kind.
        """
        if self._calls.move_window is None:
            raise LayoutError(
                f"pool {self.sub_pool_name!r} has no window pages to pass on. Call bind of the window pool."
            )
        takers, givers = to_host(virtual_ids), self._owner_table()[to_host(physical_ids)]
        moved = takers != givers
        self._calls.move_window(givers[moved] * self.page_size, takers[moved] * self.page_size)
