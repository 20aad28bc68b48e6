"""Row segments: stretches of a row that start on a page boundary."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from kvstead.errors import MisalignedSegment
from kvstead.kernels import windows
from kvstead.kernels.array_types import IntArray


def segment_pages(slots: IntArray, page_size: int) -> IntArray:
    """The pages of a row segment, the last of which may be partial: int64[k], a new array; their states do not matter.

    Raises `MisalignedSegment` where the slots are not consecutive from a page's start. O(slots).
    """
    pages = np.empty(-(-slots.size // page_size), dtype=np.int64)
    bad = windows.pages_of_segment(slots, page_size, pages)
    if bad >= 0:
        refuse_segment(slots, page_size, bad)
    return pages


def refuse_segment(slots: IntArray, page_size: int, page: int) -> NoReturn:
    """Raise the error for a row segment whose page number `page` does not hold consecutive slots."""
    part = slots[page * page_size : (page + 1) * page_size]
    raise MisalignedSegment(
        f"slots {part.tolist()}, from entry {page * page_size} of the segment on, are not the consecutive slots "
        f"of a page of {page_size}. Pass the stretch of the row unchanged, with the position it starts at."
    )
