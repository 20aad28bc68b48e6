"""Index arithmetic where the indices live: plain torch, for any device, and nothing is read back.

Every function launches a few operations whose shapes the host knows beforehand. What depends on lengths, which the host
has, is computed there (`device_rows`) and sent; what depends on slots is computed here.
"""

from __future__ import annotations

from typing import Protocol

import torch

FAR = 2**31 - 1  # a mark that no entry of a call has


class DeviceOps(Protocol):
    """What the device-resident classes compute."""

    def extend_slots(
        self, rows: torch.Tensor, last_locs: torch.Tensor, pages: torch.Tensor, page_size: int, num_slots: int
    ) -> torch.Tensor:
        """The new slots of rows that grow."""

    def decode_slots(
        self, opening: torch.Tensor, last_locs: torch.Tensor, pages: torch.Tensor, page_size: int
    ) -> torch.Tensor:
        """The next slot of every row."""

    def expand_pages(self, pages: torch.Tensor, page_size: int) -> torch.Tensor:
        """All slots of pages: [pages * page_size], page by page."""

    def segment_pages(self, slots: torch.Tensor, page_size: int) -> torch.Tensor:
        """The pages of a stretch of a row."""

    def first_seen(self, slots: torch.Tensor, page_size: int, marks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The distinct pages of slots in any order."""


def extend_slots(
    rows: torch.Tensor, last_locs: torch.Tensor, pages: torch.Tensor, page_size: int, num_slots: int
) -> torch.Tensor:
    """The new slots of rows that grow, one row after the other.

    rows: [5, n], what `device_rows.plan_rows` says about each row. last_locs: [n]. pages: what the rows open, in order.
    Returns [num_slots], a new tensor of the type of `pages`. O(num_slots log n).
    """
    ends, starts, to_position, to_page, opens_at = rows.unbind()
    index = torch.arange(num_slots, device=pages.device, dtype=pages.dtype)
    row = torch.searchsorted(ends, index, right=True)
    kept = (last_locs + 1 - starts).index_select(0, row).add_(index)
    if not pages.numel():
        return kept
    position = to_position.index_select(0, row).add_(index)
    page = torch.div(position, page_size, rounding_mode="floor").add_(to_page.index_select(0, row))
    fresh = pages.index_select(0, page.clamp_(min=0)).mul_(page_size).add_(position.remainder_(page_size))
    return torch.where(index < opens_at.index_select(0, row), kept, fresh)


def decode_slots(opening: torch.Tensor, last_locs: torch.Tensor, pages: torch.Tensor, page_size: int) -> torch.Tensor:
    """The next slot of every row: the first of a page for the rows numbered `opening`, else the one behind the last.

    opening, pages: [k]. last_locs: [n]. Returns [n], a new tensor. O(n).
    """
    if pages.numel() == last_locs.numel():
        return pages * page_size
    slots = last_locs + 1
    return slots.index_copy_(0, opening.long(), pages * page_size) if pages.numel() else slots


def expand_pages(pages: torch.Tensor, page_size: int) -> torch.Tensor:
    """All slots of pages, page by page: [k * page_size], a new tensor."""
    if page_size == 1:
        return pages.clone()
    offsets = torch.arange(page_size, device=pages.device, dtype=pages.dtype)
    return (pages[:, None] * page_size + offsets).reshape(-1)


def segment_pages(slots: torch.Tensor, page_size: int) -> torch.Tensor:
    """The pages of a stretch of a row that starts on a page boundary: [ceil(k / page_size)], a new tensor."""
    if page_size == 1:
        return slots.clone()
    return torch.div(slots[::page_size], page_size, rounding_mode="floor")


def first_seen(slots: torch.Tensor, page_size: int, marks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct pages of slots in any order: marked, numbered by a prefix sum, and moved together.

    marks: [pages of the pool + 2], the last of them for all other ids; all `FAR`, and so afterwards. Returns the pages
    in the order first seen, in front of a tensor as long as `slots`, and how many they are, [1]. O(slots).
    """
    pages = torch.div(slots, page_size, rounding_mode="floor")
    return compact(pages, first_ones(pages, marks))


def compact(values: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The values to keep, in front of a tensor as long as `values`, and how many they are, [1]. O(values)."""
    ranks = keep.cumsum(0)
    places = torch.where(keep, ranks - 1, values.numel())  # one place too many takes all the others
    together = torch.empty(values.numel() + 1, device=values.device, dtype=values.dtype).scatter_(0, places, values)
    return together[:-1], ranks[-1:]


def first_ones(pages: torch.Tensor, marks: torch.Tensor) -> torch.Tensor:
    """Which entries do not repeat an earlier one, bool[k]; what is no page of the pool repeats nothing. O(k)."""
    other = marks.numel() - 1
    known = pages.clamp(-1, other).remainder_(other + 1).long()
    index = torch.arange(pages.numel(), device=pages.device, dtype=marks.dtype)
    marks.scatter_reduce_(0, known, index, "amin")
    is_first = (marks.index_select(0, known) == index) | (known == other)
    marks.index_fill_(0, known, FAR)
    return is_first
