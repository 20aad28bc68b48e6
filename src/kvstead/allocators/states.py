"""Slots for recurrent states: one a request, whatever its length, beside the tokens of some allocator."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvstead.errors import InvalidSize
from kvstead.kernels.array_types import IntArray, StateArray
from kvstead.kernels.arrays import Integers, hand_out, to_device, to_host
from kvstead.pages import FreeList


class StateAllocator:
    """State slots 1 .. `size`; slot 0 is padding. Made and audited by the allocator whose tokens they go with.

    pages: the slots, one a page, in a pool of their own or of an arena; that allocator counts them among its pools.
    free_pages: how pages of a pool are given back. It is that allocator's: it has the one free group, so a state freed
    while the group is open is available again when it ends, like the request's tokens.
    """

    def __init__(
        self, pages: FreeList, free_pages: Callable[[FreeList, IntArray], None], device: str | torch.device
    ) -> None:
        self.pages = pages
        self._free_pages = free_pages
        self.device = torch.device(device)

    @property
    def size(self) -> int:
        """States that there could be if nothing else were there."""
        return self.pages.num_pages

    def available_size(self) -> int:
        """States that can be allocated now, without those parked in an open group."""
        return self.pages.capacity()

    def parked_size(self) -> int:
        """States freed in the open group: no longer owned, not yet available."""
        return self.pages.num_parked

    def live_size(self) -> int:
        """States that somebody holds."""
        return self.pages.table.num_live

    def page_states(self) -> StateArray:
        """The state of every slot, uint8[size + 1], slot 0 first: the allocator's own array, to be read only."""
        return self.pages.table.state

    def owners(self) -> dict[int, int]:
        """Live slots by owner tag. O(slots of the pool)."""
        return self.pages.table.owners()

    def alloc(self, num_states: int, owner: int = 0) -> torch.Tensor | None:
        """Hand out slots: int64[num_states]; None when short, with nothing changed.

        owner: int32 tag. The bytes are what was there before, unless the pool's spec says `zero_on_take`. Raises
        `InvalidSize` for a negative number or a tag that is no int32. O(num_states), and the moves.
        """
        if num_states < 0:
            raise InvalidSize(f"cannot allocate {num_states} states. Ask for 0 or more.")
        slots = self.pages.take(num_states, owner)
        return None if slots is None else to_device(slots, self.device)

    def free(self, slots: Integers) -> None:
        """Give slots back, each named once, in any order.

        Raises `ForeignPage` for padding or a slot outside the pool, `DoubleFree` for one that nobody holds or that is
        named twice; then nothing is changed. O(slots).
        """
        array = to_host(slots)
        if array.size:
            self._free_pages(self.pages, array)

    def physical_slots(self, slots: Integers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where states lie now: as `MultiEndedAllocator.physical_slots`. Without an arena a state lies at its slot."""
        return hand_out(self.pages.translate(to_host(slots), 1), slots, out, self.device)
