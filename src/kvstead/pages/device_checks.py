"""Checks whose verdict stays on the device until `audit` asks for it.

The state of every page is a byte there, as on the host. What is found wrong is written beside it, the first fault only:

    fault   [ kind, id ]    kind 0: all is well so far

No call waits for that, so no call can be refused: a bad call has taken effect when `raise_first` reports it.
"""

from __future__ import annotations

import torch

from kvstead.errors import AuditError, DoubleFree, ForeignPage, KVSteadError, MisalignedSegment, UseAfterFree
from kvstead.kernels import device_ops
from kvstead.kernels.host import FREE, LIVE, PADDING

FREED = 1  # id: a page that was freed
GREW = 2  # id: a slot behind which a row grew
OFFSET = 3  # id: such a slot, at the wrong place in its page
SEGMENT = 4  # id: a slot of a segment that does not follow the one before it
COUNT = 5  # id: how many distinct pages there were
NOT_LINKED = 6  # id: a full page
STILL_LINKED = 7  # id: a full page
BARE = 8  # id: a slot behind which a row grew
COLD = 9  # the same

_MISTAKES: dict[int, tuple[type[KVSteadError], str, str]] = {
    OFFSET: (
        MisalignedSegment,
        "a row grew behind slot {}, whose place in its page does not follow from the row's length.",
        "Pass the slot of the row's last token, -1 for an empty row.",
    ),
    SEGMENT: (
        MisalignedSegment,
        "slot {} of a freed segment does not follow the slots in front of it.",
        "Pass the stretch of the row unchanged, with the position it starts at.",
    ),
    COUNT: (
        AuditError,
        "slots of {} distinct pages were freed with another `num_pages`.",
        "Pass that number, or leave `num_pages` out.",
    ),
    NOT_LINKED: (
        DoubleFree,
        "full page {} was freed with its window page, which is gone.",
        "Free the part of a row that has left the window with free_full_segment, or by free, which looks.",
    ),
    STILL_LINKED: (
        AuditError,
        "full page {} was freed without its window page, which is still linked.",
        "Free such pages with free_segment, or by free, which looks.",
    ),
    BARE: (
        UseAfterFree,
        "a row grew behind slot {}, in a page whose window page is gone.",
        "Free the window side of whole pages only, up to the last page that is full.",
    ),
    COLD: (
        UseAfterFree,
        "a row grew behind slot {}, which has no device slot.",
        "Use alloc_logical_only, or start at a page boundary.",
    ),
}


class DeviceChecks:
    """The states of pages 1 .. `num_pages` on a device, and the first fault found."""

    __slots__ = ("_fault", "_marks", "num_pages", "state")

    def __init__(self, num_pages: int, device: torch.device, marks: torch.Tensor) -> None:
        self.num_pages = num_pages
        self.state = torch.empty(num_pages + 1, dtype=torch.uint8, device=device)
        self._fault = torch.empty(2, dtype=torch.int64, device=device)
        self._marks = marks
        self.clear()

    def clear(self) -> None:
        """Make every page free, and forget the fault."""
        self.state.fill_(FREE)
        self.state[:1].fill_(PADDING)
        self._fault.zero_()

    def enter(self, pages: torch.Tensor, after: int) -> None:
        """Pages that the list itself names enter a state."""
        self.state.index_fill_(0, self._known(pages), after)

    def leave(self, pages: torch.Tensor, after: int) -> None:
        """Pages that a caller names leave the live state; each must be live, and named once."""
        known = self._known(pages)
        sound = (pages == known) & (self.state.index_select(0, known) == LIVE)
        self.note(FREED, ~(sound & device_ops.first_ones(pages, self._marks)), pages)
        self.enter(torch.where(sound, known, 0), after)
        self.state[:1].fill_(PADDING)

    def grow(self, last_locs: torch.Tensor, offsets: torch.Tensor, page_size: int) -> None:
        """Rows grow behind slots, from `offsets` of a page on: in the same page where the offset is not 0."""
        self.note(OFFSET, (last_locs + 1).remainder(page_size) != offsets, last_locs)
        inside = offsets != 0
        pages = torch.where(inside, torch.div(last_locs, page_size, rounding_mode="floor"), 0)
        known = self._known(pages)
        sound = (pages == known) & (self.state.index_select(0, known) == LIVE)
        self.note(GREW, inside & ~(sound & device_ops.first_ones(pages, self._marks)), last_locs)

    def segment(self, slots: torch.Tensor, pages: torch.Tensor, page_size: int) -> None:
        """Note where slots of a stretch of a row are not consecutive in `pages`."""
        wanted = device_ops.expand_pages(pages, page_size)[: slots.numel()]
        self.note(SEGMENT, slots != wanted, slots)

    def note(self, kind: int, bad: torch.Tensor, ids: torch.Tensor) -> None:
        """Remember the first id that is bad, if there is one and nothing is remembered yet."""
        if not ids.numel():
            return
        first = ids.index_select(0, bad.byte().argmax().reshape(1)).long()
        fault = torch.cat((torch.full_like(first, kind), first))
        is_news = bad.any() & (self._fault[:1] == 0)
        self._fault.copy_(torch.where(is_news, fault, self._fault))

    def raise_first(self, page_size: int) -> None:
        """Raise the error for the first fault, if there was one. Waits for the device."""
        kind, bad = self._fault.tolist()
        if kind in _MISTAKES:
            error, what, way_out = _MISTAKES[kind]
            raise error(f"{what.format(bad)} {way_out}")
        if kind:
            self._refuse(kind, bad, bad if kind == FREED else bad // page_size)

    def _refuse(self, kind: int, bad: int, page: int) -> None:
        what = f"page {page} was freed" if kind == FREED else f"a row grew behind slot {bad}, in page {page}"
        if not 0 < page <= self.num_pages:
            raise ForeignPage(
                f"{what}, which does not belong to this pool (1..{self.num_pages}). Pass only what this pool handed "
                "out; leave padded positions out."
            )
        if kind == FREED:
            raise DoubleFree(
                f"{what}, which nobody held, or twice in one call. Free each page once. The pool will hand it out "
                "twice, so clear it."
            )
        raise UseAfterFree(
            f"{what}, which nobody held, or in which a second row of the batch grew. Rows share whole pages only, and "
            "a freed row starts again from nothing."
        )

    def _known(self, pages: torch.Tensor) -> torch.Tensor:
        return pages.clamp(0, self.num_pages).long()
