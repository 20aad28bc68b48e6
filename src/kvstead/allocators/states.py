"""Slots for recurrent states: one a request, whatever its length, beside the tokens of an allocator."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvstead.errors import InvalidSize
from kvstead.kernels.array_types import IntArray, StateArray
from kvstead.kernels.arrays import Integers, hand_out, to_device, to_host
from kvstead.pages import FreeList


class StateAllocator:
    """State slots 1 .. `size`; slot 0 is padding. The allocator of the tokens makes and audits it.

    pages: the slots, one a page, in a pool of their own or of an arena. release: frees live pages of a pool. It is the
    token allocator's, which has the one free group: a state freed while the group is open becomes available when it
    ends, like the request's tokens. `size`: states that the pool could hold alone.
    """

    def __init__(
        self, pages: FreeList, release: Callable[[FreeList, IntArray], None], device: str | torch.device
    ) -> None:
        self.pages = pages
        self.size = pages.num_pages
        self._release = release
        self.device = torch.device(device)

    def available_size(self) -> int:
        """States that can be allocated now, without those parked in an open group."""
        return self.pages.capacity()

    def parked_size(self) -> int:
        """States freed in the open group: no longer held, not yet available."""
        return self.pages.num_parked

    def live_size(self) -> int:
        """States that requests or the cache hold."""
        return self.pages.table.num_live

    def page_states(self) -> StateArray:
        """Whether each slot is live, uint8[size + 1], slot 0 first: the allocator's own array, to be read only."""
        return self.pages.table.state

    def owners(self) -> dict[int, int]:
        """Count live slots by owner tag. O(slots of the pool)."""
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
        """Free slots, each named once, in any order.

        Raises `ForeignPage` for padding or a slot outside the pool, `DoubleFree` for one that is not live or named
        twice; then nothing is changed. O(slots).
        """
        array = to_host(slots)
        if array.size:
            self._release(self.pages, array)

    def physical_slots(self, slots: Integers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where states lie now: as `MultiEndedAllocator.physical_slots`. Without an arena a state lies at its slot."""
        return hand_out(self.pages.translate(to_host(slots), 1), slots, out, self.device)
