"""Allocators of models that keep all tokens on the host and the hot ones on the device as well."""

from __future__ import annotations

import numpy as np
import torch

from kvstead.allocators import growth
from kvstead.allocators.allocator import Allocator
from kvstead.allocators.checks import own_pages, require_pool, whole_pages
from kvstead.allocators.hot_pages import IN_BUFFER, HotPool
from kvstead.allocators.loose_windows import LooseWindowPool, LooseWindows
from kvstead.allocators.swa import SWAAllocator
from kvstead.errors import InvalidSize
from kvstead.kernels import windows
from kvstead.kernels.array_types import IntArray, StateArray
from kvstead.kernels.arrays import Integers, to_device, to_host
from kvstead.kernels.host import FREE, PARKED
from kvstead.pages import FreeList, Release
from kvstead.pages.free_group import FreesAtOnce
from kvstead.pages.page_table import require_tag


class HotSide(Allocator):
    """What an allocator with hot pages can do besides. hot: the linked pool of device pages.

    `device_pages`: int64[num_pages + 2], the device page of each logical page, 0 for none, and -1 at the end; the same
    array for the allocator's whole life, to be read only. `device_page_size`: device slots of a page. `device_size`:
    usable device slots. `compress_ratio`: tokens that share a device slot.
    """

    def __init__(self, hot: HotPool) -> None:  # beside that of `Allocator`, which the exported classes call first
        self._link(hot)
        self._hot = hot
        self.device_pages = hot.linked
        self.compress_ratio = hot.compress_ratio
        self.device_page_size = hot.device_page_size
        self.device_size = hot.pool.num_pages * hot.device_page_size

    def available_size(self) -> int:
        """Tokens that can be allocated now on all sides. What is parked in an open group does not count."""
        return min(super().available_size(), self.device_available_size() * self.compress_ratio)

    def logical_available_size(self) -> int:
        """Tokens that can be allocated now, without device slots."""
        return self._pool.num_free * self.page_size

    def device_available_size(self) -> int:
        """Device slots that can be allocated now."""
        return self._hot.pool.num_free * self.device_page_size

    def device_page_states(self) -> StateArray:
        """The state of every device page, uint8[pages + 1]: the allocator's own array, to be read only."""
        return self._hot.pool.table.state

    def device_free_pages(self) -> IntArray:
        """All free device pages, in the order in which they will be handed out: int64[k], a copy. O(pages)."""
        return self._hot.pool.contents()

    def device_slots(self, slots: Integers) -> torch.Tensor:
        """Where the device side of logical slots lies: int64 on the device, in the shape of `slots`.

        0 for a slot without one (padding, and with compression all but the last token of a block, too), -1 for -1.
        Raises `ForeignPage` for any other id outside the pool. O(slots); slots on another device are copied to the
        host, which waits for it.
        """
        return to_device(self._hot.slots(to_host(slots), self.page_size), self.device).reshape(np.shape(slots))

    def alloc(self, num_tokens: int, owner: int = 0) -> torch.Tensor | None:
        """Hand out whole pages, each with a device page. Otherwise as `PagedAllocator.alloc`."""
        num_pages = whole_pages(num_tokens, self.page_size)
        require_tag(owner)
        if num_pages > self._hot.pool.num_free:
            return None
        pages = self._take(num_pages, num_pages, owner)
        if pages is None:
            return None
        self._hot.link(pages, self._hot.take(num_pages))
        return self._slots(pages)

    def alloc_extend(
        self, prefix_lens: Integers, seq_lens: Integers, last_locs: Integers, owners: Integers | None = None
    ) -> torch.Tensor | None:
        """Grow rows, the new tokens with device slots. None when a side is short, with nothing changed.

        Raises as `PagedAllocator.alloc_extend`, and `UseAfterFree` for a row that would grow in a page behind a token
        without a device slot. O(rows + tokens).
        """
        table, page_size = self._pool.table, self.page_size
        rows = growth.plan(table, page_size, prefix_lens, seq_lens, last_locs, owners, self._windows)
        num_hot = self._hot.demand(rows)
        if num_hot > self._hot.pool.num_free:
            return None
        pages = self._take(rows.num_pages, rows.num_pages, 0)
        if pages is None:
            return None
        slots = growth.new_slots(table, page_size, rows, pages)
        self._hot.warm(rows, slots, self._hot.take(num_hot))
        return to_device(slots, self.device)

    def alloc_logical_only(
        self, prefix_lens: Integers, seq_lens: Integers, last_locs: Integers, owners: Integers | None = None
    ) -> torch.Tensor | None:
        """Grow rows without device slots, for tokens that go straight to the host; so does `alloc_decode`.

        Otherwise as `PagedAllocator.alloc_extend`.
        """
        return super().alloc_extend(prefix_lens, seq_lens, last_locs, owners)

    def alloc_device_buffer(self, slots: Integers, num_tokens: int) -> torch.Tensor | None:
        """A buffer of `num_tokens` device slots, which takes over the device slots that `slots` have.

        slots: of one row, in any order; none for an empty buffer. Their pages lose their device pages. The buffer
        begins with the device slots of `slots`, in that order. Device pages of which the buffer needs no slot are
        freed. If it needs more slots, it gets the rest of those pages, then fresh ones. Returns int64[num_tokens], or
        None when too few are free, with nothing changed. Free it with `free_hisparse_indices`.

        Raises `InvalidSize` for a negative number or slots named twice, `MisalignedSize` for no multiple of the device
        page size, `ForeignPage` for a slot outside the pool. O((slots + num_tokens) log).
        """
        hot, size = self._hot, self.device_page_size
        num_pages = whole_pages(num_tokens, size)
        found = hot.slots(to_host(slots), self.page_size)
        found = found[found > 0]
        if np.unique(found).size < found.size:
            raise InvalidSize(f"slots of a row are named twice among {found.size}. Name each slot once.")
        pages = _distinct(found // size)
        kept = _distinct(found[:num_tokens] // size)
        fresh = hot.pool.take(max(0, num_pages - kept.size), IN_BUFFER)
        if fresh is None:
            return None
        unused = np.setdiff1d(growth.all_slots(kept, size), found)
        holders = hot.pool.table.owner
        hot.linked[holders[pages]] = 0
        holders[kept] = IN_BUFFER
        if (surplus := np.setdiff1d(pages, kept)).size:
            self._release(hot.pool, surplus)
        buffer = np.concatenate((found, unused, growth.all_slots(fresh, size)))[:num_tokens]
        return to_device(buffer, self.device)

    def free_hisparse(self, slots: Integers) -> None:
        """Free the device pages of the pages that `slots` lie in; the logical pages stay.

        Pages without one are passed over, so a second call does nothing. Raises `ForeignPage` for padding or a slot
        outside the pool (-1 too), with nothing changed. O(slots).
        """
        array = to_host(slots)
        pages = np.empty(array.size, dtype=np.int64)
        linked = self._hot.unlink(pages[: windows.pages_of_slots(array, self.page_size, pages)])
        if linked.size:
            self._release(self._hot.pool, linked)

    def free_hisparse_indices(self, device_slots: Integers) -> None:
        """Free the pages that device slots lie in, as at the end of a buffer.

        device_slots: in any order; 0 and -1, which stand for none, are passed over. A page that is linked to a logical
        page is unlinked. Raises as `free`. O(slots).
        """
        array = to_host(device_slots)
        array = array[(array != 0) & (array != -1)]
        if not array.size:
            return
        pool = self._hot.pool
        after = FREE if self.free_group is None else PARKED
        pages = pool.leave_slots(array, self.device_page_size, after)
        self._hot.linked[pool.table.owner[pages]] = 0
        if self.free_group is not None:
            self.free_group.append(Release(pool, pages))


class HiSparseAllocator(FreesAtOnce, HotSide):
    """Logical slots for all tokens, and device slots for the hot ones.

    size: device slots; there are `ratio` times as many logical slots, and `.size` is their number. A remainder that
    fills no page is unusable. device, order: as for `PagedAllocator`. `alloc` and `alloc_extend` give a token both,
    `alloc_decode` and `alloc_logical_only` a logical slot alone. `page_states` and `owners` are about the logical side.

    Frees take effect at once, also between `free_group_begin` and `free_group_end`: between two steps the engine asks
    for device slots of any token, and must not find one that is about to be freed. So `free_group` is always None.

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
        Allocator.__init__(self, own_pages(size * ratio, page_size, order), page_size, device)
        HotSide.__init__(self, HotPool(FreeList(size // page_size, order), self._pool.table, page_size, 1))


class CompressedHiSparseAllocator(HotSide, LooseWindows, SWAAllocator):
    """A `SplitSWAAllocator` whose full side has device slots as well, one for every `compress_ratio` tokens.

    full_size, swa_size: logical slots of the two sides. size: device slots, in pages of `page_size / compress_ratio`.
    The page size is that of the logical sides. A block of tokens gets its device slot from `alloc_extend`, with its
    last token; `alloc`, too, takes all sides, `alloc_decode`, `alloc_logical_only` and `alloc_extend_swa_tail` take no
    device pages. Frees of all sides wait for the end of the one group.

    Raises `InvalidSize` for a negative size, a page size below 1 or no multiple of the ratio, or an unknown order.
    """

    _link_type = LooseWindowPool

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
                f"a page of {page_size} tokens does not divide into blocks of {compress_ratio}. Use a page size that "
                "is a multiple of compress_ratio."
            )
        SWAAllocator.__init__(self, full_size, swa_size, page_size, device=device, order=order)
        device_pages = FreeList(size * compress_ratio // page_size, order)
        HotSide.__init__(self, HotPool(device_pages, self._pool.table, page_size, compress_ratio))

    def full_available_size(self) -> int:
        """Tokens that the full side has capacity for now, with their device slots."""
        return min(super().full_available_size(), self.device_available_size() * self.compress_ratio)


def _distinct(pages: IntArray) -> IntArray:
    """Each page once, in the order first seen."""
    values, first = np.unique(pages, return_index=True)
    return values[np.argsort(first)]
