"""How a number of bytes divides among several pools, and what it costs to make their pages alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from kvstead.errors import InvalidSize, LayoutError, MisalignedSize
from kvstead.model.layout import ModelLayout
from kvstead.model.window import Window

_ASSUMED_LENGTH = 8192  # tokens of a sequence, where nobody says: a prompt of some thousands and its answer
_LEAST_RATIO = Fraction(1, 10**4)
_CHUNK = 8192  # tokens of prompts that are computed at once, and have all their window slots for that time


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
    came about. A side that the layout lacks has none.
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
    expected_length: int | None = None,
) -> MemorySplit:
    """The largest split of `num_bytes` between full and window side, one padding page each included.

    window_ratio: window slots per full slot, above 0; a float stands for the decimal it prints as. It is obeyed as
    `split_slots` does, also above 1, where the surplus lies idle: a full page has one window page at most.

    Without it the ratio is derived for sequences of `expected_length` tokens (8,192 when that is None too): what such a
    sequence keeps of its window, and two pages for where it begins and ends, per token of its length. Beside that the
    window side gets the slots of a chunk of 8,192 tokens under way, but no more than as much again. It has at least the
    pages of one sequence's window, or as many as the full side has if those are fewer, and the pages that still fit
    what rounding leaves.

    Raises `LayoutError` for a layout without both sides or with states, and, naming the least that would do, for bytes
    that hold no page on one of the sides; `InvalidSize` for sizes that have no sense.
    """
    window = _two_sides(layout, num_bytes, page_size)
    if window_ratio is not None:
        return _split_as_given(layout, num_bytes, page_size, _given_ratio(window_ratio))
    ratio, source = _derived_ratio(window, page_size, expected_length)
    return _split_as_derived(layout, window, num_bytes, page_size, ratio, source)


def split_for_slots(
    layout: ModelLayout,
    num_slots: int,
    page_size: int,
    *,
    window_ratio: float | Fraction | None = None,
    expected_length: int | None = None,
) -> MemorySplit:
    """The window side that goes with `num_slots` full slots (whole pages): `split_memory` where slots are given.

    Raises as that does.
    """
    window = _two_sides(layout, num_slots, page_size)
    pages = num_slots // page_size
    if window_ratio is not None:
        ratio = _given_ratio(window_ratio)
        return MemorySplit(pages * page_size, int(pages * ratio) * page_size, float(ratio), _given_source(ratio))
    ratio, source = _derived_ratio(window, page_size, expected_length)
    num_window, source = _derived_pages(pages, ratio, window.pages(page_size), _CHUNK // page_size, source)
    return MemorySplit(pages * page_size, num_window * page_size, float(ratio), source)


def split_bytes(layout: ModelLayout, num_slots: int, num_window_slots: int, page_size: int) -> int:
    """Bytes of both sides and their padding pages: the least for which `split_memory` gives these slots.

    A side without layers costs nothing. Raises `InvalidSize` for a negative number of slots or a page size below 1,
    `MisalignedSize` for slots that are no whole pages.
    """
    if page_size < 1 or min(num_slots, num_window_slots) < 0:
        raise InvalidSize(
            f"{num_slots} slots, {num_window_slots} window slots and pages of {page_size} are given. "
            "Use a page size of at least 1 and no negative number."
        )
    if num_slots % page_size or num_window_slots % page_size:
        raise MisalignedSize(
            f"{num_slots} slots and {num_window_slots} window slots are no multiples of the page size {page_size}. "
            "Round them to whole pages."
        )
    full, window = num_slots + page_size, num_window_slots + page_size
    return full * layout.full_bytes_per_token + window * layout.window_bytes_per_token


def _two_sides(layout: ModelLayout, num_bytes: int, page_size: int) -> Window:
    """The window of a layout that has both sides and no third."""
    if page_size < 1 or num_bytes < 0:
        raise InvalidSize(
            f"{num_bytes} bytes and pages of {page_size} are given. "
            "Use a page size of at least 1 and no negative number."
        )
    window = layout.window_rule
    if window is None or not layout.full_bytes_per_token or layout.state_bytes:
        raise LayoutError(
            f"{layout.name} keeps {' and '.join(layout.kinds) or 'nothing'}, which is not a full and a window side. "
            "Use `slots_for` where every layer keeps the same, and size states by `state_bytes`."
        )
    return window


def _given_ratio(given: float | Fraction) -> Fraction:
    try:
        ratio = given if isinstance(given, Fraction) else Fraction(str(given))
    except ValueError:
        ratio = Fraction(0)  # nan or infinite
    if not _LEAST_RATIO <= ratio <= 1 / _LEAST_RATIO:
        raise InvalidSize(
            f"window_ratio is {given}. It must be above 0 and finite, from {float(_LEAST_RATIO)} to "
            f"{float(1 / _LEAST_RATIO):,.0f}; more than 1 is of no use. Leave it out to have it derived."
        )
    return ratio


def _given_source(ratio: Fraction) -> str:
    return f"window_ratio {float(ratio):g}, as given"


def _derived_ratio(window: Window, page_size: int, expected_length: int | None) -> tuple[Fraction, str]:
    length = _ASSUMED_LENGTH if expected_length is None else expected_length
    if not isinstance(length, int) or length < 1:
        raise InvalidSize(f"sequences of {length} tokens are expected. Use a length of at least 1, or leave it out.")
    ratio = min(Fraction(1), Fraction(min(length, window.span) + 2 * page_size, length))
    return ratio, f"derived for sequences of {length:,} tokens{', assumed' if expected_length is None else ''}"


def _derived_pages(pages: int, ratio: Fraction, least: int, spare: int, source: str) -> tuple[int, str]:
    """Window pages beside so many full ones, but one whole window if there can be one."""
    wanted, needed = min(pages, int(pages * ratio) + min(int(pages * ratio), spare)), min(pages, least)
    if wanted >= needed:
        return wanted, source
    return needed, f"{source}, and raised to {'one whole window' if needed == least else 'the pages of the full side'}"


def _split_as_given(layout: ModelLayout, num_bytes: int, page_size: int, ratio: Fraction) -> MemorySplit:
    slots, window_slots = split_slots(layout, num_bytes, page_size, ratio)
    if not slots or not window_slots:
        pages = -(-ratio.denominator // ratio.numerator)  # the fewest that give the window side a page
        least = split_bytes(layout, pages * page_size, int(pages * ratio) * page_size, page_size)
        raise _too_small(layout, num_bytes, page_size, least)
    return MemorySplit(slots, window_slots, float(ratio), _given_source(ratio))


def _split_as_derived(
    layout: ModelLayout, window: Window, num_bytes: int, page_size: int, ratio: Fraction, source: str
) -> MemorySplit:
    full, extra = layout.full_bytes_per_token * page_size, layout.window_bytes_per_token * page_size
    usable = num_bytes - full - extra
    if usable < full + extra:
        raise _too_small(layout, num_bytes, page_size, 2 * (full + extra))
    least = window.pages(page_size)

    def fits(pages: int) -> bool:
        return pages * full + _derived_pages(pages, ratio, least, _CHUNK // page_size, source)[0] * extra <= usable

    pages = _largest(usable // full, fits)
    num_window, source = _derived_pages(pages, ratio, least, _CHUNK // page_size, source)
    left = usable - pages * full - num_window * extra
    num_window += min(left // extra, pages - num_window)  # a full page has one window page at most
    return MemorySplit(pages * page_size, num_window * page_size, float(ratio), source)


def _too_small(layout: ModelLayout, num_bytes: int, page_size: int, least: int) -> LayoutError:
    return LayoutError(
        f"{num_bytes:,} bytes hold no page of {page_size} tokens on both sides of {layout.name}, beside the padding. "
        f"Give {least:,} or more."
    )


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
