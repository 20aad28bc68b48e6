"""Checks of sizes, lengths and positions that a caller passes, for allocators on the host and on a device."""

from __future__ import annotations

from typing import NoReturn

from kvstead.errors import InvalidSize, MisalignedSegment, MisalignedSize
from kvstead.kernels.arrays import whole
from kvstead.pages import FreeList


def require_pool(size: int, page_size: int) -> None:
    """Raise `InvalidSize` for a negative size or a page size below 1."""
    if size < 0 or page_size < 1:
        raise InvalidSize(
            f"a pool of {size} slots in pages of {page_size} is impossible. Give 0 slots or more, and a page size of 1 "
            "or more."
        )


def own_pages(size: int, page_size: int, order: str) -> FreeList:
    """The pages of a pool of `size` slots. Raises `InvalidSize` as `require_pool`, and for an unknown order."""
    require_pool(size, page_size)
    return FreeList(size // page_size, order)


def window_pages(swa_size: int, page_size: int, order: str) -> FreeList:
    """The pages of a window side of `swa_size` slots. Raises `InvalidSize` for a negative number."""
    if swa_size < 0:
        raise InvalidSize(f"swa_size is {swa_size}. The window side has 0 slots or more.")
    return FreeList(swa_size // page_size, order)


def state_pages(num_states: int | None, order: str) -> FreeList | None:
    """The slots of recurrent states, one a page; None for no states. Raises `InvalidSize` for a negative number."""
    if num_states is None:
        return None
    if num_states < 0:
        raise InvalidSize(f"num_states is {num_states}. Give 0 or more, or None for no states.")
    return FreeList(num_states, order)


def whole_pages(num_tokens: int, page_size: int) -> int:
    """The pages of `num_tokens` slots. Raises `InvalidSize` for a negative number, `MisalignedSize` for a remainder."""
    num_tokens = whole(num_tokens, "the number of tokens")
    if num_tokens < 0:
        raise InvalidSize(f"cannot allocate {num_tokens} tokens. Ask for 0 or more.")
    num_pages, rest = divmod(num_tokens, page_size)
    if rest:
        raise MisalignedSize(
            f"{num_tokens} tokens do not fill whole pages of {page_size}. Ask for a multiple, or use "
            "alloc_extend, which fills the last page of a row first."
        )
    return num_pages


def require_page_start(start_pos: int, page_size: int) -> None:
    """Raise `MisalignedSegment` unless a segment that starts at `start_pos` starts on a page boundary."""
    if start_pos < 0 or start_pos % page_size:
        raise MisalignedSegment(
            f"a segment starts at position {start_pos}, which is not a multiple of the page size {page_size}. Start it "
            "at the next page boundary; the page before belongs to the tokens in front."
        )


def refuse_shapes(*sizes: int) -> NoReturn:
    """Raise the error for columns of different length."""
    raise InvalidSize(f"lengths and last slots have {sizes} entries. Give each of them one entry a row.")


def refuse_lengths(row: int, prefix: int, seq: int) -> NoReturn:
    """Raise the error for a row whose length would shrink, or starts below 0."""
    raise InvalidSize(f"row {row} cannot grow from {prefix} to {seq} tokens. Lengths start at 0 and never shrink.")


def require_tail(seq: int, tail: int, num_new: int, page_size: int) -> None:
    """Check the last `tail` of `num_new` new tokens of a row that grows to `seq`.

    Raises `InvalidSize` for a tail below 0 or longer than what is new, `MisalignedSegment` for one off a page boundary.
    """
    start = seq - tail
    if not 0 <= tail <= num_new:
        raise InvalidSize(f"a tail of {tail} tokens, but {num_new} tokens are new. Ask for 0 .. {num_new}.")
    if start % page_size:
        raise MisalignedSegment(
            f"a tail of {tail} tokens would start at position {start}, which is not a multiple of the page size "
            f"{page_size}. Lengthen it to the page boundary before."
        )
