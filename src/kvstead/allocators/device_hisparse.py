"""Logical slots and hot device slots, with both free lists and the mapping on the device.

A free does not know how many pages have device pages: it reads that number from the device, once, besides what a
`DevicePagedAllocator` reads. Calls that hand out slots for tokens read nothing.
"""

from __future__ import annotations

import numpy as np
import torch

from kvstead.allocators.checks import whole_pages
from kvstead.allocators.device_allocator import DeviceAllocator
from kvstead.allocators.hot_pages import IN_BUFFER
from kvstead.errors import AuditError, InvalidSize
from kvstead.kernels import device_ops
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers
from kvstead.pages import device_checks
from kvstead.pages.device_free_list import DeviceFreeList
from kvstead.pages.device_links import DeviceLinks
from kvstead.pages.free_group import FreesAtOnce


class DeviceHiSparseAllocator(FreesAtOnce, DeviceAllocator):
    """A `HiSparseAllocator` whose free lists and mapping live on `device`, with the same ids in the same order.

    size: device slots; there are `ratio` times as many logical slots, and `.size` is their number. page_size, device,
    order, index_dtype, checked: as for `DevicePagedAllocator`; `free_pages` is about the logical side. Frees take
    effect at once, also between `free_group_begin` and `free_group_end`, which do nothing.

    `device_size`: usable device slots. device_pages: [num_pages + 2] on the device, the device page of each logical
    page, 0 for none, and -1 at the end. The same tensor for the allocator's whole life; to be read only.

    Waiting for the device: every free, `alloc_device_buffer`, and `audit`.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        *,
        ratio: int = 2,
        device: str | torch.device = "cpu",
        order: str = "lifo",
        index_dtype: torch.dtype = torch.int64,
        checked: bool = False,
    ) -> None:
        if ratio < 1:
            raise InvalidSize(f"ratio is {ratio}. There are as many logical slots as device slots, or more.")
        super().__init__(size * ratio, page_size, device=device, order=order, index_dtype=index_dtype, checked=checked)
        self._hot = DeviceFreeList(size // page_size, order, self.device, index_dtype, checked=checked)
        self._pools = (self._pool, self._hot)
        self.device_size = self._hot.num_pages * page_size
        self._links = DeviceLinks(self.num_pages, self.device, index_dtype)
        self.device_pages = self._links.table
        self._lens = torch.zeros_like(self.device_pages)  # slots of a logical page that are on the device
        self._holders = torch.zeros(self._hot.num_pages + 1, dtype=index_dtype, device=self.device)

    def available_size(self) -> int:
        """Tokens that can be allocated now on both sides."""
        return min(self.logical_available_size(), self.device_available_size())

    def logical_available_size(self) -> int:
        """Tokens that can be allocated now, without device slots."""
        return super().available_size()

    def device_available_size(self) -> int:
        """Device slots that can be allocated now."""
        return self._hot.num_free * self.page_size

    def device_free_pages(self) -> torch.Tensor:
        """All free device pages, as `free_pages`."""
        return self._hot.contents()

    def device_slots(self, slots: Integers) -> torch.Tensor:
        """Where the device side of logical slots lies, in the shape of `slots`: 0 for a slot without one, -1 for -1.

        The result for any other id outside the pool is undefined. O(slots).
        """
        return self._device_slots(self._transfer.indices(slots)).reshape(np.shape(slots))

    def alloc(self, num_tokens: int) -> torch.Tensor | None:
        """Hand out whole pages, each with a device page. Otherwise as `DevicePagedAllocator.alloc`."""
        pages = self._take_both(whole_pages(num_tokens, self.page_size))
        if pages is None:
            return None
        self._lens.index_fill_(0, pages.long(), self.page_size)
        return self._ops.expand_pages(pages, self.page_size)

    def alloc_extend(self, prefix_lens: Integers, seq_lens: Integers, last_locs: Integers) -> torch.Tensor | None:
        """Grow rows, the new tokens with device slots; `alloc_decode` gives its tokens none.

        None when a side is short. A row does not grow in a page behind a token without a device slot (`checked`).
        Otherwise as `DevicePagedAllocator.alloc_extend`.
        """
        rows = self._rows(prefix_lens, seq_lens, last_locs)
        self._check_rows(rows.prefix, rows.seq, rows.last)
        self._check_hot_rows(rows.prefix, rows.seq, rows.last)
        pages = self._take_both(rows.num_pages)
        if pages is None:
            return None
        slots = self._grow(rows, pages)
        self._lens.index_fill_(0, pages.long(), 0)
        ends = slots.remainder(self.page_size) + 1
        self._lens.scatter_reduce_(0, self._pages_of(slots).long(), ends, "amax")
        return slots

    def alloc_logical_only(self, prefix_lens: Integers, seq_lens: Integers, last_locs: Integers) -> torch.Tensor | None:
        """Grow rows without device slots, for tokens that go straight to the host."""
        return super().alloc_extend(prefix_lens, seq_lens, last_locs)

    def alloc_device_buffer(self, slots: Integers, num_tokens: int) -> torch.Tensor | None:
        """A buffer of `num_tokens` device slots, which takes over the device slots that `slots` have.

        As `HiSparseAllocator.alloc_device_buffer`, but slots named twice go unseen. Reads three numbers from the
        device, in one copy. O((slots + num_tokens) log).
        """
        wanted = whole_pages(num_tokens, self.page_size)
        found = self._device_slots(self._transfer.indices(slots))
        is_there = found > 0
        in_front = is_there & (is_there.cumsum(0) <= num_tokens)
        all_pages = self._pages_of(found)
        is_first = is_there & device_ops.first_ones(all_pages, self._hot.marks)
        slots_found, num_found = device_ops.compact(found, is_there)
        kept, num_kept = device_ops.compact(all_pages, is_first & in_front)
        spare, num_spare = device_ops.compact(all_pages, is_first & ~in_front)
        counts = torch.cat((num_found, num_kept, num_spare)).tolist() if found.numel() else [0, 0, 0]
        fresh = self._hot.take(max(0, wanted - counts[1]))
        if fresh is None:
            return None
        slots_found, kept, spare = slots_found[: counts[0]], kept[: counts[1]], spare[: counts[2]]
        for pages in (kept, spare):
            self._links.unlink(self._holders.index_select(0, pages))
        self._holders.index_fill_(0, torch.cat((kept, fresh)).long(), IN_BUFFER)
        self._leave_hot(spare.sort().values)
        if counts[0] >= num_tokens:
            return slots_found[:num_tokens].clone()
        rest = self._rest_of(kept, slots_found)
        return torch.cat((slots_found, rest, self._ops.expand_pages(fresh, self.page_size)))[:num_tokens]

    def free_hisparse(self, slots: Integers) -> None:
        """Free the device pages of the pages that `slots` lie in; the logical pages stay.

        Pages without one are passed over. O(slots).
        """
        indices = self._transfer.indices(slots)
        pages, is_first = self._first_pages(indices)
        self._note(device_checks.FREED, (pages < 1) | (pages > self.num_pages), pages)
        self._free_hot(pages, is_first)

    def free_hisparse_indices(self, device_slots: Integers) -> None:
        """Free the pages that device slots lie in, as at the end of a buffer; 0 and -1 are passed over.

        A page that is linked to a logical page is unlinked. Raises `DoubleFree` for more pages than are held. O(slots).
        """
        indices = self._transfer.indices(device_slots)
        all_pages = self._pages_of(indices)
        is_first = device_ops.first_ones(all_pages, self._hot.marks)
        pages, count = device_ops.compact(all_pages, is_first & (indices != 0) & (indices != -1))
        pages = pages[: int(count) if indices.numel() else 0]
        self._hot.require_held(pages.numel())
        self._links.unlink(self._holders.index_select(0, pages.clamp(0, self._hot.num_pages)))
        self._leave_hot(pages)

    def clear(self) -> None:
        """Make every slot of both sides free, no matter who holds it."""
        super().clear()
        self._links.clear()

    def audit(self) -> None:
        """Check both sides, and that linked device pages and logical pages name each other.

        Raises as `DevicePagedAllocator.audit`. Waits for the device. O(pages of both pools).
        """
        super().audit()
        pages = self.device_pages[:-1].nonzero()[:, 0]
        linked = self.device_pages[pages]
        if not torch.equal(self._holders[linked].long(), pages):
            raise AuditError("device pages and logical pages name different partners. Only the allocator links pages.")
        if torch.isin(linked, self.device_free_pages()).any() or torch.isin(pages, self.free_pages()).any():
            raise AuditError("a page that is free has a device page, or is one. Only the allocator may link pages.")

    def _take_both(self, num_pages: int) -> torch.Tensor | None:
        """New logical pages with device pages."""
        if num_pages > self._hot.num_free:
            return None
        pages = self._take(num_pages)
        if pages is not None:
            fresh = self._hot.take(num_pages)
            assert fresh is not None, "the device side was asked first"
            self._links.link(pages, fresh)
            self._holders.index_copy_(0, fresh.long(), pages)
        return pages

    def _release(self, pages: torch.Tensor) -> None:
        self._pool.require_held(pages.numel())
        self._free_hot(pages, torch.ones_like(pages, dtype=torch.bool))  # raises before anything moves, too
        super()._release(pages)

    def _free_hot(self, pages: torch.Tensor, is_first: torch.Tensor) -> None:
        """Free the device pages of logical pages; waits for how many there are."""
        if pages.numel():
            linked = self._links.of(pages)
            hot, count = device_ops.compact(linked, is_first & (linked > 0))
            self._leave_hot(hot[: int(count)])
            self._links.unlink(pages)

    def _leave_hot(self, pages: torch.Tensor) -> None:
        if pages.numel():
            self._hot.leave(pages)

    def _device_slots(self, slots: torch.Tensor) -> torch.Tensor:
        there = self._links.slots(slots, self.page_size)
        lens = self._lens.index_select(0, self._pages_of(slots).clamp_(0, self.num_pages))
        return torch.where((there > 0) & (slots.remainder(self.page_size) >= lens), 0, there)

    def _rest_of(self, pages: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """The slots of device pages that are not among `slots`, which all lie in these pages: ascending."""
        size = self.page_size
        ordered = pages.sort().values
        ranks = torch.searchsorted(ordered, self._pages_of(slots))
        taken = torch.zeros(ordered.numel() * size, dtype=torch.bool, device=self.device)
        taken.index_fill_(0, ranks * size + slots.remainder(size), True)
        rest, _ = device_ops.compact(self._ops.expand_pages(ordered, size), ~taken)
        return rest[: ordered.numel() * size - slots.numel()]

    def _check_hot_rows(self, prefix: IntArray, seq: IntArray, last: torch.Tensor) -> None:
        """Let the device check that rows grow behind a token that has a device slot, if it checks at all."""
        if self._pool.checks is not None:
            rows = np.flatnonzero((seq > prefix) & (prefix % self.page_size != 0))
            slots = last.index_select(0, self._transfer.send(rows))
            self._note(device_checks.COLD, self._device_slots(slots) == 0, slots)
