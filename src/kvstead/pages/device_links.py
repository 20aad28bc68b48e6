"""Which page of a second pool each page of a first one has, on a device.

page       0    1    2    3  ..  N   N + 1
table    [ 0 |  0 |  9 |  4  ..  0 |  -1  ]       0: none; -1 at the end, so that index -1 stays -1
"""

from __future__ import annotations

import torch


class DeviceLinks:
    """The linked pages of pages 1 .. `num_pages`. `table` stays the same tensor; no call reads anything back."""

    __slots__ = ("num_pages", "table")

    def __init__(self, num_pages: int, device: torch.device, dtype: torch.dtype) -> None:
        self.num_pages = num_pages
        self.table = torch.zeros(num_pages + 2, dtype=dtype, device=device)
        self.table[-1:].fill_(-1)

    def of(self, pages: torch.Tensor) -> torch.Tensor:
        """The linked pages of pages, 0 for none: a new tensor. A page outside the pool counts as its first or last."""
        return self.table.index_select(0, pages.clamp(0, self.num_pages))

    def link(self, pages: torch.Tensor, linked: torch.Tensor) -> None:
        """Link pages to pages of the second pool, one each."""
        self.table.index_copy_(0, pages.long(), linked)

    def unlink(self, pages: torch.Tensor) -> None:
        """Take the linked pages of `pages` from them, where there are any."""
        self.table.index_fill_(0, pages.clamp(0, self.num_pages).long(), 0)

    def slots(self, slots: torch.Tensor, page_size: int) -> torch.Tensor:
        """The slots that are linked to these: 0 for a page without a linked page, -1 for -1."""
        pages = torch.div(slots, page_size, rounding_mode="floor").remainder_(self.table.numel())
        linked = self.table.index_select(0, pages)
        return torch.where(linked > 0, linked * page_size + slots.remainder(page_size), linked)

    def clear(self) -> None:
        """Unlink every page from its linked one."""
        self.table[:-1].fill_(0)
