"""Numbers with units, to and from text: the one place that decides how they are written."""

from __future__ import annotations

import re
from decimal import Decimal

from kvstead.errors import InvalidSize

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_FACTORS = {
    name.lower(): base**power for base, names in ((1024, _BINARY), (1000, _DECIMAL)) for power, name in enumerate(names)
}
_SIZE = re.compile(r"(\d[\d_,]*(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_MINUTE = 60
_HOUR = 3600
_MAX_BYTES = 1024**6


def parse_bytes(text: str) -> int:
    """A number of bytes written as `40GiB` (powers of 1024), `40GB` (powers of 1000) or plain; case does not matter.

    A fraction of a byte is dropped. Raises `InvalidSize` for anything else, below one byte or above an EiB.
    """
    found = _SIZE.fullmatch(text.strip())
    factor = _FACTORS.get((found[2] or "B").lower()) if found else None
    if found is None or factor is None:
        raise InvalidSize(f"{text!r} is no size. Write it as 40GiB, 40GB, 512MiB or a plain number of bytes.")
    num_bytes = int(Decimal(found[1].replace("_", "").replace(",", "")) * factor)
    if not 1 <= num_bytes <= _MAX_BYTES:
        raise InvalidSize(f"{text!r} is {num_bytes} bytes. Give a size of 1 byte to 1024 PiB, such as 40GiB.")
    return num_bytes


def format_bytes(num_bytes: float) -> str:
    """Bytes in the largest binary unit that leaves a number of at least 1: `40 GiB`, `1.5 MiB`, `12 B`."""
    value, power = float(num_bytes), 0
    while value >= 1024 and power < len(_BINARY) - 1:  # noqa: PLR2004 - the base of binary units
        value /= 1024
        power += 1
    return f"{value:.4g} {_BINARY[power]}"


def format_count(count: float) -> str:
    """A whole number with separators between thousands."""
    return f"{count:,.0f}"


def format_seconds(seconds: float | None) -> str:
    """A duration of three digits: `12.3 ms`, `4.56 s`; `-` where nothing was measured."""
    if seconds is None:
        return "-"
    if seconds >= 1 or seconds == 0:
        return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"  # noqa: PLR2004 - three digits
    if seconds >= 1e-3:  # noqa: PLR2004 - a millisecond
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"


def format_clock(seconds: float) -> str:
    """A clock's reading as hours, minutes and seconds: `1:02:03`."""
    whole = int(seconds)
    return f"{whole // _HOUR}:{whole % _HOUR // _MINUTE:02d}:{whole % _MINUTE:02d}"


def format_share(part: float, whole: float) -> str:
    """`part` of `whole` in percent, `-` of nothing."""
    return f"{100 * part / whole:.2f} %" if whole else "-"
