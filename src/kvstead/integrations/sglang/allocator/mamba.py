"""SGLang's allocator of recurrent states: one slot a request."""

from __future__ import annotations

import torch

from kvstead.integrations.sglang.allocator import backends


class MambaSlotAllocator:
    """State slots 1 .. `size`; slot 0 is padding. Freed slots queue behind all others, and frees never wait.

    Between `alloc_group_begin` and `alloc_group_end` slots for many calls of `alloc(1)` are fetched in one step. They
    still count as available, and a call that needs more than is left gets them too.
    """

    def __init__(self, size: int, device: str) -> None:
        self.size = size
        self.device = device
        self.core = backends.token_pool(size, device, need_sort=False)
        self._fetched: list[torch.Tensor] = []  # one slot each, the next one last

    @property
    def free_slots(self) -> torch.Tensor:
        """The free slots, in the order in which they will be handed out: int64[k], a copy. O(slots of the pool)."""
        return torch.cat([*self._fetched[::-1], torch.as_tensor(self.core.free_pages(), device=self.device)])

    def available_size(self) -> int:
        """States that can be allocated now."""
        return self.core.available_size() + len(self._fetched)

    schedulable_available_size = available_size  # the pool shares its bytes with no other

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Allocate `need_size` slots; None when there are too few. Raises `InvalidSize` for a negative number."""
        if need_size == 1 and self._fetched:
            return self._fetched.pop()
        if need_size > self.core.available_size():
            self.alloc_group_end()
        return self.core.alloc(need_size)

    def free(self, free_index: torch.Tensor) -> None:
        """Free slots. Raises `DoubleFree` or `ForeignPage` for one that is not in use; then none is freed."""
        self.alloc_group_end()  # fetched slots that nobody holds yet must not count as in use
        self.core.free(free_index)

    def alloc_group_begin(self, num_reqs: int) -> None:
        """Fetch slots for `num_reqs` calls of `alloc(1)`, or all there are. An open group is ended first."""
        self.alloc_group_end()
        slots = self.core.alloc(max(0, min(num_reqs, self.core.available_size())))
        assert slots is not None, "the number was bounded by what is available"
        self._fetched = [slot.reshape(1) for slot in slots.unbind()][::-1]

    def alloc_group_end(self) -> None:
        """Put fetched slots back. Does nothing without an open group."""
        fetched, self._fetched = self._fetched, []
        if fetched:
            self.core.free(torch.cat(fetched[::-1]))

    def clear(self) -> None:
        """Make every slot free, also slots that are in use; an open group is dropped."""
        self._fetched = []
        self.core.clear()
