"""The free pages of one pool on a device: ids in a ring there, counts on the host.

              head                     tail
     ring  [ . | p  p  p  p  p  p  p  p | .  .  . ]      lifo: freed pages go in front of the head
                 ^ next to be taken                      fifo: freed pages join the tail
                                                         sorted: they join the tail, and when the pages in front that
                                                         ascend run short, all are sorted

The host always knows where head and tail are, so taking pages and giving them back are copies between slices of known
length: nothing is read back. In return the host takes the caller's word for pages, unless `checks` watch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvstead.errors import AuditError, DoubleFree, InvalidSize
from kvstead.kernels import device_ops
from kvstead.kernels.arrays import whole
from kvstead.kernels.host import FREE, LIVE
from kvstead.pages.device_checks import DeviceChecks

ORDERS = ("lifo", "fifo", "sorted")


class DeviceRelease(NamedTuple):
    """Pages of one pool that were freed inside the group."""

    pool: DeviceFreeList
    pages: torch.Tensor


class DeviceFreeList:
    """Pages 1 .. `num_pages` of one pool, their ids `dtype` on `device`.

    order: `lifo`, `fifo` (as `FreeList`) or `sorted`: like fifo, but sorted as a whole, O(free pages log free pages),
    when the ascending pages in front run short. `checks` are None, or watch every call. Calls on k pages cost O(k).

    Raises `InvalidSize` for an unknown order.
    """

    __slots__ = (
        "_head",
        "_num_sorted",
        "_ring",
        "checks",
        "device",
        "marks",
        "num_free",
        "num_pages",
        "num_parked",
        "order",
    )

    def __init__(
        self, num_pages: int, order: str, device: torch.device, dtype: torch.dtype, *, checked: bool = False
    ) -> None:
        if order not in ORDERS:
            raise InvalidSize(
                f"order {order!r} is unknown on a device. Use one of {', '.join(ORDERS)}; `sorted` replaces `lowest`."
            )
        self.num_pages = num_pages = whole(num_pages, "num_pages")
        self.order = order
        self.device = device
        self._ring = torch.empty(max(num_pages, 1), dtype=dtype, device=device)
        self.marks = torch.full((num_pages + 2,), device_ops.FAR, dtype=torch.int32, device=device)
        self.checks = DeviceChecks(num_pages, device, self.marks) if checked else None
        self._head = self.num_free = self.num_parked = self._num_sorted = 0
        self.clear()

    @property
    def num_live(self) -> int:
        """Pages that a request or the cache holds."""
        return self.num_pages - self.num_free - self.num_parked

    def take(self, num_pages: int) -> torch.Tensor | None:
        """Hand out pages: a new tensor; None when short, with nothing taken (`sorted`: but all sorted)."""
        if self.order == "sorted" and self._num_sorted < min(num_pages, self.num_free):
            self._sort()
        if num_pages > self.num_free:
            return None
        pages = self._first(num_pages)
        self._head = (self._head + num_pages) % self._ring.numel()
        self.num_free -= num_pages
        self._num_sorted -= num_pages
        if self.checks is not None:
            self.checks.enter(pages, LIVE)
        return pages

    def leave(self, pages: torch.Tensor, after: int = FREE) -> torch.Tensor:
        """Live, distinct pages leave their holder: to FREE, available at once, or to PARKED, until `unpark`.

        The tensor belongs to the list from now on; it is returned. Raises `DoubleFree` for more pages than are live.
        """
        self.require_held(pages.numel())
        if self.checks is not None:
            self.checks.leave(pages, after)
        if after == FREE:
            self._queue(pages)
        else:
            self.num_parked += pages.numel()
        return pages

    def unpark(self, parked: list[torch.Tensor]) -> None:
        """Make parked pages available, in one copy; `parked` are tensors that `leave` returned, call by call."""
        pages = parked[0] if len(parked) == 1 else torch.cat(parked[::-1] if self.order == "lifo" else parked)
        if self.checks is not None:
            self.checks.enter(pages, FREE)
        self.num_parked -= pages.numel()
        self._queue(pages)

    def require_held(self, num_pages: int) -> None:
        """Raise `DoubleFree` when fewer pages than that are live."""
        if num_pages > self.num_live:
            raise DoubleFree(
                f"{num_pages} pages were to be freed where {self.num_live} of {self.num_pages} are held. Free each "
                "page once: drop the row's slots when its request ends."
            )

    def contents(self) -> torch.Tensor:
        """All free pages in the order in which they lie in the ring: a new tensor. O(free pages)."""
        return self._first(self.num_free)

    def clear(self) -> None:
        """Make every page free, in ascending order. O(pages)."""
        torch.arange(1, self._ring.numel() + 1, out=self._ring, device=self.device)
        self._head = 0
        self.num_free = self._num_sorted = self.num_pages
        self.num_parked = 0
        if self.checks is not None:
            self.checks.clear()

    def audit(self, page_size: int) -> None:
        """Raise the error for the first fault that the checks found; then `AuditError` if pages are listed twice.

        The one call that waits for the device. O(pages).
        """
        if self.checks is not None:
            self.checks.raise_first(page_size)
        free = self.contents().sort().values
        odd = (free < 1) | (free > self.num_pages)
        odd[1:] |= free[1:] == free[:-1]
        if self.checks is not None:
            odd |= self.checks.state.index_select(0, free.clamp(0, self.num_pages)) != FREE
        wrong = free[odd].tolist()
        if wrong:
            raise AuditError(
                f"pages {wrong} are in the free list, but twice, or they are held, or they do not belong to this pool. "
                "Free each page once; make the allocator with checked=True to learn which page was the first."
            )

    def _first(self, num_pages: int) -> torch.Tensor:
        """The first pages of the ring."""
        straight = self._ring[self._head : self._head + num_pages]
        if straight.numel() == num_pages:
            return straight.clone()
        return torch.cat((straight, self._ring[: num_pages - straight.numel()]))

    def _queue(self, pages: torch.Tensor) -> None:
        """Put pages in front of the head or behind the tail."""
        count, size = pages.numel(), self._ring.numel()
        if self.order == "lifo":
            start = self._head = (self._head - count) % size
        else:
            start = (self._head + self.num_free) % size
        straight = min(count, size - start)
        if straight == count:
            self._ring[start : start + count].copy_(pages)
        else:
            self._ring[start:].copy_(pages[:straight])
            self._ring[: count - straight].copy_(pages[straight:])
        self.num_free += count

    def _sort(self) -> None:
        """Bring all free pages into ascending order, at the ring's start."""
        ascending = self.contents().sort().values
        self._ring[: self.num_free].copy_(ascending)
        self._head = 0
        self._num_sorted = self.num_free
