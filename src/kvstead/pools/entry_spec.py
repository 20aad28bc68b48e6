"""One pool of an arena: the size of its entries, how many make a page, and where in the arena the pool lies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from kvstead.errors import InvalidSize, LayoutError
from kvstead.kernels.arrays import whole


class Place(IntEnum):
    """Where in the arena a pool lies; the value is the sign of the direction towards that end."""

    LOW = -1  # from the bottom upward
    MIDDLE = 0  # between the others; both edges move
    HIGH = 1  # from the top downward


@dataclass(frozen=True, slots=True)
class EntrySpec:
    """One pool: `entry_bytes` for a token (or a request's state) over all layers, `page_size` entries a page.

    zero_on_take: zero every page when it is handed out, for kernels that mask rows by multiplying them by 0 and so must
    not find another pool's bytes there. align: bytes; every entry starts at a multiple of it.

    Raises `InvalidSize` for a size below 1 or an alignment that is not a power of two, `LayoutError` for entries whose
    size is not a multiple of the alignment, or an empty name.
    """

    name: str
    entry_bytes: int
    page_size: int = 1
    place: Place = Place.LOW
    zero_on_take: bool = False
    align: int = 16

    def __post_init__(self) -> None:
        for what in ("entry_bytes", "page_size", "align"):
            object.__setattr__(self, what, whole(getattr(self, what), f"{what} of pool {self.name!r}"))
            if getattr(self, what) < 1:
                raise InvalidSize(f"{what} of pool {self.name!r} is {getattr(self, what)}. It must be 1 or more.")
        if self.align & (self.align - 1):
            raise InvalidSize(f"align of pool {self.name!r} is {self.align}. Use a power of two.")
        if not self.name:
            raise LayoutError("a pool has no name. Name it after its kind, such as 'full' or 'state'.")
        if self.entry_bytes % self.align:
            padded = -(-self.entry_bytes // self.align) * self.align
            raise LayoutError(
                f"entries of pool {self.name!r} have {self.entry_bytes} bytes, not a multiple of {self.align}. "
                f"Pad them to {padded} bytes, or pass a smaller align."
            )

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, over all layers."""
        return self.entry_bytes * self.page_size
