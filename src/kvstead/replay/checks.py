"""Range checks of a caller's numbers."""

from __future__ import annotations

import sys
from math import inf

from kvstead.errors import InvalidSize


def require_positive(name: str, value: float) -> None:
    """Raise `InvalidSize` unless `value` is above 0 and finite."""
    require_between(name, value, sys.float_info.max)


def require_between(name: str, value: float, highest: float) -> None:
    """Raise `InvalidSize` unless `value` is above 0 and at most `highest`; NaN is refused too."""
    if not 0 < value <= highest:
        raise InvalidSize(f"{name} is {value}. It must be above 0 and at most {highest:g}.")


def require_at_least(name: str, value: float, lowest: float) -> None:
    """Raise `InvalidSize` unless `value` is at least `lowest` and finite."""
    if not lowest <= value < inf:
        raise InvalidSize(f"{name} is {value}. It must be {lowest:g} or more, and finite.")


def require_from_to(name: str, value: float, lowest: float, highest: float) -> None:
    """Raise `InvalidSize` unless `value` lies from `lowest` to `highest`."""
    if not lowest <= value <= highest:
        raise InvalidSize(f"{name} is {value}. It must be {lowest:g} to {highest:g}.")
