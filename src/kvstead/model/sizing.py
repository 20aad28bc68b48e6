"""How a number of bytes divides among the pools of a model, and what pools of given sizes cost.

    bytes   | . full side                         | . window side    | . states    |left|

Each side has a padding page (the states a padding slot), drawn as a dot. What is left over is less than one more page
of the full side would need, with the window pages that go with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from kvstead.errors import InvalidSize, LayoutError, MisalignedSize
from kvstead.model.layout import ModelLayout
from kvstead.model.shares import StateShare, WindowShare, state_share, window_share


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


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Slots of the side that keeps whole sequences and of the side that keeps windows, both in whole pages, and states.

    `ratio` is window slots per full slot as it was aimed at, before pages are rounded; `source` says in words how it
    and the number of states came about. Where there is no window side its slots and ratio are 0, and so are states.
    """

    num_slots: int
    num_window_slots: int
    ratio: float
    source: str
    num_states: int = 0


def split_memory(
    layout: ModelLayout,
    num_bytes: int,
    page_size: int,
    *,
    window_ratio: float | Fraction | None = None,
    num_states: int | None = None,
    expected_length: int | None = None,
) -> MemorySplit:
    """The largest split of `num_bytes` among full side, window side and states, with a padding page or slot of each.

    window_ratio: window slots per full slot, above 0; a float stands for the decimal it prints as. It is obeyed as
    `split_slots` does, also above 1, where the surplus lies idle: a full page has one window page at most.

    Without it the ratio is derived for sequences of `expected_length` tokens (8,192 when that is None too): what such a
    sequence keeps of its window, and two pages for where it begins and ends, per token of its length. Beside that the
    window side gets the slots of a chunk of 8,192 tokens under way, but no more than as much again. It has at least the
    pages of one sequence's window, or as many as the full side has if those are fewer, and the pages that still fit
    what rounding leaves.

    num_states: state slots, at least 1, for a layout that has states. Without it there are two for each sequence of
    `expected_length` tokens that the full side has room for: the one it runs on, and one to come back to. There is one
    at least, and more where what rounding leaves holds them; full pages that fit into less than a state come on top.

    Raises `LayoutError` for a layout that has no full side or nothing beside it, and, naming the least that would do,
    for bytes that hold no page on one of the sides or no state; `InvalidSize` for sizes that have no sense, and for a
    ratio or states where the layout has no such side.
    """
    sides = _sides(layout, num_bytes, page_size)
    windows = window_share(layout, page_size, window_ratio, expected_length)
    states = state_share(layout, page_size, num_states, expected_length)
    fewest, number = windows.fewest, states.number(windows.fewest)
    least = sides.padding + sides.cost(fewest, windows.pages(fewest), number)
    if num_bytes < least:
        raise LayoutError(
            f"{num_bytes:,} bytes hold no page of {page_size} tokens{' on both sides' if sides.window else ''} of "
            f"{layout.name}, beside {f'{number:,} of its states and ' if number else ''}the padding. "
            f"Give {least:,} or more."
        )
    pages, window_pages, number = _divide(sides, num_bytes - sides.padding, windows, states)
    return _split(page_size, pages, window_pages, number, windows, states)


def split_for_slots(
    layout: ModelLayout,
    num_slots: int,
    page_size: int,
    *,
    window_ratio: float | Fraction | None = None,
    num_states: int | None = None,
    expected_length: int | None = None,
) -> MemorySplit:
    """The window side and the states that go with `num_slots` full slots (whole pages): `split_memory` by slots.

    Raises as that does.
    """
    _sides(layout, num_slots, page_size)
    windows = window_share(layout, page_size, window_ratio, expected_length)
    states = state_share(layout, page_size, num_states, expected_length)
    pages = num_slots // page_size
    return _split(page_size, pages, windows.pages(pages), states.number(pages), windows, states)


def split_bytes(layout: ModelLayout, num_slots: int, num_window_slots: int, page_size: int, num_states: int = 0) -> int:
    """Bytes of both sides and of the states, padding included: the least for which `split_memory` gives just these.

    A side without layers costs nothing. Raises `InvalidSize` for a negative number of slots or states or a page size
    below 1, `MisalignedSize` for slots that are no whole pages.
    """
    if page_size < 1 or min(num_slots, num_window_slots, num_states) < 0:
        raise InvalidSize(
            f"{num_slots} slots, {num_window_slots} window slots, {num_states} states and pages of {page_size} are "
            "given. Use a page size of at least 1 and no negative number."
        )
    if num_slots % page_size or num_window_slots % page_size:
        raise MisalignedSize(
            f"{num_slots} slots and {num_window_slots} window slots are no multiples of the page size {page_size}. "
            "Round them to whole pages."
        )
    sides = _Sides.of(layout, page_size)
    return sides.padding + sides.cost(num_slots // page_size, num_window_slots // page_size, num_states)


@dataclass(frozen=True, slots=True)
class _Sides:
    """Bytes of a full page, of a window page and of a state; 0 for what the layout has not."""

    full: int
    window: int
    state: int

    @classmethod
    def of(cls, layout: ModelLayout, page_size: int) -> _Sides:
        full, window = layout.full_bytes_per_token * page_size, layout.window_bytes_per_token * page_size
        return cls(full, window, layout.state_bytes)

    @property
    def padding(self) -> int:
        return self.cost(1, 1, 1)

    def cost(self, pages: int, window_pages: int, num_states: int) -> int:
        return pages * self.full + window_pages * self.window + num_states * self.state


def _sides(layout: ModelLayout, size: int, page_size: int) -> _Sides:
    """Of a layout whose memory can be divided: it has a full side and more."""
    if page_size < 1 or size < 0:
        raise InvalidSize(
            f"{size} bytes or slots and pages of {page_size} are given. "
            "Use a page size of at least 1 and no negative number."
        )
    sides = _Sides.of(layout, page_size)
    if not sides.full or not (sides.window or sides.state):
        raise LayoutError(
            f"{layout.name} keeps {' and '.join(layout.kinds) or 'nothing'}, which is not a full side and windows or "
            "states beside it. Use `slots_for` where every layer keeps the same, and size states by `state_bytes`."
        )
    return sides


def _divide(sides: _Sides, usable: int, windows: WindowShare, states: StateShare) -> tuple[int, int, int]:
    """Full pages, window pages and states for bytes that hold the fewest there may be."""

    def cost(pages: int, number: int) -> int:
        return sides.cost(pages, windows.pages(pages), number)

    bound = usable // sides.full
    pages = _largest(bound, lambda pages: cost(pages, states.number(pages)) <= usable)
    number = states.number(pages)
    if states.grows:  # the states that one more page brings may be all that kept it out
        number += (usable - cost(pages, number)) // sides.state
        pages = _largest(bound, lambda pages: cost(pages, number) <= usable)
    window_pages = windows.pages(pages)
    if sides.window:
        left = usable - cost(pages, number)
        window_pages += min(left // sides.window, windows.most(pages) - window_pages)
    return pages, window_pages, number


def _split(
    page_size: int, pages: int, window_pages: int, num_states: int, windows: WindowShare, states: StateShare
) -> MemorySplit:
    source = "; ".join(filter(None, (windows.source(pages), states.source())))
    return MemorySplit(pages * page_size, window_pages * page_size, float(windows.ratio), source, num_states)


def _largest(bound: int, fits: Callable[[int], bool]) -> int:
    """The largest of 0 .. bound that fits, where 0 does and everything below one that fits does too."""
    low, high = 0, bound
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


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
