"""SGLang's allocator of recurrent states: a slot a request, whatever its length."""

from __future__ import annotations

import torch

from kvstead.integrations.sglang.allocator import backends


class MambaSlotAllocator:
    """State slots 1 .. `size`; slot 0 is padding. Freed slots queue behind all others, and frees never wait.

    Between `alloc_group_begin` and `alloc_group_end` slots for many calls of `alloc(1)` are fetched in one step. They
    stay available to everybody: whoever asks for more than is left gets those too.
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
        """`need_size` slots, or None when there are not so many. Raises `InvalidSize` for a negative number."""
        if need_size == 1 and self._fetched:
            return self._fetched.pop()
        if need_size > self.core.available_size():
            self.alloc_group_end()
        return self.core.alloc(need_size)

    def free(self, free_index: torch.Tensor) -> None:
        """Give slots back. Raises `DoubleFree` or `ForeignPage` for one that is not out; then none is given back."""
        self.alloc_group_end()  # a slot that was fetched, and that nobody holds, is free for the books again
        self.core.free(free_index)

    def alloc_group_begin(self, num_reqs: int) -> None:
        """Fetch slots for `num_reqs` calls of `alloc(1)`, or all that there are. An open group is ended first."""
        self.alloc_group_end()
        slots = self.core.alloc(max(0, min(num_reqs, self.core.available_size())))
        assert slots is not None, "no more than there are"
        self._fetched = [slot.reshape(1) for slot in slots.unbind()][::-1]

    def alloc_group_end(self) -> None:
        """Put fetched slots back. Without an open group nothing happens."""
        fetched, self._fetched = self._fetched, []
        if fetched:
            self.core.free(torch.cat(fetched[::-1]))

    def clear(self) -> None:
        """Every slot is free again, whoever held it; an open group is dropped."""
        self._fetched = []
        self.core.clear()
