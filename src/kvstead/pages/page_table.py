"""What state each page is in, and whose it is.

              take                    give
    FREE ------------> LIVE ------------------------> FREE
                         |  park             unpark
                         +--------> PARKED ---------> FREE

One byte a page is the only place where this is written down; the counts follow from the transitions, which are the free
list's. Page 0 is PADDING from beginning to end.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from kvstead.errors import AuditError, DoubleFree, ForeignPage, InvalidSize
from kvstead.kernels import host
from kvstead.kernels.array_types import StateArray, TagArray

_STATE_NAMES = {host.FREE: "free", host.LIVE: "live", host.PARKED: "parked in the open group"}


def require_tag(tag: int) -> None:
    """Raise `InvalidSize` when `tag` does not fit the int32 that a page has for it."""
    if not -(2**31) <= tag < 2**31:
        raise InvalidSize(f"owner tag {tag} does not fit 32 bits. Use a number from -2**31 to 2**31 - 1.")


class PageTable:
    """State (one byte) and owner tag (one int32) of pages 1 .. `num_pages`; page 0 is padding.

    `num_free`, `num_live` and `num_parked` count pages. Tags are kept after a page is given back, so that an error can
    say who held it last.
    """

    __slots__ = ("num_free", "num_live", "num_pages", "num_parked", "owner", "state")

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.state: StateArray = np.zeros(num_pages + 1, dtype=np.uint8)
        self.owner: TagArray = np.zeros(num_pages + 1, dtype=np.int32)
        self.clear()

    def clear(self) -> None:
        """Make every page free."""
        self.state.fill(host.FREE)
        self.state[0] = host.PADDING
        self.num_free = self.num_pages
        self.num_live = 0
        self.num_parked = 0

    def owners(self) -> dict[int, int]:
        """Live pages by owner tag. Scans the table: O(pages), for people and audits, not for the hot path."""
        tags, counts = np.unique(self.owner[self.state == host.LIVE], return_counts=True)
        return dict(zip(tags.tolist(), counts.tolist(), strict=True))

    def audit(self) -> None:
        """Recount all states. Raises `AuditError` when the counts have drifted."""
        seen = np.bincount(self.state, minlength=host.CLAIMED + 1).tolist()
        kept = [self.num_free, self.num_live, self.num_parked, 1, 0]
        if seen != kept or self.state[0] != host.PADDING:
            raise AuditError(
                f"page states are {seen} (free, live, parked, padding, claimed) where the counts say {kept}. "
                "Some code wrote to the state array directly; only the free list may."
            )

    def refuse(self, page: int) -> NoReturn:
        """Raise the error that says why `page` cannot be freed."""
        if not 0 < page <= self.num_pages:
            what = "the padding page" if page == 0 else "no page of this pool"
            raise ForeignPage(
                f"page {page} is {what} (its pages are 1..{self.num_pages}). Free only what this pool handed out; "
                "leave padded positions out of the list."
            )
        state = _STATE_NAMES[int(self.state[page])]
        how = "named twice in this call" if state == "live" else f"{state} already"
        raise DoubleFree(
            f"page {page} (last owner {self.owner[page]}) is {how}. Free each page once: drop the row's slots when its "
            "request ends, and free the pages it shares with the prefix tree through the tree."
        )
