"""How many slots a manager has on each side, and the allocator for them.

    the model keeps            full side                     window side
    whole sequences            slots with bytes              -
    whole and bounded ones     slots with bytes              slots with bytes
    bounded ones only          names: slots without bytes    slots with bytes

A request names its tokens by full slots in every case, so rows and prefixes have one shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvstead.allocators import PagedAllocator, SWAAllocator
from kvstead.errors import InvalidSize, LayoutError
from kvstead.model import CacheKind, ModelLayout
from kvstead.model.sizing import MemorySplit, split_bytes, split_for_slots, split_memory
from kvstead.model.window import Window

_NAMES_A_WINDOW_SLOT = 16  # cached prefixes may be so many times as long as what is kept of them


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Usable slots of both sides, and all bytes, padding included. `split`: how the sides were divided, if they were.

    num_slots are without bytes (`token_bytes` 0) where every layer is bounded.
    """

    page_size: int
    num_slots: int
    token_bytes: int
    num_window_slots: int
    window_token_bytes: int
    total_bytes: int
    window: Window | None
    split: MemorySplit | None

    @property
    def window_bytes(self) -> int:
        """Bytes of the window side."""
        if self.token_bytes == 0:
            return self.total_bytes
        return (self.num_window_slots + self.page_size) * self.window_token_bytes if self.window else 0

    def allocator(self, device: str | torch.device) -> PagedAllocator:
        """One pool, or two with a mapping."""
        if self.window is None:
            return PagedAllocator(self.num_slots, self.page_size, device=device)
        return SWAAllocator(self.num_slots, self.num_window_slots, self.page_size, device=device)


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """What a caller says of a manager's size; see `KVCacheManager`."""

    num_bytes: int | None
    num_slots: int | None
    num_window_slots: int | None
    window_ratio: float | None
    expected_length: int | None
    page_size: int


def plan_memory(layout: ModelLayout, asked: MemoryRequest, max_requests: int, max_length: int) -> MemoryPlan:
    """Sizes for what is asked, and for so many rows of so many tokens.

    Raises `InvalidSize` for contradictions, `LayoutError` for what cannot be managed.
    """
    if CacheKind.STATE in layout.kinds or CacheKind.CROSS in layout.kinds or not layout.kinds:
        raise LayoutError(
            f"{layout.name} caches {', '.join(layout.kinds) or 'nothing'}; the manager holds entries per token, of "
            "whole sequences, windows and chunks. Choose a model without recurrent layers."
        )
    if (asked.num_bytes is None) == (asked.num_slots is None):
        raise InvalidSize(
            f"num_bytes is {asked.num_bytes} and num_slots is {asked.num_slots}. Give exactly one of them."
        )
    if asked.page_size < 1:
        raise InvalidSize(f"the page size is {asked.page_size}. It must be at least 1.")
    if layout.window_rule is not None and layout.full_bytes_per_token:
        return _two_sides(layout, asked)
    if (asked.num_window_slots, asked.window_ratio, asked.expected_length) != (None, None, None):
        raise InvalidSize(
            f"{layout.name} keeps {' and '.join(layout.kinds)} entries only, so there is nothing to divide. Leave out "
            "num_window_slots, window_ratio and expected_length."
        )
    return _one_side(layout, asked, max_requests * -(-max_length // asked.page_size) * asked.page_size)


def _one_side(layout: ModelLayout, asked: MemoryRequest, row_slots: int) -> MemoryPlan:
    page_size, num_bytes = asked.page_size, asked.num_bytes
    if num_bytes is None:
        assert asked.num_slots is not None, "one of the two is given"
        num_slots = asked.num_slots // page_size * page_size
        num_bytes = layout.bytes_for(num_slots, page_size)
    else:
        num_slots = layout.slots_for(num_bytes, page_size)
    if num_slots <= 0:
        raise LayoutError(
            f"{num_bytes} bytes hold no page of {page_size} tokens of {layout.name} beside the padding page. Give "
            f"{layout.bytes_for(page_size, page_size)} bytes or more."
        )
    window = layout.window_rule
    if window is None:
        return MemoryPlan(page_size, num_slots, layout.full_bytes_per_token, 0, 0, num_bytes, None, None)
    names = row_slots + _NAMES_A_WINDOW_SLOT * num_slots
    return MemoryPlan(page_size, names, 0, num_slots, layout.window_bytes_per_token, num_bytes, window, None)


def _two_sides(layout: ModelLayout, asked: MemoryRequest) -> MemoryPlan:
    page_size, num_bytes = asked.page_size, asked.num_bytes
    if sum(value is not None for value in (asked.num_window_slots, asked.window_ratio, asked.expected_length)) > 1:
        raise InvalidSize(
            f"num_window_slots {asked.num_window_slots}, window_ratio {asked.window_ratio} and expected_length "
            f"{asked.expected_length} all say how large the window side is. Give one of them, or none."
        )
    ratio, length = asked.window_ratio, asked.expected_length
    if num_bytes is not None:
        if asked.num_window_slots is not None:
            raise InvalidSize(
                f"num_window_slots {asked.num_window_slots} goes with num_slots. With num_bytes give window_ratio."
            )
        split = split_memory(layout, num_bytes, page_size, window_ratio=ratio, expected_length=length)
    else:
        assert asked.num_slots is not None, "one of the two is given"
        num_slots = max(0, asked.num_slots // page_size * page_size)
        if asked.num_window_slots is None:
            split = split_for_slots(layout, num_slots, page_size, window_ratio=ratio, expected_length=length)
        else:
            num_window = max(0, asked.num_window_slots // page_size * page_size)
            quotient = num_window / num_slots if num_slots else 0.0
            split = MemorySplit(num_slots, num_window, quotient, f"{num_window:,} window slots, as given")
        if not split.num_slots or not split.num_window_slots:
            raise LayoutError(
                f"{asked.num_slots} slots with {split.num_window_slots} window slots leave a side of {layout.name} "
                f"without a page of {page_size}. Give both at least one page."
            )
        num_bytes = split_bytes(layout, split.num_slots, split.num_window_slots, page_size)
    return MemoryPlan(
        page_size,
        split.num_slots,
        layout.full_bytes_per_token,
        split.num_window_slots,
        layout.window_bytes_per_token,
        num_bytes,
        layout.window_rule,
        split,
    )
