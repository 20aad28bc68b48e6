"""Full and window pages on a device: two free lists there, and the mapping from one to the other.

Which pages still have their window page, their peer, only the device knows. Frees of segments take the caller's word:

                         full side    window side    the caller says of the pages
    free_segment         freed        freed          all have their peers
    free_swa_segment     stays        freed          all have their peers
    free_full_segment    freed        -              none has its peer any more
    free                 freed        if there       nothing; two numbers are read from the device
    free_swa             stays        if there       nothing; one number is read
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

import numpy as np
import torch

from kvstead.allocators.base import Segment
from kvstead.allocators.checks import require_page_start, require_tail
from kvstead.allocators.device import DevicePagedAllocator, require_numbers
from kvstead.errors import AuditError, InvalidSize
from kvstead.kernels import device_ops
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers
from kvstead.pages import device_checks
from kvstead.pages.device_free_list import DeviceFreeList
from kvstead.pages.device_peers import DevicePeers


class DeviceSWAAllocator(DevicePagedAllocator):
    """An `SWAAllocator` whose free lists and mapping live on `device`, with the same ids in the same order.

    full_size, swa_size: slots of the two sides. page_size, device, order, index_dtype, checked: as for
    `DevicePagedAllocator`; `free_pages` and `parked_size` speak of the full side.

    window_pages: [num_pages + 2] on the device, the peer of each full page, 0 for none, and -1 at the end. The same
    tensor for the allocator's whole life; to be read only.

    Waiting for the device: `free`, `free_full` and `free_swa`, for how many pages and peers there are, and `audit`.
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
        self._pair(DeviceFreeList(swa_size // page_size, order, self.device, index_dtype, checked=checked))

    @property
    def num_window_pages(self) -> int:
        """Window pages that can be handed out; the padding page is not counted."""
        return self._windows.num_pages

    def available_size(self) -> int:
        """Tokens that can be allocated now, on both sides. What is parked in an open group does not count."""
        return min(self.full_available_size(), self.swa_available_size())

    def full_available_size(self) -> int:
        """Tokens that the full side has room for now."""
        return super().available_size()

    def swa_available_size(self) -> int:
        """Tokens that the window side has room for now."""
        return self._windows.num_free * self.page_size

    def swa_parked_size(self) -> int:
        """Window slots freed in the open group: no longer owned, not yet available."""
        return self._windows.num_parked * self.page_size

    def swa_live_size(self) -> int:
        """Window slots that somebody holds, in whole pages."""
        return self._windows.num_live * self.page_size

    def window_free_pages(self) -> torch.Tensor:
        """As `free_pages`, of the window side."""
        return self._windows.contents()

    def alloc_extend_swa_tail(
        self, prefix_lens: Integers, seq_lens: Integers, last_locs: Integers, tail_len: int
    ) -> torch.Tensor | None:
        """`alloc_extend` of one row, with window pages only under its last `tail_len` tokens.

        None when a side is short. Raises as `alloc_extend`, and the head of the row may grow inside a page without a
        peer; `InvalidSize` for another number of rows than one, or a tail that is negative or longer than what is new;
        `MisalignedSegment` for one that starts inside a page.
        """
        rows = self._rows(prefix_lens, seq_lens, last_locs)
        if rows.seq.size != 1:
            raise InvalidSize(f"{rows.seq.size} rows are to grow with a tail. Pass one at a time.")
        tail = index(tail_len)
        require_tail(int(rows.seq[0]), tail, int(rows.seq[0] - rows.prefix[0]), self.page_size)
        super()._check_rows(rows.prefix, rows.seq, rows.last)  # not this class's, which is about peers
        pages = self._take_tail(rows.num_pages, -(-tail // self.page_size))
        return None if pages is None else self._grow(rows, pages)

    def free(self, slots: Integers, *, num_pages: int | None = None) -> None:
        """Give back the pages that `slots` lie in, in any order, with the peers that they still have.

        num_pages: how many distinct pages that are, from a caller who knows, and knows that all have their peers; then
        nothing is read. Else as `DevicePagedAllocator.free`.
        """
        indices = self._sender.indices(slots)
        if num_pages is not None or not indices.numel():
            super().free(indices, num_pages=num_pages)
            return
        all_pages, is_first = self._first_pages(indices)
        all_peers = self._peers.of(all_pages)
        pages, num_held = device_ops.compact(all_pages, is_first | (self.page_size == 1))  # a single slot is a page
        peers, num_peers = device_ops.compact(all_peers, is_first & (all_peers > 0))
        held, with_peer = torch.cat((num_held, num_peers)).tolist()
        self._require_held(held, with_peer)
        self._peers.drop(all_pages)
        self._give(self._free_list, pages[:held])
        if with_peer:
            self._give(self._windows, peers[:with_peer])

    def free_full(self, slots: Integers) -> None:
        """As `free`: a full page takes its peer, if it still has one, with it."""
        self.free(slots)

    def free_full_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Give back the full side of a stretch of a row none of whose pages has a peer. Raises as `free_segment`."""
        require_page_start(start_pos, self.page_size)
        pages = self._segment(self._free_list, slots)
        if pages.numel():
            self._note(device_checks.PEER_LEFT, self._peers.of(pages) != 0, pages)
            self._give(self._free_list, pages)

    def free_full_segments(self, pairs: Iterable[Segment]) -> None:
        """`free_full_segment` for several stretches, (slots, start_pos) each; all are checked first."""
        for slots, start_pos in self._segments(pairs, (self._free_list,)):
            self.free_full_segment(slots, start_pos=start_pos)

    def free_swa(self, slots: Integers) -> None:
        """Give back the peers of the pages that `slots` lie in; the full pages stay. Pages without one are passed over.

        Waits for the device, which says how many there are. O(slots).
        """
        indices = self._sender.indices(slots)
        if not indices.numel():
            return
        pages, is_first = self._first_pages(indices)
        self._note(device_checks.FREED, (pages < 1) | (pages > self.num_pages), pages)
        all_peers = self._peers.of(pages)
        peers, num_peers = device_ops.compact(all_peers, is_first & (all_peers > 0))
        with_peer = int(num_peers)
        if with_peer:
            self._windows.require_held(with_peer)
            self._peers.drop(pages)
            self._give(self._windows, peers[:with_peer])

    def free_swa_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Give back the peers of a stretch of a row all of whose pages have one. Raises as `free_segment`."""
        require_page_start(start_pos, self.page_size)
        pages = self._segment(self._free_list, slots)
        if pages.numel():
            self._windows.require_held(pages.numel())
            self._give(self._windows, self._take_peers(pages))

    def free_swa_segments(self, pairs: Iterable[Segment]) -> None:
        """`free_swa_segment` for several stretches, (slots, start_pos) each; all are checked first."""
        for slots, start_pos in self._segments(pairs, (self._windows,)):
            self.free_swa_segment(slots, start_pos=start_pos)

    def window_slots(self, slots: Integers) -> torch.Tensor:
        """Where the window side of full slots lies, in the shape of `slots`: 0 for a slot without one, -1 for -1.

        Any other id outside the pool gives anything. O(slots).
        """
        indices = self._sender.indices(slots)
        return self._peers.slots(indices, self.page_size).reshape(np.shape(slots))

    def clear(self) -> None:
        """Every slot of both sides is free again, whoever held it; an open group is dropped."""
        super().clear()
        self._peers.clear()

    def audit(self) -> None:
        """Check both sides, and that each window page is free, parked or the peer of one page that is not free.

        Raises as `DevicePagedAllocator.audit`. Waits for the device. O(pages of both pools).
        """
        super().audit()
        parked = [release.pages for release in self.free_group or () if release.pool is self._windows]
        owners = self.window_pages[:-1].nonzero()[:, 0]
        seen = torch.cat((self._held_windows(), self._windows.contents(), *parked)).sort().values
        if seen.tolist() != list(range(1, self.num_window_pages + 1)):
            raise AuditError("the window pages that are live are not those mapped. Only the allocator maps pages.")
        if torch.isin(owners, self.free_pages()).any():
            raise AuditError("a page that is free has a window page. Free such pages with free_segment, or by free.")

    def _pair(self, window_pages: DeviceFreeList) -> None:
        """Start with a window side beside the full side."""
        self._windows = window_pages
        self.swa_size = window_pages.num_pages * self.page_size
        self._peers = DevicePeers(self.num_pages, self.device, self.index_dtype)
        self.window_pages = self._peers.table

    def _held_windows(self) -> torch.Tensor:
        """The window pages that somebody holds, in any order: those mapped."""
        return self.window_pages[self.window_pages[:-1].nonzero()[:, 0]]

    def _pools(self) -> tuple[DeviceFreeList, ...]:
        return (self._free_list, self._windows)

    def _paired_pools(self) -> tuple[DeviceFreeList, ...]:
        return self._pools()

    def _take(self, num_pages: int) -> torch.Tensor | None:
        return self._take_tail(num_pages, num_pages)

    def _take_tail(self, num_pages: int, num_windows: int) -> torch.Tensor | None:
        """New full pages, the last `num_windows` of them with peers."""
        if num_pages > self._free_list.num_free or num_windows > self._windows.num_free:
            return None
        pages, peers = self._free_list.take(num_pages), self._windows.take(num_windows)
        assert pages is not None, "the full side was asked first"
        assert peers is not None, "the window side was asked first"
        self._peers.pair(pages[num_pages - num_windows :], peers)
        return pages

    def _release(self, pages: torch.Tensor) -> None:
        self._require_held(pages.numel(), pages.numel())
        peers = self._take_peers(pages)
        self._give(self._free_list, pages)
        self._give(self._windows, peers)

    def _require_held(self, num_pages: int, num_windows: int) -> None:
        """Raise before anything moves when one of the sides holds fewer."""
        self._free_list.require_held(num_pages)
        self._windows.require_held(num_windows)

    def _check_rows(self, prefix: IntArray, seq: IntArray, last: torch.Tensor) -> None:
        super()._check_rows(prefix, seq, last)
        if self._free_list.checks is not None:
            inside = self._sender.send(np.flatnonzero((seq > prefix) & (prefix % self.page_size != 0)))
            slots = last.index_select(0, inside)
            peers = self._peers.of(self._pages_of(slots))
            self._note(device_checks.BARE, peers == 0, slots)

    def _take_peers(self, pages: torch.Tensor) -> torch.Tensor:
        """Take the peers of pages that have one out of the mapping."""
        peers = self._peers.of(pages)
        self._note(device_checks.NO_PEER, peers == 0, pages)
        self._peers.drop(pages)
        return peers
