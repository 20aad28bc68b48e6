"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

from kvstead.errors import InvalidSize

BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_FACTORS = {
    spelling: base**power
    for base, names in ((1024, BINARY_UNITS), (1000, _DECIMAL))
    for power, name in enumerate(names)
    for spelling in (name.lower(), name.lower().removesuffix("b"))
}
_SIZE = re.compile(r"(\d[\d_,]*(?:\.\d+)?(?:e\+?\d{1,2})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_MAX_BYTES = 1024**6


def parse_bytes(text: str) -> int:
    """Bytes written as `40GiB` or `40Gi` (powers of 1024), `40GB` or `40G` (powers of 1000), or plain: `40e9`.

    A fraction of a byte is dropped. Raises `InvalidSize` for anything else, below one byte or above an EiB.
    """
    found = _SIZE.fullmatch(text.strip())
    factor = _FACTORS.get((found[2] or "B").lower()) if found else None
    if found is None or factor is None:
        raise InvalidSize(f"{text!r} is not a size. Write it as 40GiB, 40GB, 512MiB or a plain number of bytes.")
    num_bytes = int(Decimal(found[1].replace("_", "").replace(",", "")) * factor)
    if not 1 <= num_bytes <= _MAX_BYTES:
        raise InvalidSize(f"{text!r} is {num_bytes} bytes. Give a size of 1 byte to 1024 PiB, such as 40GiB.")
    return num_bytes
