"""The allocator of one pool of an arena: slots that stay what they are while their bytes move."""

from __future__ import annotations

import torch

from kvstead.allocators.arena_pages import ArenaPages
from kvstead.allocators.paged import PagedAllocator
from kvstead.arena import Chain
from kvstead.kernels.arrays import Integers, hand_out, to_host


class MultiEndedAllocator(PagedAllocator):
    """A `PagedAllocator` whose pages lie in `pool` of `chain`, beside other pools that use the same bytes.

    Slots are virtual: they are handed out, freed and checked as ever, and `physical_slots` says where they lie now. As
    many slots are free as the other pools leave room for, `available_size`; `size` is what the pool could hold alone.
    The pool's page size and the chain's device are the allocator's. order: in which ids are reused, see `FreeList`.

    Nobody else may take pages of this pool. Raises `LayoutError` for a pool that the chain does not have, `InvalidSize`
    for an unknown order.
    """

    _free_list: ArenaPages

    def __init__(self, chain: Chain, pool: str, *, order: str = "lifo") -> None:
        self.chain = chain
        self._manage(ArenaPages(chain, pool, order), chain.page_size(pool), chain.device)

    def available_size(self) -> int:
        """Tokens that can be allocated now: exactly what `alloc` has room for, pages moved aside where they may be.

        What is parked in an open group does not count.
        """
        return self._free_list.capacity() * self.page_size

    def physical_slots(self, slots: Integers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where slots lie now: int64 on the device, in the shape of `slots`; good until the next call that takes pages.

        0, in the padding, for slots that nobody holds, for padding and for -1. out: an int64 tensor of that shape to
        write to, `slots` itself if wanted. Raises `ForeignPage` for any other id outside the pool, `InvalidSize` for an
        `out` that does not fit. O(slots); slots on another device are copied to the host, which waits for it.
        """
        return hand_out(self._free_list.translate(to_host(slots), self.page_size), slots, out, self.device)
