"""How the sides of a model's cache share a memory, and how large each is.

    static     | full slots           | window slots   | states      |   each side its own bytes
    unified    | sink | states >>> ... << windows >> ... <<< full    |   one arena, pages move
    padded     blocks of one size, some for a page of each kind      |   only counted, to compare
    ideal      bytes                                                 |   only counted, the bound for all others

A request names its tokens by full slots in every case, so rows and prefixes have one shape. Where a model keeps nothing
of whole sequences the full side is names, slots without bytes; the window side then has nothing to share memory with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvstead.errors import InvalidSize, LayoutError
from kvstead.kernels.arrays import whole
from kvstead.model import BOUNDED, WHOLE_SEQUENCE, CacheKind, MemorySplit, ModelLayout
from kvstead.model.padding import padded_pages
from kvstead.model.sizing import split_bytes, split_for_slots, split_memory
from kvstead.model.window import Window
from kvstead.pages.amounts import FULL, STATE, WINDOW, Amounts

# What kinds of cache lie in the pool of each side, in the order of the sides.
SIDE_KINDS: Mapping[str, tuple[CacheKind, ...]] = {
    FULL: tuple(WHOLE_SEQUENCE),
    WINDOW: tuple(BOUNDED),
    STATE: (CacheKind.STATE,),
}

POOL_LAYOUTS = ("static", "padded", "unified", "ideal")
_NAMES_PER_WINDOW_SLOT = 16  # how much longer cached prefixes may be than the windows kept of them


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a memory: a pool, and what its pages hold.

    name: of the pool. page_entries: what a page holds, tokens or 1 state. page_bytes: of all of them, 0 where slots are
    only names. text: how a number of its pages is said. is_bounded: whether a row holds a bounded number of its pages,
    however long it is, and releases them as it grows. num_pages, total_bytes: usable pages, and all bytes with padding,
    of a side with bytes of its own; 0 where sides share bytes.
    """

    name: str
    page_entries: int
    page_bytes: int
    text: str
    is_bounded: bool = False
    num_pages: int = 0
    total_bytes: int = 0

    @property
    def entry_bytes(self) -> int:
        """Bytes of a token or state."""
        return self.page_bytes // self.page_entries


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """What a caller says of a manager's size and layout; see `KVCacheManager`."""

    pool_layout: str
    page_size: int
    num_bytes: int | None
    num_slots: int | None
    num_window_slots: int | None
    num_states: int | None
    window_ratio: float | None
    expected_length: int | None

    def __post_init__(self) -> None:
        for what in ("page_size", "num_bytes", "num_slots", "num_window_slots", "num_states", "expected_length"):
            if getattr(self, what) is not None:
                object.__setattr__(self, what, whole(getattr(self, what), what))


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The sides of a memory, and all its bytes, padding included.

    split: how the sides were divided, if they were. page_bytes: where sides share bytes, what a page of each takes of
    all but `sink_bytes`; else empty.
    """

    pool_layout: str
    page_size: int
    total_bytes: int
    window: Window | None
    sides: Mapping[str, Side]
    split: MemorySplit | None = None
    page_bytes: Amounts = field(default_factory=Amounts)
    sink_bytes: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether the sides share bytes instead of having their own."""
        return bool(self.page_bytes)

    @property
    def has_arena(self) -> bool:
        """Whether the sides share bytes in an arena, where pages move."""
        return self.is_shared and self.pool_layout == "unified"

    def entry_bytes(self, name: str) -> int:
        """Bytes of a token or state of a side; 0 where there is no such side, or only names."""
        return self.sides[name].entry_bytes if name in self.sides else 0


def plan_memory(layout: ModelLayout, asked: MemoryRequest, max_requests: int, max_length: int) -> MemoryPlan:
    """Sizes for what is asked, with `max_requests` rows of `max_length` tokens.

    Raises `InvalidSize` for contradictions, `LayoutError` for what cannot be managed.
    """
    if asked.pool_layout not in POOL_LAYOUTS:
        raise InvalidSize(f"pool_layout is {asked.pool_layout!r}. Use one of {', '.join(POOL_LAYOUTS)}.")
    if asked.page_size < 1:
        raise InvalidSize(f"the page size is {asked.page_size}. It must be at least 1.")
    if not layout.is_manageable:
        raise LayoutError(
            f"{layout.name} caches {', '.join(layout.kinds) or 'nothing'}; the manager holds entries per token, of "
            "whole sequences, windows and chunks, and states beside whole sequences. Choose another model."
        )
    if asked.pool_layout != "static" and layout.full_bytes_per_token:
        return _shared(layout, asked)
    if (asked.num_bytes is None) == (asked.num_slots is None):
        raise InvalidSize(
            f"num_bytes is {asked.num_bytes} and num_slots is {asked.num_slots}. Give exactly one of them."
        )
    max_requests, max_length = whole(max_requests, "max_requests"), whole(max_length, "max_length")
    row_pages = -(-max_length // asked.page_size)
    if layout.full_bytes_per_token and (layout.window_rule is not None or layout.state_bytes):
        plan = _divided(layout, asked)
    else:
        plan = _one_side(layout, asked, max_requests * row_pages)
    _require_a_window(layout, plan, row_pages)
    return plan


def sides_of(layout: ModelLayout, page_size: int) -> tuple[Side, ...]:
    """The sides that a memory for a model has. Every memory has a full side: rows name their tokens by full slots."""
    sides = [Side(FULL, page_size, page_size * layout.full_bytes_per_token, f"pages of {page_size}")]
    if layout.window_rule is not None:
        text = f"window pages of {page_size} at once"
        sides.append(Side(WINDOW, page_size, page_size * layout.window_bytes_per_token, text, is_bounded=True))
    if layout.state_bytes:
        sides.append(Side(STATE, 1, layout.state_bytes, "state"))
    return tuple(sides)


def _plan(
    layout: ModelLayout, asked: MemoryRequest, total_bytes: int, num_pages: Amounts, split: MemorySplit | None = None
) -> MemoryPlan:
    """Sides with bytes of their own: each has a padding page, and the first that has bytes what is left over."""
    sides = {}
    for side in sides_of(layout, asked.page_size):
        count = num_pages[side.name]
        sides[side.name] = replace(side, num_pages=count, total_bytes=(count + 1) * side.page_bytes)
    largest = FULL if layout.full_bytes_per_token else WINDOW
    left = total_bytes - sum(side.total_bytes for side in sides.values())
    sides[largest] = replace(sides[largest], total_bytes=sides[largest].total_bytes + left)
    return MemoryPlan(asked.pool_layout, asked.page_size, total_bytes, layout.window_rule, sides, split)


def _shared(layout: ModelLayout, asked: MemoryRequest) -> MemoryPlan:
    if asked.num_bytes is None or asked.num_slots is not None:
        raise InvalidSize(
            f"num_bytes is {asked.num_bytes} and num_slots is {asked.num_slots}. Sides that share memory are sized "
            "by num_bytes alone; for numbers of slots use pool_layout='static'."
        )
    _refuse_division(layout, asked, f"pool_layout {asked.pool_layout!r} divides nothing")
    padded = padded_pages(layout, asked.page_size) if asked.pool_layout == "padded" else None
    page_size = asked.page_size if padded is None else padded.page_size
    sides = {side.name: side for side in sides_of(layout, page_size)}
    if padded is not None:
        cost = Amounts({name: padded.blocks[name] * padded.block_bytes for name in sides})
        sink = padded.block_bytes
    else:
        cost = Amounts({name: side.page_bytes for name, side in sides.items()})
        sink = max(cost.values()) if asked.pool_layout == "unified" else 0
    return MemoryPlan(
        asked.pool_layout, page_size, asked.num_bytes, layout.window_rule, sides, page_bytes=cost, sink_bytes=sink
    )


def _refuse_division(layout: ModelLayout, asked: MemoryRequest, why: str) -> None:
    given = asked.num_window_slots, asked.num_states, asked.window_ratio, asked.expected_length
    if given != (None, None, None, None):
        raise InvalidSize(
            f"{layout.name} keeps {' and '.join(layout.kinds)} entries, and {why}. Leave out num_window_slots, "
            "num_states, window_ratio and expected_length."
        )


def _one_side(layout: ModelLayout, asked: MemoryRequest, row_pages: int) -> MemoryPlan:
    """A model whose layers all keep the same. With windows only, the full side names what rows and the tree hold."""
    page_size, num_bytes = asked.page_size, asked.num_bytes
    _refuse_division(layout, asked, "there is nothing to divide")
    if num_bytes is None:
        assert asked.num_slots is not None, "one of the two is given"
        num_pages = asked.num_slots // page_size
        num_bytes = layout.bytes_for(num_pages * page_size, page_size)
    else:
        num_pages = layout.slots_for(num_bytes, page_size) // page_size
    if num_pages <= 0:
        raise LayoutError(
            f"{num_bytes} bytes hold no page of {page_size} tokens of {layout.name} beside the padding page. Give "
            f"{layout.bytes_for(page_size, page_size)} bytes or more."
        )
    pages = Amounts({FULL: num_pages})
    if layout.window_rule is not None:
        pages = Amounts({FULL: row_pages + _NAMES_PER_WINDOW_SLOT * num_pages, WINDOW: num_pages})
    return _plan(layout, asked, num_bytes, pages)


def _require_a_window(layout: ModelLayout, plan: MemoryPlan, row_pages: int) -> None:
    """Refuse a window side that is smaller than the window of one row, which `row_pages` may bound."""
    if plan.window is None:
        return
    span, size, have = plan.window.span, plan.page_size, plan.sides[WINDOW].num_pages
    needed = -(-span // size)
    if have < min(needed, row_pages, plan.sides[FULL].num_pages):
        raise LayoutError(
            f"the window side of {layout.name} has {have} pages of {size}, and the window of {span} tokens of a single "
            f"request takes {needed}, {plan.window.pages(size)} while it moves. Give {plan.window.pages(size) * size} "
            f"window slots or more, or a max_length of {have * size} at most."
        )


def _divided(layout: ModelLayout, asked: MemoryRequest) -> MemoryPlan:
    """A model with a full side and others. What a layout can be divided by is checked by `kvstead.model.sizing`."""
    page_size, num_bytes = asked.page_size, asked.num_bytes
    if asked.num_window_slots is not None and layout.window_rule is None:
        raise InvalidSize(f"{layout.name} has no window side. Leave out num_window_slots.")
    ratio, length, num_states = asked.window_ratio, asked.expected_length, asked.num_states
    if sum(value is not None for value in (asked.num_window_slots, ratio, length)) > 1:
        raise InvalidSize(
            f"num_window_slots {asked.num_window_slots}, window_ratio {ratio} and expected_length {length} all say how "
            "large the window side is. Give one of them, or none."
        )
    if num_bytes is None:
        split = _split_for_slots(layout, asked)
        num_bytes = split_bytes(layout, split.num_slots, split.num_window_slots, page_size, num_states=split.num_states)
    elif asked.num_window_slots is not None:
        raise InvalidSize(
            f"num_window_slots {asked.num_window_slots} goes with num_slots. With num_bytes give window_ratio."
        )
    else:
        split = split_memory(
            layout, num_bytes, page_size, window_ratio=ratio, expected_length=length, num_states=num_states
        )
    pages = Amounts({FULL: split.num_slots // page_size, WINDOW: split.num_window_slots // page_size})
    pages[STATE] = split.num_states
    return _plan(layout, asked, num_bytes, pages, split)


def _split_for_slots(layout: ModelLayout, asked: MemoryRequest) -> MemorySplit:
    page_size = asked.page_size
    assert asked.num_slots is not None, "it is given where the bytes are not"
    num_slots = max(0, asked.num_slots // page_size * page_size)
    split = split_for_slots(
        layout,
        num_slots,
        page_size,
        window_ratio=asked.window_ratio,
        expected_length=asked.expected_length,
        num_states=asked.num_states,
    )
    if asked.num_window_slots is not None:
        num_window = max(0, asked.num_window_slots // page_size * page_size)
        quotient = num_window / num_slots if num_slots else 0.0
        source = f"{num_window:,} window slots, as given"
        split = replace(split, num_window_slots=num_window, ratio=quotient, source=source)
    if not split.num_slots or (layout.window_rule is not None and not split.num_window_slots):
        raise LayoutError(
            f"{asked.num_slots} slots with {split.num_window_slots} window slots leave a side of {layout.name} "
            f"without a page of {page_size}. Give both at least one page."
        )
    return split
