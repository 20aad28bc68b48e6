"""One description for each kind of cache that a memory holds: what the layers above iterate over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvstead.model import BOUNDED, WHOLE_SEQUENCE, CacheKind, ModelLayout
from kvstead.pages.amounts import FULL, STATE, WINDOW

# What kinds of cache lie in the pool of each side, in the order of the sides.
SIDE_KINDS: Mapping[str, tuple[CacheKind, ...]] = {
    FULL: tuple(WHOLE_SEQUENCE),
    WINDOW: tuple(BOUNDED),
    STATE: (CacheKind.STATE,),
}


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a memory: a pool, and what its pages hold.

    name: of the pool. page_entries: what a page holds, tokens or 1 state. page_bytes: of all of them, 0 where slots are
    only names. text: how a number of its pages is said. is_bounded: whether a row holds a bounded number of its pages,
    however long it is, and releases them as it grows. num_pages, total_bytes: usable pages, and all bytes with padding,
    of a side with bytes of its own; 0 where sides share bytes.
    """

    name: str
    page_entries: int
    page_bytes: int
    text: str
    is_bounded: bool = False
    num_pages: int = 0
    total_bytes: int = 0

    @property
    def entry_bytes(self) -> int:
        """Bytes of a token or state."""
        return self.page_bytes // self.page_entries


def sides_of(layout: ModelLayout, page_size: int) -> tuple[Side, ...]:
    """The sides that a memory for a model has. Every memory has a full side: rows name their tokens by full slots."""
    sides = [Side(FULL, page_size, page_size * layout.full_bytes_per_token, f"pages of {page_size}")]
    if layout.window_rule is not None:
        text = f"window pages of {page_size} at once"
        sides.append(Side(WINDOW, page_size, page_size * layout.window_bytes_per_token, text, is_bounded=True))
    if layout.state_bytes:
        sides.append(Side(STATE, 1, layout.state_bytes, "state"))
    return tuple(sides)
