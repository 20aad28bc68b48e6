"""How many window pages and states go beside the pages of whole sequences: as given, or for an expected length.

    full pages     ################################   as many as the bytes allow
    window pages   ##########                         a window for each sequence
    states         #  #  #  #                         two for each sequence: one to run on, one to come back to

More full pages never need fewer of the others, so a binary search finds the most full pages that fit with their share.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvstead.errors import InvalidSize
from kvstead.model.layout import ModelLayout

_ASSUMED_LENGTH = 8192  # tokens of a sequence, where none is given: a prompt of some thousands and its answer
_LEAST_RATIO = Fraction(1, 10**4)
_CHUNK = 8192  # tokens of prompts that one step computes, which need all their window slots during that step
_STATES_A_REQUEST = 2  # the one it runs on, and the one that it or a later request comes back to


@dataclass(frozen=True, slots=True)
class WindowShare:
    """Window pages beside full pages: `ratio` for each, with `spare` more (at most as many again), and `least` or more.

    `spare` and `least` never give more window pages than full pages. grows: bytes that are left over go to window
    pages, up to one for each full page. words: where the ratio comes from; "" without a window side, whose ratio is 0.
    """

    ratio: Fraction
    words: str = ""
    least: int = 0
    spare: int = 0
    grows: bool = False

    @property
    def fewest(self) -> int:
        """The fewest full pages beside which there is a window page, or none is needed."""
        return 1 if self.grows or not self.ratio else -(-self.ratio.denominator // self.ratio.numerator)

    def pages(self, full: int) -> int:
        """Window pages beside `full` pages; never fewer beside more."""
        return max(self._by_ratio(full), min(full, self.least))

    def source(self, full: int) -> str:
        """In words, where `pages(full)` comes from."""
        if self._by_ratio(full) >= min(full, self.least):
            return self.words
        raised_to = "one whole window" if self.least <= full else "the pages of the full side"
        return f"{self.words}, and raised to {raised_to}"

    def _by_ratio(self, full: int) -> int:
        windows = int(full * self.ratio)
        return max(windows, min(full, windows + min(windows, self.spare)))


@dataclass(frozen=True, slots=True)
class StateShare:
    """States beside full pages: `per_page` for each, and `least` or more. words: where they come from.

    Bytes that are left over go to states where `per_page` is above 0.
    """

    least: int
    per_page: Fraction = Fraction(0)
    words: str = ""

    def number(self, full: int) -> int:
        """States beside `full` pages; never fewer beside more."""
        return max(self.least, int(full * self.per_page))


def window_share(
    layout: ModelLayout, page_size: int, window_ratio: float | Fraction | None, expected_length: int | None
) -> WindowShare:
    """The share of the window side. Raises `InvalidSize` for values out of range, or a ratio without a window side."""
    window = layout.window_rule
    if window is None:
        if window_ratio is not None:
            raise InvalidSize(f"window_ratio is {window_ratio}, but {layout.name} has no window side. Leave it out.")
        return WindowShare(Fraction(0))
    if window_ratio is not None:
        ratio = _given_ratio(window_ratio)
        return WindowShare(ratio, f"window_ratio {float(ratio):g}, as given")
    length, sequences = _expected(expected_length)
    ratio = min(Fraction(1), Fraction(min(length, window.span) + 2 * page_size, length))
    return WindowShare(ratio, f"derived for {sequences}", window.pages(page_size), _CHUNK // page_size, grows=True)


def state_share(layout: ModelLayout, page_size: int, num_states: int | None, expected_length: int | None) -> StateShare:
    """The share of the states. Raises `InvalidSize` for values out of range, or states where no layer has one."""
    if not layout.state_bytes:
        if num_states is not None:
            raise InvalidSize(f"num_states is {num_states}, but {layout.name} has no states. Leave it out.")
        return StateShare(0)
    if num_states is None:
        length, sequences = _expected(expected_length)
        pages_each = -(-length // page_size)
        return StateShare(1, Fraction(_STATES_A_REQUEST, pages_each), f"two states each for {sequences}")
    if num_states < 1:
        raise InvalidSize(
            f"num_states is {num_states}, and a sequence of {layout.name} needs one to run. Use 1 or more, or leave it "
            "out to have it derived."
        )
    return StateShare(num_states, words=f"{num_states:,} state{'s' if num_states > 1 else ''}, as given")


def _given_ratio(given: float | Fraction) -> Fraction:
    try:
        ratio = given if isinstance(given, Fraction) else Fraction(str(given))
    except ValueError:
        ratio = Fraction(0)  # nan or infinite
    if not _LEAST_RATIO <= ratio <= 1 / _LEAST_RATIO:
        raise InvalidSize(
            f"window_ratio is {given}. Use {float(_LEAST_RATIO)} to {float(1 / _LEAST_RATIO):,.0f}; above 1 the window "
            "side has slots that nothing uses. Leave it out to have it derived."
        )
    return ratio


def _expected(expected_length: int | None) -> tuple[int, str]:
    length = _ASSUMED_LENGTH if expected_length is None else expected_length
    if not isinstance(length, int) or length < 1:
        raise InvalidSize(
            f"sequences of {length} tokens are expected. Use an expected_length of 1 or more, or leave it out."
        )
    return length, f"sequences of {length:,} tokens{', assumed' if expected_length is None else ''}"
