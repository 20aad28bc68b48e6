"""Allocators of models that keep all tokens on the host and the hot ones on the device as well.

Callers hold logical slots. A logical page may own one device page, with entries at the same places: a token each, or a
block of tokens with compression. A device page that is owned by none lies in a buffer, which is its caller's.

    logical page      1     2     3     4     5           a request of 5 pages: its prompt went to the device (4, 5),
    device_pages      0     0     0     7     2           the head of it lies in a buffer by now (device pages 1, 6, 3)
                     `----- buffer -----'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import torch

from kvstead.allocators.checks import require_pool, whole_pages
from kvstead.allocators.paged import PagedAllocator, all_slots
from kvstead.allocators.split_swa import SplitSWAAllocator
from kvstead.allocators.swa import refuse_window_slot
from kvstead.errors import AuditError, InvalidSize, UseAfterFree
from kvstead.kernels import host, hot_pages, windows
from kvstead.kernels.array_types import IntArray, StateArray
from kvstead.kernels.arrays import Integers, to_device, to_host
from kvstead.pages import FreeList, Release
from kvstead.pages.page_table import require_tag

_IN_BUFFER = 0  # what the tag of a device page says that no logical page owns


class _HotSide(PagedAllocator):
    """A `PagedAllocator` with a pool of device pages, of `device_page_size` slots each.

    device_pages: int64[num_pages + 2], the device page of each logical page, 0 for none, and -1 at the end. The same
    array for the allocator's whole life; to be read only. compress_ratio: tokens that share a device slot, which their
    last one brings into being.
    """

    compress_ratio: int

    @property
    def device_page_size(self) -> int:
        """Device slots of a page."""
        return self.page_size // self.compress_ratio

    @property
    def device_size(self) -> int:
        """Usable device slots."""
        return self._hot.num_pages * self.device_page_size

    def available_size(self) -> int:
        """Tokens that can be allocated now on all sides. What is parked in an open group does not count."""
        return min(super().available_size(), self.device_available_size() * self.compress_ratio)

    def logical_available_size(self) -> int:
        """Tokens that can be allocated now, without device slots."""
        return self._free_list.table.num_free * self.page_size

    def device_available_size(self) -> int:
        """Device slots that can be allocated now."""
        return self._hot.table.num_free * self.device_page_size

    def device_page_states(self) -> StateArray:
        """The state of every device page, uint8[pages + 1]: the allocator's own array, to be read only."""
        return self._hot.table.state

    def device_free_pages(self) -> IntArray:
        """All free device pages, in the order in which they will be handed out: int64[k], a copy. O(pages)."""
        return self._hot.contents()

    def device_slots(self, slots: Integers) -> torch.Tensor:
        """Where the device side of logical slots lies: int64 on the device, in the shape of `slots`.

        0 for a slot without one (padding, and with compression all but the last token of a block, too), -1 for -1.
        Raises `ForeignPage` for any other id outside the pool. O(slots); slots on another device are copied to the
        host, which waits for it.
        """
        return to_device(self._hot_slots(to_host(slots)), self.device).reshape(np.shape(slots))

    def alloc(self, num_tokens: int, owner: int = 0) -> torch.Tensor | None:
        """Hand out whole pages, each with a device page. Otherwise as `PagedAllocator.alloc`."""
        num_pages = whole_pages(num_tokens, self.page_size)
        require_tag(owner)
        if num_pages > self._hot.num_free:
            return None
        pages = self._take(num_pages, owner)
        if pages is None:
            return None
        fresh = self._take_hot(num_pages)
        windows.map_pages(self.device_pages, pages, fresh, 0)
        self._hot.table.owner[fresh] = pages
        self._hot_lens[pages] = self.device_page_size
        return to_device(all_slots(pages, self.page_size), self.device)

    def alloc_extend(
        self, prefix_lens: Integers, seq_lens: Integers, last_locs: Integers, owners: Integers | None = None
    ) -> torch.Tensor | None:
        """Grow rows, the new tokens with device slots. None when a side is short, with nothing changed.

        Raises as `PagedAllocator.alloc_extend`, and `UseAfterFree` for a row that would grow in a page behind a token
        without a device slot. O(rows + tokens).
        """
        prefix, seq, last = self._rows(prefix_lens, seq_lens, last_locs)
        num_slots, num_pages = self._demand(prefix, seq, last)
        self._check_rows(prefix, seq, last)
        num_hot = self._hot_demand(prefix, seq, last)
        tags = None if owners is None else self._tags(owners, seq.size)
        if num_hot > self._hot.num_free:
            return None
        pages = self._take(num_pages)
        if pages is None:
            return None
        slots = self._extend(prefix, seq, last, tags, pages, num_slots)
        fresh = self._take_hot(num_hot)
        sizes = self.page_size, self.compress_ratio
        hot_pages.warm_rows(self.device_pages, self._hot_lens, self._hot.table.owner, prefix, seq, slots, fresh, *sizes)
        return to_device(slots, self.device)

    def alloc_logical_only(
        self, prefix_lens: Integers, seq_lens: Integers, last_locs: Integers, owners: Integers | None = None
    ) -> torch.Tensor | None:
        """Grow rows without device slots, for tokens that go straight to the host; so does `alloc_decode`.

        Otherwise as `PagedAllocator.alloc_extend`.
        """
        return super().alloc_extend(prefix_lens, seq_lens, last_locs, owners)

    def alloc_device_buffer(self, slots: Integers, num_tokens: int) -> torch.Tensor | None:
        """A buffer of `num_tokens` device slots, made of the device side of `slots` as far as there is one.

        slots: of one row, in any order; none at all for an empty buffer. Their pages lose their device side. The buffer
        begins with the device slots of `slots`, in that order; what is too much of them is freed, page by page, unless
        the buffer needs another part of the page; what is missing are the rest of their pages and fresh ones. Returns
        int64[num_tokens], or None when too few are free, with nothing changed. `free_hisparse_indices` ends it.

        Raises `InvalidSize` for a negative number or slots named twice, `MisalignedSize` for no multiple of the device
        page size, `ForeignPage` for a slot outside the pool. O((slots + num_tokens) log).
        """
        size = self.device_page_size
        num_pages = whole_pages(num_tokens, size)
        found = self._hot_slots(to_host(slots))
        found = found[found > 0]
        if np.unique(found).size < found.size:
            raise InvalidSize(f"slots of a row are named twice among {found.size}. Name each slot once.")
        pages = _distinct(found // size)
        kept = _distinct(found[:num_tokens] // size)
        fresh = self._hot.take(max(0, num_pages - kept.size), _IN_BUFFER)
        if fresh is None:
            return None
        unused = np.setdiff1d(all_slots(kept, size), found)
        holders = self._hot.table.owner
        self.device_pages[holders[pages]] = 0
        holders[kept] = _IN_BUFFER
        if (surplus := np.setdiff1d(pages, kept)).size:
            self._free_pages(self._hot, surplus)
        buffer = np.concatenate((found, unused, all_slots(fresh, size)))[:num_tokens]
        return to_device(buffer, self.device)

    def free_hisparse(self, slots: Integers) -> None:
        """Give back the device side of the pages that `slots` lie in; the logical pages stay.

        Pages without one are passed over, so a second call does nothing. Raises `ForeignPage` for padding or a slot
        outside the pool (-1 too), with nothing changed. O(slots).
        """
        array = to_host(slots)
        pages = np.empty(array.size, dtype=np.int64)
        self._drop_hot(pages[: windows.pages_of_slots(array, self.page_size, pages)])

    def free_hisparse_indices(self, device_slots: Integers) -> None:
        """Give back the pages that device slots lie in, as when a buffer is done with.

        device_slots: in any order; 0 and -1, which stand for none, are passed over. A page that a logical one owns is
        taken from it. Raises as `free`. O(slots).
        """
        array = to_host(device_slots)
        array = array[(array != 0) & (array != -1)]
        if not array.size:
            return
        size = self.device_page_size
        parked = self._hot.park(array) if size == 1 else self._hot.park_slots(array, size)
        self.device_pages[self._hot.table.owner[parked]] = 0
        self._hand_back((Release(self._hot, parked),))

    def clear(self) -> None:
        """Every slot of all sides is free again, whoever held it; an open group is dropped."""
        super().clear()
        self.device_pages[:-1] = 0

    def audit(self) -> None:
        """Check all sides, and that each live device page is owned by one live logical page, or lies in a buffer.

        Raises `AuditError`. O(pages of all pools).
        """
        super().audit()
        owning = np.flatnonzero(self.device_pages[:-1])
        owned = self.device_pages[owning]
        holders = np.where(self._hot.table.state == host.LIVE, self._hot.table.owner, _IN_BUFFER)
        expected = np.zeros_like(holders)
        expected[owned[owned < expected.size]] = owning[owned < expected.size]
        if not np.array_equal(expected, holders) or np.unique(owned).size < owned.size:
            raise AuditError("device pages and their logical pages name different ones. Only the allocator maps pages.")
        if not (self._free_list.table.state[owning] == host.LIVE).all() or self.device_pages[-1] != -1:
            raise AuditError("a page that is not live has a device page. Only the allocator maps pages.")
        lens = self._hot_lens[owning]
        if ((lens < 1) | (lens > self.device_page_size)).any():
            raise AuditError("a device page holds fewer entries than one, or more than it is long. They are counted.")

    def _heat(self, device_pages: FreeList, compress_ratio: int) -> None:
        """Start with a pool of device pages, beside everything else."""
        self.compress_ratio = compress_ratio
        self._hot = device_pages
        self.device_pages: IntArray = np.zeros(self.num_pages + 2, dtype=np.int64)
        self.device_pages[-1] = -1
        self._hot_lens: IntArray = np.zeros(self.num_pages + 2, dtype=np.int64)  # entries where there is a device page

    def _hot_demand(self, prefix: IntArray, seq: IntArray, last: IntArray) -> int:
        """Device pages for what rows complete. Raises for a row that would leave a gap."""
        sizes = self.page_size, self.compress_ratio
        row, num_pages = hot_pages.hot_demand(self.device_pages, self._hot_lens, prefix, seq, last, *sizes)
        if row >= 0:
            self._refuse_cold_row(row, int(last[row]))
        return num_pages

    def _take_hot(self, num_pages: int) -> IntArray:
        pages = self._hot.take(num_pages)
        assert pages is not None, "the device side was asked first"
        return pages

    def _hot_slots(self, slots: IntArray) -> IntArray:
        out = np.empty(slots.size, dtype=np.int64)
        sizes = self.page_size, self.compress_ratio
        bad = hot_pages.hot_slots(self.device_pages, self._hot_lens, slots, *sizes, out)
        if bad >= 0:
            refuse_window_slot(int(slots[bad]), self.size + self.page_size)
        return out

    def _drop_hot(self, pages: IntArray) -> None:
        """Free the device pages of logical pages, at once or when the group ends."""
        self._free_owned(pages, self.device_pages, self._hot)

    def _token_pools(self) -> dict[str, FreeList]:
        return super()._token_pools() | {"hot": self._hot}

    def _park(self, slots: IntArray) -> Sequence[Release]:
        return self._park_owned(super()._park(slots), self.device_pages, self._hot)

    def _park_segments(self, segments: Sequence[IntArray]) -> Sequence[Release]:
        return self._park_owned(super()._park_segments(segments), self.device_pages, self._hot)

    def _give(self, slots: IntArray) -> IntArray:
        pages = super()._give(slots)
        self._drop_hot(pages)
        return pages

    def _give_segment(self, slots: IntArray) -> IntArray:
        pages = super()._give_segment(slots)
        self._drop_hot(pages)
        return pages

    def _refuse_cold_row(self, row: int, last: int) -> NoReturn:
        raise UseAfterFree(
            f"row {row} would grow behind slot {last}, in page {last // self.page_size}, where the token before has no "
            "device slot: the new ones would have no place. Use alloc_logical_only, or start at a page boundary."
        )


class HiSparseAllocator(_HotSide):
    """Logical slots for all tokens, and device slots for the hot ones.

    size: device slots; there are `ratio` times as many logical slots, and `.size` is their number. A remainder that
    fills no page is unusable. device, order: as for `PagedAllocator`. `alloc` and `alloc_extend` give a token both,
    `alloc_decode` and `alloc_logical_only` a logical slot alone. `page_states` and `owners` speak of the logical side.

    Frees take effect at once, also between `free_group_begin` and `free_group_end`: whoever serves the buffers may ask
    for a slot's device side at any time, and must not find one that is to be freed. So `free_group` is always None.

    Raises `InvalidSize` for a negative size, a page size or a ratio below 1 or an unknown order.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        *,
        ratio: int = 2,
        device: str | torch.device = "cpu",
        order: str = "lifo",
    ) -> None:
        if ratio < 1:
            raise InvalidSize(f"ratio is {ratio}. There are as many logical slots as device slots, or more.")
        super().__init__(size * ratio, page_size, device=device, order=order)
        self._heat(FreeList(size // page_size, order), 1)

    def free_group_begin(self) -> None:
        """Do nothing: frees take effect at once."""

    def free_group_end(self) -> None:
        """Do nothing: there is no group."""


class CompressedHiSparseAllocator(_HotSide, SplitSWAAllocator):
    """A `SplitSWAAllocator` whose full side has device slots as well, one for every `compress_ratio` tokens.

    full_size, swa_size: logical slots of the two sides. size: device slots, in pages of `page_size / compress_ratio`.
    The page size is that of the logical sides. A block of tokens gets its device slot from `alloc_extend`, with its
    last token; `alloc`, too, takes all sides, `alloc_decode`, `alloc_logical_only` and `alloc_extend_swa_tail` take no
    device pages. Frees of all sides wait for the end of the one group.

    Raises `InvalidSize` for a negative size, a page size below 1 or no multiple of the ratio, or an unknown order.
    """

    def __init__(
        self,
        full_size: int,
        swa_size: int,
        size: int,
        page_size: int,
        *,
        compress_ratio: int = 4,
        device: str | torch.device = "cpu",
        order: str = "lifo",
    ) -> None:
        require_pool(size, page_size)
        if compress_ratio < 1 or page_size % compress_ratio:
            raise InvalidSize(
                f"pages of {page_size} tokens hold no whole number of blocks of {compress_ratio}. Use a page size that "
                "is a multiple of it."
            )
        super().__init__(full_size, swa_size, page_size, device=device, order=order)
        self._heat(FreeList(size * compress_ratio // page_size, order), compress_ratio)

    def full_available_size(self) -> int:
        """Tokens that the full side has room for now, with their device slots."""
        return min(super().full_available_size(), self.device_available_size() * self.compress_ratio)


def _distinct(pages: IntArray) -> IntArray:
    """Each page once, in the order first seen."""
    values, first = np.unique(pages, return_index=True)
    return values[np.argsort(first)]
