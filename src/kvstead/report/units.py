"""Numbers with units, to and from text."""

from __future__ import annotations

import re

from kvstead.byte_sizes import BINARY_UNITS
from kvstead.errors import InvalidSize

_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(rf"(\d+(?:\.\d*)?)\s*({'|'.join(_DURATION_UNITS)})", re.IGNORECASE | re.ASCII)
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def parse_seconds(text: str) -> float:
    """A duration written as `2s`, `50ms` or `1.5min`. Raises `InvalidSize` for anything else, and for 0 or less."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _DURATION_UNITS[found[2].lower()] if found else 0.0
    if seconds <= 0:
        raise InvalidSize(f"{text!r} is no duration. Write it as 2s, 50ms or 1.5min.")
    return seconds


def format_bytes(num_bytes: float) -> str:
    """Bytes to four digits, in the largest binary unit that leaves at least 1: `40 GiB`, `1.5 MiB`, `12 B`."""
    value, power = float(num_bytes), 0
    while float(f"{value:.4g}") >= 1024 and power < len(BINARY_UNITS) - 1:  # noqa: PLR2004 - the base of binary units
        value /= 1024
        power += 1
    return f"{_digits(value, 4)} {BINARY_UNITS[power]}"


def format_count(count: float) -> str:
    """A whole number with separators between thousands."""
    return f"{count:,.0f}"


def format_seconds(seconds: float | None) -> str:
    """A duration to three digits: `12.3 ms`, `4.56 s`; `-` where nothing was measured."""
    if seconds is None:
        return "-"
    fitting = (unit for unit in _SECONDS if float(f"{seconds / unit[0]:.3g}") >= 1)
    factor, name = next(fitting, _SECONDS[-1] if seconds else _SECONDS[0])
    return f"{_digits(seconds / factor, 3)} {name}"


def format_clock(seconds: float) -> str:
    """A clock's reading as hours, minutes and seconds: `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def format_share(part: float, whole: float) -> str:
    """`part` of `whole` in percent, `-` of nothing."""
    return f"{100 * part / whole:.2f} %" if whole else "-"


def _digits(value: float, num_digits: int) -> str:
    """`value` to `num_digits` digits, or all of its whole part; zeros behind the point are dropped."""
    decimals = max(0, num_digits - len(str(int(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text
