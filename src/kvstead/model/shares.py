"""What goes beside so many pages of whole sequences: window pages and states, as given or as an expected length has it.

    pages of whole sequences   ################################   as many as the bytes allow
    window pages               ##########                         a window for each sequence
    states                     #  #  #  #                         one to run on and one to come back to, for each

Neither is fewer beside more pages, so the largest number of pages whose share fits can be found by halving.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from kvstead.errors import InvalidSize
from kvstead.model.layout import ModelLayout

_ASSUMED_LENGTH = 8192  # tokens of a sequence, where nobody says: a prompt of some thousands and its answer
_LEAST_RATIO = Fraction(1, 10**4)
_CHUNK = 8192  # tokens of prompts that are computed at once, and have all their window slots for that time
_STATES_A_REQUEST = 2  # the one it runs on and the one that it, or who follows it, comes back to


class WindowShare(Protocol):
    """Answers how many window pages go with a number of full pages."""

    @property
    def ratio(self) -> Fraction:
        """Window pages per full page, as aimed at; 0 without a window side."""
        ...

    @property
    def fewest(self) -> int:
        """The fewest full pages for which the window side has a page, or may do without one."""
        ...

    def pages(self, full: int) -> int:
        """Window pages beside `full` pages; never fewer beside more."""
        ...

    def most(self, full: int) -> int:
        """How many window pages are of use where bytes are left over."""
        ...

    def source(self, full: int) -> str:
        """In words, where `pages(full)` comes from; "" where nothing is said."""
        ...


@dataclass(frozen=True, slots=True)
class GivenWindows:
    """As many as the ratio gives, rounded down; with a ratio of 0, for layouts without a window side, none."""

    ratio: Fraction

    @property
    def fewest(self) -> int:
        """As `WindowShare` has it."""
        return -(-self.ratio.denominator // self.ratio.numerator) if self.ratio else 1

    def pages(self, full: int) -> int:
        """`full` times the ratio."""
        return int(full * self.ratio)

    most = pages

    def source(self, full: int) -> str:  # noqa: ARG002 - as `WindowShare` has it
        """The ratio."""
        return f"window_ratio {float(self.ratio):g}, as given" if self.ratio else ""


@dataclass(frozen=True, slots=True)
class DerivedWindows:
    """A window for each expected sequence, a chunk under way but no more than as much again, and one window at least.

    least, spare: pages of one window, and of a chunk under way. words: the sequences. No full page has more than one.
    """

    ratio: Fraction
    least: int
    spare: int
    words: str
    fewest: int = 1

    def pages(self, full: int) -> int:
        """As the class says."""
        return max(self._wanted(full), min(full, self.least))

    def most(self, full: int) -> int:
        """One for each full page."""
        return full

    def source(self, full: int) -> str:
        """The length, and what the pages were raised to."""
        derived = f"derived for {self.words}"
        if self._wanted(full) >= min(full, self.least):
            return derived
        return f"{derived}, and raised to {'one whole window' if self.least <= full else 'the pages of the full side'}"

    def _wanted(self, full: int) -> int:
        windows = int(full * self.ratio)
        return min(full, windows + min(windows, self.spare))


class StateShare(Protocol):
    """Answers how many states go with a number of full pages."""

    @property
    def grows(self) -> bool:
        """Whether more of them are of use where bytes are left over."""
        ...

    def number(self, full: int) -> int:
        """States beside `full` pages; never fewer beside more."""
        ...

    def source(self) -> str:
        """In words, where they come from; "" where nothing is said."""
        ...


@dataclass(frozen=True, slots=True)
class GivenStates:
    """So many, whatever the pages; 0 for layouts without states."""

    given: int
    grows: bool = False

    def number(self, full: int) -> int:  # noqa: ARG002 - as `StateShare` has it
        """As given."""
        return self.given

    def source(self) -> str:
        """The number."""
        return f"{self.given:,} state{'s' if self.given > 1 else ''}, as given" if self.given else ""


@dataclass(frozen=True, slots=True)
class DerivedStates:
    """Two for each expected sequence of `pages_each` full pages, and one at least. words: the sequences."""

    pages_each: int
    words: str
    grows: bool = True

    def number(self, full: int) -> int:
        """As the class says, rounded down."""
        return max(1, _STATES_A_REQUEST * full // self.pages_each)

    def source(self) -> str:
        """The length."""
        return f"two states each for {self.words}"


def window_share(
    layout: ModelLayout, page_size: int, window_ratio: float | Fraction | None, expected_length: int | None
) -> WindowShare:
    """Raises `InvalidSize` for a ratio or a length out of range, and for a ratio where there is no window side."""
    window = layout.window_rule
    if window is None:
        if window_ratio is not None:
            raise InvalidSize(f"window_ratio is {window_ratio}, but {layout.name} has no window side. Leave it out.")
        return GivenWindows(Fraction(0))
    if window_ratio is not None:
        return GivenWindows(_given_ratio(window_ratio))
    length, words = _expected(expected_length)
    ratio = min(Fraction(1), Fraction(min(length, window.span) + 2 * page_size, length))
    return DerivedWindows(ratio, window.pages(page_size), _CHUNK // page_size, words)


def state_share(layout: ModelLayout, page_size: int, num_states: int | None, expected_length: int | None) -> StateShare:
    """Raises `InvalidSize` for a number below 1 or a length out of range, and for states where no layer has one."""
    if not layout.state_bytes:
        if num_states is not None:
            raise InvalidSize(f"num_states is {num_states}, but {layout.name} has no states. Leave it out.")
        return GivenStates(0)
    if num_states is None:
        length, words = _expected(expected_length)
        return DerivedStates(-(-length // page_size), words)
    if num_states < 1:
        raise InvalidSize(
            f"num_states is {num_states}. A sequence of {layout.name} needs one to run. "
            "Use 1 or more, or leave it out to have it derived."
        )
    return GivenStates(num_states)


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


def _expected(expected_length: int | None) -> tuple[int, str]:
    length = _ASSUMED_LENGTH if expected_length is None else expected_length
    if not isinstance(length, int) or length < 1:
        raise InvalidSize(f"sequences of {length} tokens are expected. Use a length of at least 1, or leave it out.")
    return length, f"sequences of {length:,} tokens{', assumed' if expected_length is None else ''}"
