"""What state each page is in, and whose it is.

              take                    leave
    FREE ------------> LIVE -------------------------> FREE
                         |  leave              unpark
                         +----------> PARKED --------> FREE

One byte a page is the only place where this is written down. The free list makes the transitions and keeps the counts.
Page 0 is always PADDING.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from kvstead.errors import AuditError, DoubleFree, ForeignPage, InvalidSize, MisalignedSegment
from kvstead.kernels import host
from kvstead.kernels.array_types import IntArray, StateArray, TagArray

_STATE_NAMES = {host.FREE: "free", host.LIVE: "live", host.PARKED: "parked in the open group"}


MIN_TAG, MAX_TAG = -(2**31), 2**31 - 1  # a page has an int32 for its owner tag


def require_tag(tag: int) -> None:
    """Raise `InvalidSize` when `tag` does not fit the int32 that a page has for it."""
    if not MIN_TAG <= tag <= MAX_TAG:
        refuse_tag(tag)


def refuse_tag(tag: int) -> NoReturn:
    """Raise the error for an owner tag that does not fit an int32."""
    raise InvalidSize(f"owner tag {tag} does not fit 32 bits. Use a number from -2**31 to 2**31 - 1.")


class PageTable:
    """State (one byte) and owner tag (one int32) of pages 1 .. `num_pages`; page 0 is padding.

    `num_free`, `num_live` and `num_parked` count pages. A freed page keeps its tag, for errors to say who held it last.
    """

    __slots__ = ("num_free", "num_live", "num_pages", "num_parked", "owner", "state")

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.state: StateArray = np.zeros(num_pages + 1, dtype=np.uint8)
        self.owner: TagArray = np.zeros(num_pages + 1, dtype=np.int32)
        self.clear()

    def clear(self) -> None:
        """Make every page free, whatever its state."""
        self.state.fill(host.FREE)
        self.state[0] = host.PADDING
        self.num_free = self.num_pages
        self.num_live = 0
        self.num_parked = 0

    def owners(self) -> dict[int, int]:
        """Count live pages by owner tag. Scans the table: O(pages), not for the hot path."""
        tags, counts = np.unique(self.owner[self.state == host.LIVE], return_counts=True)
        return dict(zip(tags.tolist(), counts.tolist(), strict=True))

    def audit(self) -> None:
        """Recount all states. Raises `AuditError` when the counts have drifted."""
        seen = np.bincount(self.state, minlength=host.CLAIMED + 1).tolist()
        kept = [self.num_free, self.num_live, self.num_parked, 1, 0]
        if seen != kept or self.state[0] != host.PADDING:
            raise AuditError(
                f"page states are {seen} (free, live, parked, padding, claimed) where the counts say {kept}. "
                "Only the free list may write to the state array."
            )

    def refuse(self, page: int) -> NoReturn:
        """Raise the error that says why `page` cannot be freed."""
        if not 0 < page <= self.num_pages:
            what = "is the padding page" if page == 0 else "does not belong to this pool"
            raise ForeignPage(
                f"page {page} {what} (1..{self.num_pages}). Free only what this pool handed out; leave padded "
                "positions out of the list."
            )
        state = _STATE_NAMES[int(self.state[page])]
        how = "named twice in this call" if state == "live" else f"already {state}"
        raise DoubleFree(
            f"page {page} (last owner {self.owner[page]}) is {how}. Free each page once: drop a row's slots when its "
            "request ends, and leave the pages that it shares with the prefix tree to the tree."
        )


def translate_in_place(slots: IntArray, page_size: int, table: PageTable) -> IntArray:
    """Where slots lie whose pages never move: a new int64[k], 0, in the padding, for -1 and where a page is not live.

    Raises `ForeignPage` for a slot below -1 or outside the pool. O(slots).
    """
    pages = slots // page_size
    bad = np.flatnonzero((slots < -1) | (pages > table.num_pages))
    if bad.size:
        refuse_slot(int(slots[bad[0]]), (table.num_pages + 1) * page_size)
    return np.where((slots > 0) & (table.state[pages] == host.LIVE), slots, 0)


def refuse_slot(slot: int, end: int) -> NoReturn:
    """Raise the error for a slot that is neither -1 nor in a pool whose slots end at `end`."""
    raise ForeignPage(
        f"slot {slot} does not belong to this pool (-1 .. {end - 1}). Ask for slots that the pool handed out, or -1 "
        "for none."
    )


def refuse_segment(slots: IntArray, page_size: int, page: int) -> NoReturn:
    """Raise the error for a row segment whose page number `page` does not hold consecutive slots."""
    part = slots[page * page_size : (page + 1) * page_size]
    raise MisalignedSegment(
        f"slots {part.tolist()}, from entry {page * page_size} of the segment on, are not the consecutive slots "
        f"of a page of {page_size}. Pass the stretch of the row unchanged, with the position it starts at."
    )
