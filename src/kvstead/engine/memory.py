"""How a manager's memory is laid out, and the allocator for it.

    static     | full slots           | window slots   | states      |   each side its own bytes
    unified    | sink | states >>> ... << windows >> ... <<< full    |   one arena, pages move
    padded     blocks of one size, so many for a page of each kind   |   only counted, to compare
    ideal      bytes                                                 |   only counted, the bound for all others

A request names its tokens by full slots in every case, so rows and prefixes have one shape. Where a model keeps nothing
of whole sequences the full side is names, slots without bytes; what it keeps then has nothing to share memory with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kvstead.allocators import (
    ArenaAllocator,
    ArenaSWAAllocator,
    MultiEndedAllocator,
    PagedAllocator,
    SWAAllocator,
    UnifiedMambaAllocator,
    UnifiedMambaSWAAllocator,
    UnifiedSWAAllocator,
)
from kvstead.arena import PoolChain, SharedBytes, SharedPool
from kvstead.engine.room import FULL, NOTHING, STATE, WINDOW, Demand
from kvstead.errors import InvalidSize, LayoutError
from kvstead.model import BOUNDED, WHOLE_SEQUENCE, MemorySplit, ModelLayout
from kvstead.model.padding import padded_pages
from kvstead.model.sizing import split_bytes, split_for_slots, split_memory
from kvstead.model.window import Window
from kvstead.pools import ByteArena, Place, state_spec, token_spec

POOL_LAYOUTS = ("static", "padded", "unified", "ideal")
_NAMES_A_WINDOW_SLOT = 16  # cached prefixes may be so many times as long as what is kept of them


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


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The pools, and all bytes, padding included. `split`: how the sides were divided, if they were.

    token_bytes is 0 where full slots are only names. num_slots, num_window_slots and num_states are those of sides with
    bytes of their own; where sides share bytes (`is_shared`), `page_bytes` is what a page of each takes of all but
    `sink_bytes`.
    """

    pool_layout: str
    page_size: int
    total_bytes: int
    token_bytes: int
    window_token_bytes: int
    state_bytes: int
    window: Window | None
    num_slots: int = 0
    num_window_slots: int = 0
    num_states: int = 0
    split: MemorySplit | None = None
    page_bytes: Demand = NOTHING
    sink_bytes: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether sides share bytes."""
        return self.page_bytes != NOTHING

    @property
    def has_arena(self) -> bool:
        """Whether they do so in an arena, where pages move."""
        return self.is_shared and self.pool_layout == "unified"

    @property
    def own_page_bytes(self) -> Demand:
        """Bytes that a page of each side holds."""
        return Demand(self.token_bytes * self.page_size, self.window_token_bytes * self.page_size, self.state_bytes)

    @property
    def window_bytes(self) -> int:
        """Bytes of a window side of its own."""
        if self.window is None or self.is_shared:
            return 0
        if not self.token_bytes:
            return self.total_bytes
        return (self.num_window_slots + self.page_size) * self.window_token_bytes

    @property
    def states_bytes(self) -> int:
        """Bytes of a state side of its own."""
        return 0 if not self.state_bytes or self.is_shared else (self.num_states + 1) * self.state_bytes


@dataclass(frozen=True, slots=True)
class ArenaOptions:
    """How pages of an arena move; see `PoolChain`. storage: whether there are bytes, or books only."""

    eager: bool = False
    fence: Callable[[], None] | None = None
    may_move: Callable[[], bool] | None = None
    storage: bool = True


def plan_memory(layout: ModelLayout, asked: MemoryRequest, max_requests: int, max_length: int) -> MemoryPlan:
    """Sizes for what is asked, and for so many rows of so many tokens.

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
    if layout.full_bytes_per_token and (layout.window_rule is not None or layout.state_bytes):
        return _sides(layout, asked)
    return _one_side(layout, asked, max_requests * -(-max_length // asked.page_size) * asked.page_size)


def build_allocator(
    layout: ModelLayout, plan: MemoryPlan, options: ArenaOptions, device: str | torch.device
) -> PagedAllocator | SWAAllocator | ArenaAllocator | ArenaSWAAllocator:
    """The pools of a plan behind one allocator. Raises `LayoutError` for a memory too small for a page of each."""
    if not plan.is_shared:
        num_states = plan.num_states if plan.state_bytes else None
        if plan.window is None:
            return PagedAllocator(plan.num_slots, plan.page_size, num_states=num_states, device=device)
        sizes = plan.num_slots, plan.num_window_slots, plan.page_size
        return SWAAllocator(*sizes, num_states=num_states, device=device)
    chain = _chain(layout, plan, options, device)
    if plan.window is not None:
        return (UnifiedMambaSWAAllocator if plan.state_bytes else UnifiedSWAAllocator).over(chain)
    return UnifiedMambaAllocator.over(chain) if plan.state_bytes else MultiEndedAllocator(chain, FULL)


def _chain(
    layout: ModelLayout, plan: MemoryPlan, options: ArenaOptions, device: str | torch.device
) -> PoolChain | SharedBytes:
    """What the sides share, with room for a page of each; the least that takes is known before there are any bytes."""
    if plan.total_bytes >= plan.sink_bytes + sum(plan.page_bytes):
        chain = _arena(layout, plan, options, device) if plan.has_arena else _counted(plan)
        if chain.holds({name: 1 for name, num_bytes in _named(plan.page_bytes).items() if num_bytes}):
            return chain
    # In an arena each pool has a grid of its own, which may cost it up to a page.
    enough = plan.sink_bytes + sum(plan.page_bytes) * (2 if plan.has_arena else 1)
    raise LayoutError(
        f"{plan.total_bytes:,} bytes hold no page of {plan.page_size} tokens of each kind of {layout.name}. "
        f"{enough:,} are enough."
    )


def _arena(layout: ModelLayout, plan: MemoryPlan, options: ArenaOptions, device: str | torch.device) -> PoolChain:
    """States and full slots at the ends, where nothing slides; windows have an end if there are no states."""
    specs = [token_spec(layout, WHOLE_SEQUENCE, name=FULL, place=Place.HIGH)]
    if plan.window is not None:
        place = Place.MIDDLE if plan.state_bytes else Place.LOW
        specs.insert(0, token_spec(layout, BOUNDED, name=WINDOW, place=place))
    # Kernels multiply masked rows by 0, which does not hide what another pool's bytes may stand for.
    is_mixed = len(specs) > 1 or plan.state_bytes > 0
    specs = [replace(spec, page_size=plan.page_size, zero_on_take=is_mixed) for spec in specs]
    if plan.state_bytes:
        specs.insert(0, state_spec(layout, name=STATE, place=Place.LOW))
    arena = ByteArena(plan.total_bytes, device, storage=options.storage)
    return PoolChain(arena, specs, eager=options.eager, fence=options.fence, may_move=options.may_move)


def _counted(plan: MemoryPlan) -> SharedBytes:
    own, cost = _named(plan.own_page_bytes), _named(plan.page_bytes)
    pools = [
        SharedPool(name, own[name], cost[name], 1 if name == STATE else plan.page_size) for name in own if own[name]
    ]
    return SharedBytes(plan.total_bytes, pools, sink_bytes=plan.sink_bytes)


def _named(demand: Demand) -> dict[str, int]:
    return dict(zip((FULL, WINDOW, STATE), demand, strict=True))


def _plan(layout: ModelLayout, asked: MemoryRequest, total_bytes: int) -> MemoryPlan:
    """What every plan for the layout has in common."""
    return MemoryPlan(
        asked.pool_layout,
        asked.page_size,
        total_bytes,
        layout.full_bytes_per_token,
        layout.window_bytes_per_token,
        layout.state_bytes,
        layout.window_rule,
    )


def _shared(layout: ModelLayout, asked: MemoryRequest) -> MemoryPlan:
    if asked.num_bytes is None or asked.num_slots is not None:
        raise InvalidSize(
            f"num_bytes is {asked.num_bytes} and num_slots is {asked.num_slots}. Sides that share memory are sized "
            f"by num_bytes alone; for numbers of slots use pool_layout='static'."
        )
    _refuse_division(layout, asked, f"pool_layout {asked.pool_layout!r} divides nothing")
    plan = _plan(layout, asked, asked.num_bytes)
    if asked.pool_layout == "padded":
        padded = padded_pages(layout, asked.page_size)
        blocks = (padded.blocks.get(name, 0) * padded.block_bytes for name in (FULL, WINDOW, STATE))
        return replace(plan, page_size=padded.page_size, page_bytes=Demand(*blocks), sink_bytes=padded.block_bytes)
    sink = max(plan.own_page_bytes) if asked.pool_layout == "unified" else 0
    return replace(plan, page_bytes=plan.own_page_bytes, sink_bytes=sink)


def _refuse_division(layout: ModelLayout, asked: MemoryRequest, why: str) -> None:
    given = asked.num_window_slots, asked.num_states, asked.window_ratio, asked.expected_length
    if given != (None, None, None, None):
        raise InvalidSize(
            f"{layout.name} keeps {' and '.join(layout.kinds)} entries, and {why}. Leave out num_window_slots, "
            "num_states, window_ratio and expected_length."
        )


def _one_side(layout: ModelLayout, asked: MemoryRequest, row_slots: int) -> MemoryPlan:
    page_size, num_bytes = asked.page_size, asked.num_bytes
    _refuse_division(layout, asked, "there is nothing to divide")
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
    if layout.window_rule is None:
        return replace(_plan(layout, asked, num_bytes), num_slots=num_slots)
    names = row_slots + _NAMES_A_WINDOW_SLOT * num_slots
    return replace(_plan(layout, asked, num_bytes), num_slots=names, num_window_slots=num_slots)


def _sides(layout: ModelLayout, asked: MemoryRequest) -> MemoryPlan:
    page_size, num_bytes = asked.page_size, asked.num_bytes
    has_window = layout.window_rule is not None
    if not has_window and (asked.num_window_slots, asked.window_ratio) != (None, None):
        raise InvalidSize(f"{layout.name} has no window side. Leave out num_window_slots and window_ratio.")
    if not layout.state_bytes and asked.num_states is not None:
        raise InvalidSize(f"{layout.name} keeps no states. Leave out num_states.")
    ratio, length, num_states = asked.window_ratio, asked.expected_length, asked.num_states
    if sum(value is not None for value in (asked.num_window_slots, ratio, length)) > 1:
        raise InvalidSize(
            f"num_window_slots {asked.num_window_slots}, window_ratio {ratio} and expected_length {length} all say how "
            "large the window side is. Give one of them, or none."
        )
    if num_bytes is not None:
        if asked.num_window_slots is not None:
            raise InvalidSize(
                f"num_window_slots {asked.num_window_slots} goes with num_slots. With num_bytes give window_ratio."
            )
        split = split_memory(
            layout, num_bytes, page_size, window_ratio=ratio, expected_length=length, num_states=num_states
        )
    else:
        split = _split_for_slots(layout, asked)
        num_bytes = split_bytes(layout, split.num_slots, split.num_window_slots, page_size, num_states=split.num_states)
    return replace(
        _plan(layout, asked, num_bytes),
        num_slots=split.num_slots,
        num_window_slots=split.num_window_slots,
        num_states=split.num_states,
        split=split,
    )


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
