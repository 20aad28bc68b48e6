"""The one allocator of a device, for engines whose indices live there: so does the free list, and nothing is read back.

      host                                         device
      counts of free and parked pages              ring of free pages          (`DeviceFreeList`)
      lengths of rows  ------- one copy a call --> new slots, freed slots, last slots

Capacity is decided on the host, exactly, before anything is launched. The values of slots are not read, so a double
free goes unseen, unless the allocator is made with `checked=True`: then the next `audit` reports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch

from kvstead.allocators.checks import refuse_lengths, refuse_shapes, require_page_start, require_pool, whole_pages
from kvstead.allocators.fill import fill_text
from kvstead.allocators.growth import Segment
from kvstead.errors import AuditError, InvalidSize
from kvstead.kernels import device_ops, device_rows
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, to_host, whole
from kvstead.kernels.device_dispatch import ops_for
from kvstead.kernels.device_transfer import DeviceTransfer
from kvstead.kernels.host import PARKED
from kvstead.pages import device_checks
from kvstead.pages.device_free_list import DeviceFreeList, DeviceRelease

_INDEX_DTYPES = (torch.int64, torch.int32)


def require_numbers(size: int, page_size: int, index_dtype: torch.dtype) -> None:
    """Raise `InvalidSize` unless `index_dtype` has a number for each of `size` slots, and the padding."""
    if index_dtype not in _INDEX_DTYPES or size + page_size > torch.iinfo(index_dtype).max:
        raise InvalidSize(f"{size} slots cannot be numbered in {index_dtype}. Use torch.int64, or int32 below 2**31.")


class _Rows(NamedTuple):
    """Rows that are to grow: lengths on the host, last slots on the device, and what `plan_rows` says of them."""

    prefix: IntArray
    seq: IntArray
    last: torch.Tensor
    plan: np.ndarray
    num_slots: int
    num_pages: int


class DeviceAllocator:
    """Slots in pages of `page_size`, whose free list lives on `device`; arguments as for `DevicePagedAllocator`."""

    def __init__(
        self,
        size: int,
        page_size: int,
        *,
        device: str | torch.device = "cpu",
        order: str = "lifo",
        index_dtype: torch.dtype = torch.int64,
        checked: bool = False,
    ) -> None:
        require_pool(size, page_size)
        require_numbers(size, page_size, index_dtype)
        self.page_size = whole(page_size, "page_size")
        self.device = torch.device(device)
        self.index_dtype = index_dtype
        self.free_group: list[DeviceRelease] | None = None
        self._ops = ops_for(self.device)
        self._transfer = DeviceTransfer(self.device, index_dtype)
        self._pool = DeviceFreeList(size // page_size, order, self.device, index_dtype, checked=checked)
        self._pools: tuple[DeviceFreeList, ...] = (self._pool,)
        # The pools that get a page back for each page of `free_segment`.
        self._paired_pools: tuple[DeviceFreeList, ...] = self._pools
        self.num_pages = self._pool.num_pages  # without the padding page
        self.size = self.num_pages * page_size

    def __repr__(self) -> str:
        return fill_text(self, self.page_size, {"full": self._pool})

    def available_size(self) -> int:
        """Tokens that can be allocated now. What is parked in an open group does not count."""
        return self._pool.num_free * self.page_size

    def parked_size(self) -> int:
        """Tokens freed in the open group: no longer held, not yet available."""
        return self._pool.num_parked * self.page_size

    def live_size(self) -> int:
        """Tokens that requests or the cache hold, in whole pages."""
        return self._pool.num_live * self.page_size

    def free_pages(self) -> torch.Tensor:
        """Free pages on the device, next to be taken first (`sorted`: but for a sort in between). O(free pages)."""
        return self._pool.contents()

    def alloc(self, num_tokens: int) -> torch.Tensor | None:
        """Hand out whole pages: [num_tokens] slots, page by page; None when short, with nothing changed.

        Raises `InvalidSize` for a negative number, `MisalignedSize` for one that is no multiple of the page size.
        """
        pages = self._take(whole_pages(num_tokens, self.page_size))
        return None if pages is None else self._ops.expand_pages(pages, self.page_size)

    def alloc_extend(self, prefix_lens: Integers, seq_lens: Integers, last_locs: Integers) -> torch.Tensor | None:
        """Grow rows from `prefix_lens` to `seq_lens` tokens; order and meaning of what comes back as on the host.

        prefix_lens, seq_lens: one entry a row, on the host. last_locs: the slot of each row's last token, -1 for an
        empty row, on the device. Returns [sum(seq - prefix)] slots; None when short, with nothing changed.

        Raises `InvalidSize` for lengths that shrink or do not match in number, `TypeError` for lengths on a device.
        """
        rows = self._rows(prefix_lens, seq_lens, last_locs)
        self._check_rows(rows.prefix, rows.seq, rows.last)
        pages = self._take(rows.num_pages)
        return None if pages is None else self._grow(rows, pages)

    def alloc_decode(self, seq_lens: Integers, last_locs: Integers) -> torch.Tensor | None:
        """Grow each row by one token; `seq_lens` count it. The same as `alloc_extend` from `seq_lens - 1`.

        Returns [rows] slots, or None when short, with nothing changed. Raises as `alloc_extend`.
        """
        seq = self._lengths(seq_lens, "seq_lens")
        last = self._last_slots(last_locs, seq.size)
        opening = np.empty(seq.size, dtype=np.int64)
        bad, num_pages = device_rows.plan_decode(seq, self.page_size, opening)
        if bad >= 0:
            refuse_lengths(bad, int(seq[bad]) - 1, int(seq[bad]))
        self._check_rows(seq - 1, seq, last)
        pages = self._take(int(num_pages))
        if pages is None:
            return None
        return self._ops.decode_slots(self._transfer.send(opening[:num_pages]), last, pages, self.page_size)

    def free(self, slots: Integers, *, num_pages: int | None = None) -> None:
        """Free the pages that `slots` lie in, in any order; slots of one page stand for that page once.

        num_pages: how many distinct pages that are, from a caller who knows. Else, at a page size above 1, that number
        is read from the device, which waits for it. At page size 1 slots must be distinct. Nothing is kept of `slots`.
        O(slots). Raises `DoubleFree` for more pages than are held, `InvalidSize` for more than there are slots, at page
        size 1 for fewer too.
        """
        indices = self._transfer.indices(slots)
        least = indices.numel() if self.page_size == 1 else 0
        if num_pages is not None and not least <= num_pages <= indices.numel():
            raise InvalidSize(
                f"num_pages is {num_pages}, for {indices.numel()} slots. Pass how many distinct pages they lie in, or "
                "leave it out."
            )
        if not indices.numel():
            return
        if self.page_size == 1:
            self._release(self._ops.segment_pages(indices, 1))
            return
        pages, count = self._ops.first_seen(indices, self.page_size, self._pool.marks)
        if num_pages is None:
            num_pages = int(count)
        else:
            self._note(device_checks.COUNT, count != num_pages, count)
        self._release(pages[:num_pages])

    def free_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Free a stretch of a request's row, `row[start_pos : start_pos + len(slots)]`, whole pages at a time.

        Every page_size-th slot stands for its page; a partial last page goes as a whole. Raises `MisalignedSegment`
        when `start_pos` is not on a page boundary, `DoubleFree` for more pages than are held.
        """
        require_page_start(start_pos, self.page_size)
        pages = self._segment(self._pool, slots)
        if pages.numel():
            self._release(pages)

    def free_segments(self, pairs: Iterable[Segment]) -> None:
        """Free several stretches, (slots, start_pos) each; all are checked first. They may not share a page."""
        for slots, start_pos in self._segments(pairs, self._paired_pools):
            self.free_segment(slots, start_pos=start_pos)

    def clear(self) -> None:
        """Make every slot free, no matter who holds it; an open group is dropped, and what `audit` would report."""
        self.free_group = None
        for pool in self._pools:
            pool.clear()

    def audit(self) -> None:
        """Raise the error for the first fault noted (`checked`), or `AuditError` if pages and counts do not agree.

        Waits for the device. O(pages of the pool).
        """
        for pool in self._pools:
            pool.audit(self.page_size)
            in_group = sum(release.pages.numel() for release in self.free_group or () if release.pool is pool)
            if in_group != pool.num_parked:
                raise AuditError(
                    f"{pool.num_parked} pages are parked, the open group holds {in_group}. Only the group parks pages."
                )

    def _take(self, num_pages: int) -> torch.Tensor | None:
        """Where every new page comes from; None when short, with nothing changed."""
        return self._pool.take(num_pages)

    def _release(self, pages: torch.Tensor) -> None:
        """Free pages, at once or when the open group ends; the tensor is our own."""
        self._leave(self._pool, pages)

    def _leave(self, pool: DeviceFreeList, pages: torch.Tensor) -> None:
        if self.free_group is None:
            pool.leave(pages)
        else:
            self.free_group.append(DeviceRelease(pool, pool.leave(pages, PARKED)))

    def _segments(self, pairs: Iterable[Segment], pools: tuple[DeviceFreeList, ...]) -> list[tuple[torch.Tensor, int]]:
        """Segments that all start on a page boundary, of no more pages together than each of `pools` holds."""
        segments = []
        for slots, start_pos in pairs:
            require_page_start(start_pos, self.page_size)
            segments.append((self._transfer.indices(slots), start_pos))
        num_pages = sum(-(-indices.numel() // self.page_size) for indices, _ in segments)
        for pool in pools:
            pool.require_held(num_pages)
        return segments

    def _segment(self, pool: DeviceFreeList, slots: Integers) -> torch.Tensor:
        """The pages of a stretch of a row that starts on a page boundary: a tensor of our own."""
        indices = self._transfer.indices(slots)
        pages = self._ops.segment_pages(indices, self.page_size)
        if pool.checks is not None:
            pool.checks.segment(indices, pages, self.page_size)
        return pages

    def _rows(self, prefix_lens: Integers, seq_lens: Integers, last_locs: Integers) -> _Rows:
        """Check rows that are to grow, and plan it."""
        prefix, seq = self._lengths(prefix_lens, "prefix_lens"), self._lengths(seq_lens, "seq_lens")
        last = self._last_slots(last_locs, prefix.size, seq.size)
        plan = np.empty((device_rows.ROW_COLUMNS, seq.size), dtype=np.int64)
        num_free = self._pool.num_free
        bad, num_slots, num_pages = device_rows.plan_rows(prefix, seq, self.page_size, num_free, plan)
        if bad >= 0:
            refuse_lengths(bad, int(prefix[bad]), int(seq[bad]))
        return _Rows(prefix, seq, last, plan, int(num_slots), int(num_pages))

    def _grow(self, rows: _Rows, pages: torch.Tensor) -> torch.Tensor:
        """The rows' new slots, once their pages are taken."""
        plan = self._transfer.send(rows.plan)
        return self._ops.extend_slots(plan, rows.last, pages, self.page_size, rows.num_slots)

    def _check_rows(self, prefix: IntArray, seq: IntArray, last: torch.Tensor) -> None:
        """Let the device check where rows grow, if it checks at all: before they take pages."""
        if self._pool.checks is None:
            return
        growing = np.flatnonzero(seq > prefix)
        rows, offsets = self._transfer.send(np.stack((growing, prefix[growing] % self.page_size)))
        self._pool.checks.grow(last.index_select(0, rows), offsets, self.page_size)

    def _first_pages(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The page of every slot, and whether no slot in front of it has the same, bool[k]."""
        pages = self._pages_of(slots)
        return pages, device_ops.first_ones(pages, self._pool.marks)

    def _pages_of(self, slots: torch.Tensor) -> torch.Tensor:
        return torch.div(slots, self.page_size, rounding_mode="floor")

    def _note(self, kind: int, bad: torch.Tensor, ids: torch.Tensor) -> None:
        if self._pool.checks is not None:
            self._pool.checks.note(kind, bad, ids)

    def _lengths(self, lengths: Integers, name: str) -> IntArray:
        if isinstance(lengths, torch.Tensor) and not lengths.is_cpu:
            raise TypeError(
                f"{name} lives on {lengths.device}. Pass the lengths that the scheduler keeps on the host: pages are "
                "counted there, before anything is launched."
            )
        return to_host(lengths)

    def _last_slots(self, last_locs: Integers, *num_rows: int) -> torch.Tensor:
        last = self._transfer.indices(last_locs)
        if {*num_rows} != {last.numel()}:
            refuse_shapes(*num_rows, last.numel())
        return last
