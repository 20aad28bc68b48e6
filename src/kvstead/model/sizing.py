"""How a number of bytes divides among several pools, and what it costs to make their pages alike."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvstead.errors import InvalidSize, LayoutError
from kvstead.model.layout import ModelLayout


def split_slots(layout: ModelLayout, num_bytes: int, page_size: int, window_ratio: Fraction) -> tuple[int, int]:
    """Slots of the pool that keeps whole sequences and of the pool that keeps windows, both in whole pages.

    `window_ratio` is window slots per full slot; the window pool has as many pages as that gives, rounded down.
    `num_bytes` pays for both pools with one padding page each. The result is the largest that fits, (0, 0) when not one
    full page does. Raises `LayoutError` for a layout without both pools, `InvalidSize` for sizes that have no sense.
    """
    full, window = layout.full_bytes_per_token * page_size, layout.window_bytes_per_token * page_size
    if page_size < 1 or num_bytes < 0 or window_ratio < 0:
        raise InvalidSize(
            f"{num_bytes} bytes, pages of {page_size} and a ratio of {window_ratio} are given. "
            "Use a page size of at least 1 and no negative number."
        )
    if not full or not window:
        raise LayoutError(f"{layout.name} keeps {' and '.join(layout.kinds)}, which is not two pools. Use `slots_for`.")
    usable = num_bytes - full - window
    # The rounding down of the window side may leave room for a few full pages more than the plain quotient.
    pages = max(0, int(usable / (full + window_ratio * window)))
    while (pages + 1) * full + int((pages + 1) * window_ratio) * window <= usable:
        pages += 1
    return pages * page_size, int(pages * window_ratio) * page_size


def concurrent_requests(num_state_slots: int, slots_per_request: int, *caps: int) -> int:
    """How many requests a state pool admits at once, never more than any of `caps` (the user's, the token pool's).

    `slots_per_request` is what one holds while it runs: its state, and the copies kept for reuse. Raises `InvalidSize`
    for a negative number of slots or fewer than one per request.
    """
    if num_state_slots < 0 or slots_per_request < 1:
        raise InvalidSize(
            f"{num_state_slots} state slots with {slots_per_request} per request are given. "
            "Use 0 or more slots and at least 1 per request."
        )
    return min(num_state_slots // slots_per_request, *caps) if caps else num_state_slots // slots_per_request


@dataclass(frozen=True, slots=True)
class EqualPage:
    """One page size for token entries and states: `num_tokens` entries of a layer in `num_bytes`.

    A state, which is smaller or as large, leaves `padding_bytes` of such a page unused.
    """

    num_tokens: int
    num_bytes: int
    padding_bytes: int


def equal_page(layout: ModelLayout) -> EqualPage:
    """The smallest page of token entries of one layer that a layer's state fits into.

    This is what it costs to give both kinds pages of equal bytes: a prompt of a few tokens still takes `num_tokens`
    entries in each such layer. Raises `LayoutError` for a layout without both, or whose layers differ in size.
    """
    entries = {layer.token_bytes for layer in layout.layers if layer.tokens is not None}
    states = {layer.state_bytes for layer in layout.layers if layer.state}
    if len(entries) != 1 or len(states) != 1:
        raise LayoutError(
            f"{layout.name} has token entries of {sorted(entries)} and states of {sorted(states)} bytes per layer. "
            "Equal pages need one size of each."
        )
    (entry,), (state,) = entries, states
    num_tokens = -(-state // entry)
    return EqualPage(num_tokens, num_tokens * entry, num_tokens * entry - state)
