"""One description for each kind of cache that a memory holds: what the layers above iterate over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kvstead.model import BOUNDED, WHOLE_SEQUENCE, CacheKind, ModelLayout
from kvstead.pages.amounts import FULL, STATE, WINDOW

# What kinds of cache lie in the pool of each side, in the order of the sides.
SIDE_KINDS: Mapping[str, tuple[CacheKind, ...]] = {
    FULL: tuple(WHOLE_SEQUENCE),
    WINDOW: tuple(BOUNDED),
    STATE: (CacheKind.STATE,),
}


class Pool(Protocol):
    """What a memory asks of the pool of a side: `Allocator.pools` has it."""

    @property
    def num_pages(self) -> int:
        """Pages that there could be if nothing else were there."""

    @property
    def num_live(self) -> int:
        """Pages that a request or the tree holds."""

    @property
    def num_parked(self) -> int:
        """Pages freed in the open group."""

    def capacity(self) -> int:
        """Pages that can be taken now."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a memory: a pool, and what its pages hold.

    name: of the pool. page_entries: what a page holds, tokens or 1 state. entry_bytes: of one, 0 where slots are only
    names. text: how a number of its pages is said. is_bounded: whether a row holds a bounded number of its pages,
    however long it is, and releases them as it grows. num_pages, total_bytes: usable pages, and all bytes with padding,
    of a side with bytes of its own; 0 where sides share bytes.
    """

    name: str
    page_entries: int
    entry_bytes: int
    text: str
    is_bounded: bool = False
    num_pages: int = 0
    total_bytes: int = 0

    @property
    def page_bytes(self) -> int:
        """Bytes that a page holds."""
        return self.page_entries * self.entry_bytes


def sides_of(layout: ModelLayout, page_size: int) -> tuple[Side, ...]:
    """The sides that a memory for a model has. Every memory has a full side: rows name their tokens by full slots."""
    sides = [Side(FULL, page_size, layout.full_bytes_per_token, f"pages of {page_size}")]
    if layout.window_rule is not None:
        text = f"window pages of {page_size} at once"
        sides.append(Side(WINDOW, page_size, layout.window_bytes_per_token, text, is_bounded=True))
    if layout.state_bytes:
        sides.append(Side(STATE, 1, layout.state_bytes, "state"))
    return tuple(sides)
