"""Full and window pages on a device: two free lists there, and the mapping from one to the other.

Which pages still have their window page, only the device knows. Frees of segments take the caller's word:

                         full side    window side    the caller says of the pages
    free_segment         freed        freed          all have window pages
    free_swa_segment     stays        freed          all have window pages
    free_full_segment    freed        -              none has a window page any more
    free                 freed        if there       nothing; two numbers are read from the device
    free_swa             stays        if there       nothing; one number is read
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

import numpy as np
import torch

from kvstead.allocators.checks import require_page_start, require_tail
from kvstead.allocators.device_allocator import DeviceAllocator, require_numbers
from kvstead.allocators.growth import Segment
from kvstead.errors import AuditError, InvalidSize
from kvstead.kernels import device_ops
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers
from kvstead.pages import device_checks
from kvstead.pages.device_free_list import DeviceFreeList, DeviceRelease
from kvstead.pages.device_links import DeviceLinks
from kvstead.pages.free_group import DefersFrees


class DeviceSWAAllocator(DefersFrees[DeviceRelease], DeviceAllocator):
    """An `SWAAllocator` whose free lists and mapping live on `device`, with the same ids in the same order.

    full_size, swa_size: slots of the two sides. page_size, device, order, index_dtype, checked: as for
    `DevicePagedAllocator`; `free_pages` and `parked_size` speak of the full side.

    window_pages: [num_pages + 2] on the device, the window page of each full page, 0 for none, and -1 at the end. The
    same tensor for the allocator's whole life; to be read only.

    Waiting for the device: `free`, `free_full` and `free_swa`, for the numbers of pages and window pages, and `audit`.
    """

    def __init__(
        self,
        full_size: int,
        swa_size: int,
        page_size: int,
        *,
        device: str | torch.device = "cpu",
        order: str = "lifo",
        index_dtype: torch.dtype = torch.int64,
        checked: bool = False,
    ) -> None:
        super().__init__(full_size, page_size, device=device, order=order, index_dtype=index_dtype, checked=checked)
        if swa_size < 0:
            raise InvalidSize(f"swa_size is {swa_size}. The window side has 0 slots or more.")
        require_numbers(swa_size, page_size, index_dtype)
        self._windows = DeviceFreeList(swa_size // page_size, order, self.device, index_dtype, checked=checked)
        self._pools = self._paired_pools = (self._pool, self._windows)
        self.num_window_pages = self._windows.num_pages  # without the padding page
        self.swa_size = self.num_window_pages * page_size
        self._links = DeviceLinks(self.num_pages, self.device, index_dtype)
        self.window_pages = self._links.table

    def available_size(self) -> int:
        """Tokens that can be allocated now, on both sides. What is parked in an open group does not count."""
        return min(self.full_available_size(), self.swa_available_size())

    def full_available_size(self) -> int:
        """Tokens that the full side has capacity for now."""
        return super().available_size()

    def swa_available_size(self) -> int:
        """Tokens that the window side has capacity for now."""
        return self._windows.num_free * self.page_size

    def swa_parked_size(self) -> int:
        """Window slots freed in the open group: no longer held, not yet available."""
        return self._windows.num_parked * self.page_size

    def swa_live_size(self) -> int:
        """Window slots that requests or the cache hold, in whole pages."""
        return self._windows.num_live * self.page_size

    def window_free_pages(self) -> torch.Tensor:
        """As `free_pages`, of the window side."""
        return self._windows.contents()

    def alloc_extend_swa_tail(
        self, prefix_lens: Integers, seq_lens: Integers, last_locs: Integers, tail_len: int
    ) -> torch.Tensor | None:
        """`alloc_extend` of one row, with window pages only under its last `tail_len` tokens.

        None when a side is short. Raises as `alloc_extend`, but the head of the row may grow inside a page without a
        window page; `InvalidSize` for another number of rows than one, or a tail that is negative or longer than what
        is new; `MisalignedSegment` for one that starts inside a page.
        """
        rows = self._rows(prefix_lens, seq_lens, last_locs)
        if rows.seq.size != 1:
            raise InvalidSize(f"{rows.seq.size} rows are to grow with a tail. Pass one at a time.")
        tail = index(tail_len)
        require_tail(int(rows.seq[0]), tail, int(rows.seq[0] - rows.prefix[0]), self.page_size)
        super()._check_rows(rows.prefix, rows.seq, rows.last)  # not this class's, which is about window pages
        pages = self._take_tail(rows.num_pages, -(-tail // self.page_size))
        return None if pages is None else self._grow(rows, pages)

    def free(self, slots: Integers, *, num_pages: int | None = None) -> None:
        """Free the pages that `slots` lie in, in any order, with the window pages that they still have.

        num_pages: how many distinct pages that are, from a caller who knows, and knows that all have window pages; then
        nothing is read. Else as `DevicePagedAllocator.free`.
        """
        indices = self._transfer.indices(slots)
        if num_pages is not None or not indices.numel():
            super().free(indices, num_pages=num_pages)
            return
        all_pages, is_first = self._first_pages(indices)
        all_linked = self._links.of(all_pages)
        pages, num_held = device_ops.compact(all_pages, is_first | (self.page_size == 1))  # a single slot is a page
        linked, num_linked = device_ops.compact(all_linked, is_first & (all_linked > 0))
        held, num_windows = torch.cat((num_held, num_linked)).tolist()
        self._require_held(held, num_windows)
        self._links.unlink(all_pages)
        self._leave(self._pool, pages[:held])
        if num_windows:
            self._leave(self._windows, linked[:num_windows])

    free_full = free  # a window page that is still linked is freed with its full page

    def free_full_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Free the full side of a stretch of a row, none of whose pages has a window page. Raises as `free_segment`."""
        require_page_start(start_pos, self.page_size)
        pages = self._segment(self._pool, slots)
        if pages.numel():
            self._note(device_checks.STILL_LINKED, self._links.of(pages) != 0, pages)
            self._leave(self._pool, pages)

    def free_full_segments(self, pairs: Iterable[Segment]) -> None:
        """`free_full_segment` for several stretches, (slots, start_pos) each; all are checked first."""
        for slots, start_pos in self._segments(pairs, (self._pool,)):
            self.free_full_segment(slots, start_pos=start_pos)

    def free_swa(self, slots: Integers) -> None:
        """Free the window pages of the pages that `slots` lie in; the full pages stay. Pages without one are skipped.

        Waits for the device, which says how many there are. O(slots).
        """
        indices = self._transfer.indices(slots)
        if not indices.numel():
            return
        pages, is_first = self._first_pages(indices)
        self._note(device_checks.FREED, (pages < 1) | (pages > self.num_pages), pages)
        all_linked = self._links.of(pages)
        linked, num_linked = device_ops.compact(all_linked, is_first & (all_linked > 0))
        num_windows = int(num_linked)
        if num_windows:
            self._windows.require_held(num_windows)
            self._links.unlink(pages)
            self._leave(self._windows, linked[:num_windows])

    def free_swa_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Free the window pages of a stretch of a row, all of whose pages have one. Raises as `free_segment`."""
        require_page_start(start_pos, self.page_size)
        pages = self._segment(self._pool, slots)
        if pages.numel():
            self._windows.require_held(pages.numel())
            self._leave(self._windows, self._unlink(pages))

    def free_swa_segments(self, pairs: Iterable[Segment]) -> None:
        """`free_swa_segment` for several stretches, (slots, start_pos) each; all are checked first."""
        for slots, start_pos in self._segments(pairs, (self._windows,)):
            self.free_swa_segment(slots, start_pos=start_pos)

    def window_slots(self, slots: Integers) -> torch.Tensor:
        """Where the window side of full slots lies, in the shape of `slots`: 0 for a slot without one, -1 for -1.

        Any other id outside the pool gives anything. O(slots).
        """
        indices = self._transfer.indices(slots)
        return self._links.slots(indices, self.page_size).reshape(np.shape(slots))

    def clear(self) -> None:
        """Make every slot of both sides free, no matter who holds it; an open group is dropped."""
        super().clear()
        self._links.clear()

    def audit(self) -> None:
        """Check both sides, and that each window page is free, parked or linked to one page that is not free.

        Raises as `DevicePagedAllocator.audit`. Waits for the device. O(pages of both pools).
        """
        super().audit()
        parked = [release.pages for release in self.free_group or () if release.pool is self._windows]
        owners = self.window_pages[:-1].nonzero()[:, 0]
        seen = torch.cat((self._held_windows(), self._windows.contents(), *parked)).sort().values
        if seen.tolist() != list(range(1, self.num_window_pages + 1)):
            raise AuditError(
                "the window pages that are live are not the linked ones. Only the allocator may link pages."
            )
        if torch.isin(owners, self.free_pages()).any():
            raise AuditError("a page that is free has a window page. Free such pages with free_segment, or by free.")

    def _held_windows(self) -> torch.Tensor:
        """The live window pages that the links account for, in any order."""
        return self.window_pages[self.window_pages[:-1].nonzero()[:, 0]]

    def _take(self, num_pages: int) -> torch.Tensor | None:
        return self._take_tail(num_pages, num_pages)

    def _take_tail(self, num_pages: int, num_windows: int) -> torch.Tensor | None:
        """New full pages, the last `num_windows` of them with window pages."""
        if num_pages > self._pool.num_free or num_windows > self._windows.num_free:
            return None
        pages, linked = self._pool.take(num_pages), self._windows.take(num_windows)
        assert pages is not None, "the full side was asked first"
        assert linked is not None, "the window side was asked first"
        self._links.link(pages[num_pages - num_windows :], linked)
        return pages

    def _release(self, pages: torch.Tensor) -> None:
        self._require_held(pages.numel(), pages.numel())
        linked = self._unlink(pages)
        self._leave(self._pool, pages)
        self._leave(self._windows, linked)

    def _require_held(self, num_pages: int, num_windows: int) -> None:
        """Raise before anything moves when one of the sides holds fewer."""
        self._pool.require_held(num_pages)
        self._windows.require_held(num_windows)

    def _check_rows(self, prefix: IntArray, seq: IntArray, last: torch.Tensor) -> None:
        super()._check_rows(prefix, seq, last)
        if self._pool.checks is not None:
            inside = self._transfer.send(np.flatnonzero((seq > prefix) & (prefix % self.page_size != 0)))
            slots = last.index_select(0, inside)
            linked = self._links.of(self._pages_of(slots))
            self._note(device_checks.BARE, linked == 0, slots)

    def _unlink(self, pages: torch.Tensor) -> torch.Tensor:
        """Unlink the window pages of pages that all have one: which they are."""
        linked = self._links.of(pages)
        self._note(device_checks.NOT_LINKED, linked == 0, pages)
        self._links.unlink(pages)
        return linked
