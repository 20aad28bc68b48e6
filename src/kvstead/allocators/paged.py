"""Allocators of one pool of its own bytes: pages of any size, and the page size of one token."""

from __future__ import annotations

import torch

from kvstead.allocators.allocator import Allocator
from kvstead.allocators.checks import own_pages, state_pages
from kvstead.allocators.free_groups import DefersFrees
from kvstead.pages import Release


class PagedAllocator(DefersFrees[Release], Allocator):
    """Slots in pages of `page_size`, for rows that grow page by page.

    size: slots; a remainder that fills no page is unusable (`.size` is the floored figure). page_size: any positive
    number. num_states: slots for recurrent states beside them, in a pool of their own (`states`; None: no states).
    device: where handed-out slots live. order: `lifo`, `fifo` or `lowest`, see `FreeList`. A new pool hands pages out
    from 1 upward.

    Raises `InvalidSize` for a negative size, a page size below 1 or an unknown order.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        *,
        num_states: int | None = None,
        device: str | torch.device = "cpu",
        order: str = "lifo",
    ) -> None:
        super().__init__(own_pages(size, page_size, order), page_size, device, states=state_pages(num_states, order))


class TokenAllocator(PagedAllocator):
    """Slots one by one: `PagedAllocator` with pages of one token, and by default first freed, first reused."""

    def __init__(self, size: int, *, device: str | torch.device = "cpu", order: str = "fifo") -> None:
        super().__init__(size, 1, device=device, order=order)
