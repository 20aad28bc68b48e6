"""How a number of bytes divides among the pools of a model, and what pools of given sizes cost.

    bytes   | . full side                         | . window side    | . states    |left|

Each side has a padding page (the states a padding slot), drawn as a dot. What is left over is less than one more page
of the full side would need, with the window pages that go with it.

All checks of a division are here: callers pass on what they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from kvstead.errors import InvalidSize, LayoutError, MisalignedSize
from kvstead.model.layout import ModelLayout
from kvstead.model.side_shares import StateShare, WindowShare, state_share, window_share


def split_slots(layout: ModelLayout, num_bytes: int, page_size: int, window_ratio: Fraction) -> tuple[int, int]:
    """Slots of the full side and of the window side, both in whole pages: the largest that fit, (0, 0) if none does.

    `window_ratio` is window slots per full slot; the window side has as many pages as that gives, rounded down.
    `num_bytes` pays for one padding page of each too. Raises `LayoutError` for a layout without both sides,
    `InvalidSize` for a negative number or a page size below 1.
    """
    if page_size < 1 or num_bytes < 0 or window_ratio < 0:
        raise InvalidSize(
            f"num_bytes is {num_bytes}, the page size {page_size} and window_ratio {window_ratio}. Use a page size of "
            "at least 1 and no negative number."
        )
    sides = _Sides.of(layout, page_size)
    if not sides.full or not sides.window:
        raise LayoutError(f"{layout.name} keeps {' and '.join(layout.kinds)}, not two sides. Use `slots_for`.")
    usable = num_bytes - sides.full - sides.window
    pages = _largest(max(0, usable // sides.full), lambda n: sides.cost(n, int(n * window_ratio), 0) <= usable)
    return pages * page_size, int(pages * window_ratio) * page_size


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Slots of the full side and of the window side, both in whole pages, and the number of states.

    `ratio` is window slots per full slot as aimed at, before pages are rounded; `source` says in words where the ratio
    and the number of states come from. A side that the layout lacks has 0 of each.
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

    window_ratio: window slots per full slot, above 0; a float stands for the decimal it prints as. Above 1 the surplus
    is not used: a full page has one window page at most. By default it is derived for sequences of `expected_length`
    tokens (8,192 by default): what such a sequence keeps of its window, and two pages for where it begins and ends, per
    token of its length. The window side then also gets the slots of a chunk of 8,192 tokens in progress, at most as
    many again; at least one sequence's window, or one page for each full page; and the pages that rounding leaves.

    num_states: state slots, at least 1. By default two for each sequence of `expected_length` tokens that the full side
    holds, one to run on and one to come back to; at least one, and as many more as rounding leaves. Full pages that fit
    into less than a state are added last.

    Raises `LayoutError` for a layout without a full side or with nothing beside it, and for bytes that hold no page of
    a side or no state, naming how many do; `InvalidSize` for values out of range, and for a ratio or states where the
    layout has no such side.
    """
    plan = _Division.of(layout, num_bytes, page_size, window_ratio, num_states, expected_length)
    fewest = plan.windows.fewest
    number = plan.states.number(fewest)
    least = plan.sides.padding + plan.cost(fewest, number)
    if num_bytes < least:
        raise LayoutError(
            f"{num_bytes:,} bytes hold no page of {page_size} tokens{' on both sides' if plan.sides.window else ''} of "
            f"{layout.name}, beside {f'{number:,} of its states and ' if number else ''}the padding. "
            f"Give {least:,} or more."
        )
    return plan.split(*plan.largest(num_bytes - plan.sides.padding))


def split_for_slots(
    layout: ModelLayout,
    num_slots: int,
    page_size: int,
    *,
    window_ratio: float | Fraction | None = None,
    num_states: int | None = None,
    expected_length: int | None = None,
) -> MemorySplit:
    """The window side and the states that go with `num_slots` full slots, rounded down to pages.

    Keywords and errors as for `split_memory`, but no size is too small.
    """
    plan = _Division.of(layout, num_slots, page_size, window_ratio, num_states, expected_length)
    pages = num_slots // page_size
    return plan.split(pages, plan.windows.pages(pages), plan.states.number(pages))


def split_bytes(layout: ModelLayout, num_slots: int, num_window_slots: int, page_size: int, num_states: int = 0) -> int:
    """Bytes of both sides and of the states, padding included: the least for which `split_memory` gives this split.

    A side without layers costs nothing. Raises `InvalidSize` for a negative number or a page size below 1,
    `MisalignedSize` for slots that are not whole pages.
    """
    if page_size < 1 or min(num_slots, num_window_slots, num_states) < 0:
        raise InvalidSize(
            f"{num_slots} slots, {num_window_slots} window slots, {num_states} states and pages of {page_size} are "
            "given. Use a page size of at least 1 and no negative number."
        )
    if num_slots % page_size or num_window_slots % page_size:
        raise MisalignedSize(
            f"{num_slots} slots and {num_window_slots} window slots are not multiples of the page size {page_size}. "
            "Round them to whole pages."
        )
    sides = _Sides.of(layout, page_size)
    return sides.padding + sides.cost(num_slots // page_size, num_window_slots // page_size, num_states)


@dataclass(frozen=True, slots=True)
class _Sides:
    """Bytes of a full page, of a window page and of a state; 0 for a side that the layout lacks."""

    full: int
    window: int
    state: int

    @classmethod
    def of(cls, layout: ModelLayout, page_size: int) -> _Sides:
        full, window = layout.full_bytes_per_token * page_size, layout.window_bytes_per_token * page_size
        return cls(full, window, layout.state_bytes)

    @property
    def padding(self) -> int:
        return self.full + self.window + self.state

    def cost(self, pages: int, window_pages: int, num_states: int) -> int:
        return pages * self.full + window_pages * self.window + num_states * self.state


@dataclass(frozen=True, slots=True)
class _Division:
    """What goes with each full page of a layout that has a full side and more."""

    page_size: int
    sides: _Sides
    windows: WindowShare
    states: StateShare

    @classmethod
    def of(
        cls,
        layout: ModelLayout,
        size: int,
        page_size: int,
        window_ratio: float | Fraction | None,
        num_states: int | None,
        expected_length: int | None,
    ) -> _Division:
        """Check everything that is given. size: bytes or slots."""
        if page_size < 1 or size < 0:
            raise InvalidSize(
                f"{size} bytes or slots and pages of {page_size} are given. Use a page size of at least 1 and no "
                "negative number."
            )
        sides = _Sides.of(layout, page_size)
        if not sides.full or not (sides.window or sides.state):
            raise LayoutError(
                f"{layout.name} keeps {' and '.join(layout.kinds) or 'nothing'}, which is not a full side and windows "
                "or states beside it. Use `slots_for` where every layer keeps the same, and size states by "
                "`state_bytes`."
            )
        windows = window_share(layout, page_size, window_ratio, expected_length)
        return cls(page_size, sides, windows, state_share(layout, page_size, num_states, expected_length))

    def cost(self, pages: int, num_states: int) -> int:
        return self.sides.cost(pages, self.windows.pages(pages), num_states)

    def largest(self, usable: int) -> tuple[int, int, int]:
        """Full pages, window pages and states for bytes that hold at least the fewest."""
        bound = usable // self.sides.full
        pages = _largest(bound, lambda pages: self.cost(pages, self.states.number(pages)) <= usable)
        number = self.states.number(pages)
        if self.states.per_page:  # the states that go with one more page may be all that kept it out
            number += (usable - self.cost(pages, number)) // self.sides.state
            pages = _largest(bound, lambda pages: self.cost(pages, number) <= usable)
        window_pages = self.windows.pages(pages)
        if self.windows.grows:
            left = usable - self.cost(pages, number)
            window_pages += min(left // self.sides.window, pages - window_pages)
        return pages, window_pages, number

    def split(self, pages: int, window_pages: int, num_states: int) -> MemorySplit:
        source = "; ".join(filter(None, (self.windows.source(pages), self.states.words)))
        slots, window_slots = pages * self.page_size, window_pages * self.page_size
        return MemorySplit(slots, window_slots, float(self.windows.ratio), source, num_states)


def _largest(bound: int, fits: Callable[[int], bool]) -> int:
    """The largest of 0 .. bound that fits, where 0 does and everything below one that fits does too."""
    low, high = 0, bound
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def concurrent_requests(num_state_slots: int, slots_per_request: int, *caps: int) -> int:
    """How many requests a state pool admits at once, but no more than any of `caps` (the token pool's, the caller's).

    `slots_per_request`: the state that a request runs on, and the copies kept for reuse. Raises `InvalidSize` for a
    negative number of slots or fewer than one per request.
    """
    if num_state_slots < 0 or slots_per_request < 1:
        raise InvalidSize(
            f"{num_state_slots} state slots with {slots_per_request} per request are given. Use 0 or more slots and at "
            "least 1 per request."
        )
    return min([num_state_slots // slots_per_request, *caps])
