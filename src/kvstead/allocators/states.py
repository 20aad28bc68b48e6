"""Slots for recurrent states: one a request, whatever its length, beside the tokens of some allocator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kvstead.errors import InvalidSize
from kvstead.kernels.arrays import Integers, hand_out, to_device, to_host
from kvstead.kernels.jit import StateArray
from kvstead.pages import FreeList, Release


class StateAllocator:
    """State slots 1 .. `size`; slot 0 is padding. Made and audited by the allocator whose tokens they go with.

    hand_back: what becomes of slots that were freed and parked here. It is that allocator's: it has the one free group,
    so a state freed while the group is open is available again when it ends, like the request's tokens. `pages` are the
    slots' own, of one slot each, in a pool of their own or of an arena: that allocator counts them among its pools.
    """

    def __init__(
        self, pages: FreeList, hand_back: Callable[[Sequence[Release]], None], device: str | torch.device
    ) -> None:
        self.pages = pages
        self._hand_back = hand_back
        self.device = torch.device(device)

    @property
    def size(self) -> int:
        """States that there could be if nothing else were there."""
        return self.pages.num_pages

    def available_size(self) -> int:
        """States that can be allocated now, without those parked in an open group."""
        return self.pages.room()

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
            self._hand_back((Release(self.pages, self.pages.park(array)),))

    def physical_slots(self, slots: Integers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where states lie now: as `MultiEndedAllocator.physical_slots`. Without an arena a state lies at its slot."""
        return hand_out(self.pages.translate(to_host(slots), 1), slots, out, self.device)
