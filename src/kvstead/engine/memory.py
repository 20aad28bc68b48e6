"""The memory of a plan: its allocator, its tensors, and where in them a slot is now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
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
    WindowSide,
)
from kvstead.arena import Chain, PoolChain, SharedBytes, SharedPool
from kvstead.engine.memory_plan import MemoryPlan
from kvstead.errors import InvalidSize, LayoutError
from kvstead.kernels.arrays import Integers, to_device, to_host
from kvstead.model import BOUNDED, WHOLE_SEQUENCE, ModelLayout
from kvstead.pages.amounts import FULL, STATE, WINDOW, Amounts
from kvstead.pools import ArenaKVPool, ArenaStatePool, ByteArena, KVPool, Place, StatePool, state_spec, token_spec


@dataclass(frozen=True, slots=True)
class ArenaOptions:
    """How pages of an arena move; see `PoolChain`. storage: whether tensors are allocated, or slots only counted."""

    eager: bool = False
    fence: Callable[[], None] | None = None
    may_move: Callable[[], bool] | None = None
    storage: bool = True


class Memory:
    """The allocator and the tensors of a plan.

    `pool`, `window_pool` and `state_pool` are None where the model keeps nothing of the kind, or without storage.
    `chain` is None where every side has bytes of its own. `may_wait`: whether pages may not move at times, so that a
    request that fits may have to wait for its place.
    """

    def __init__(
        self, layout: ModelLayout, plan: MemoryPlan, options: ArenaOptions, device: str | torch.device
    ) -> None:
        if options.storage and plan.is_shared and not plan.has_arena:
            raise InvalidSize(f"pool_layout {plan.pool_layout!r} only counts. Pass storage=False, or use 'unified'.")
        self.plan = plan
        self.chain: Chain | None = _chain(layout, plan, options, device) if plan.is_shared else None
        self.allocator = _allocator(plan, device) if self.chain is None else _allocator_over(self.chain, plan)
        self.may_wait = options.may_move is not None
        self._may_move = options.may_move
        self._fence = options.fence
        self.pool: KVPool | ArenaKVPool | None = None
        self.window_pool: KVPool | ArenaKVPool | None = None
        self.state_pool: StatePool | ArenaStatePool | None = None
        if options.storage and isinstance(self.chain, PoolChain):
            specs = {name: pool.spec for name, pool in self.chain.pools.items()}
            self.pool = ArenaKVPool(layout, self.chain.arena, specs[FULL])
            if WINDOW in specs:
                self.window_pool = ArenaKVPool(layout, self.chain.arena, specs[WINDOW], kinds=BOUNDED)
            if STATE in specs:
                self.state_pool = ArenaStatePool(layout, self.chain.arena, specs[STATE])
        elif options.storage:
            slots = {name: side.num_pages * side.page_entries for name, side in plan.sides.items() if side.entry_bytes}
            if FULL in slots:
                self.pool = KVPool(layout, slots[FULL], plan.page_size, device=device)
            if WINDOW in slots:
                self.window_pool = KVPool(layout, slots[WINDOW], plan.page_size, kinds=BOUNDED, device=device)
            if STATE in slots:
                self.state_pool = StatePool(layout, slots[STATE], device=device)

    def may_move(self) -> bool:
        """Whether pages may move now, where they do at all."""
        return self._may_move is None or self._may_move()

    def num_entries(self, name: str) -> int:
        """Tokens or states that a side could hold by itself; 0 where there is no such side."""
        side = self.plan.sides.get(name)
        return 0 if side is None else self.allocator.pools[name].num_pages * side.page_entries

    def slots(self, slots: Integers) -> torch.Tensor:
        """Where full slots are now; see `KVCacheManager.physical_slots`."""
        if isinstance(self.allocator, ArenaAllocator | ArenaSWAAllocator):
            return self.allocator.physical_slots(slots)
        return to_device(to_host(slots), self.allocator.device).reshape(np.shape(slots))

    def window_slots(self, slots: Integers) -> torch.Tensor:
        """Where the window slots of full slots are now; see `KVCacheManager.window_slots`."""
        if isinstance(self.allocator, ArenaSWAAllocator):
            return self.allocator.physical_window_slots(slots)
        assert isinstance(self.allocator, WindowSide), "the caller has checked that there are windows"
        return self.allocator.window_slots(slots)

    def copy_state(self, source: int, target: int) -> None:
        """Copy the bytes of one state slot to another, behind the last forward pass."""
        if self.state_pool is not None:
            self.state_pool.copy(*self._state_places(source, target))

    def zero_state(self, slot: int) -> None:
        """Make a state slot's bytes those of an empty sequence, behind the last forward pass."""
        if self.state_pool is not None:
            self.state_pool.zero(*self._state_places(slot))

    def _state_places(self, *slots: int) -> list[torch.Tensor]:
        """Where state slots lie, for kernels that run behind the last forward pass."""
        assert self.allocator.states is not None, "there is a pool of them"
        if self.chain is not None:
            self.chain.order()
        elif self._fence is not None:
            self._fence()
        return [self.allocator.states.physical_slots([slot]) for slot in slots]


def _allocator(plan: MemoryPlan, device: str | torch.device) -> PagedAllocator | SWAAllocator:
    """The allocator of sides with bytes of their own."""
    sides, page_size = plan.sides, plan.page_size
    num_states = sides[STATE].num_pages if STATE in sides else None
    num_slots = sides[FULL].num_pages * page_size
    if WINDOW not in sides:
        return PagedAllocator(num_slots, page_size, num_states=num_states, device=device)
    num_window_slots = sides[WINDOW].num_pages * page_size
    return SWAAllocator(num_slots, num_window_slots, page_size, num_states=num_states, device=device)


def _allocator_over(chain: Chain, plan: MemoryPlan) -> ArenaAllocator | ArenaSWAAllocator:
    """The allocator of sides that share bytes."""
    if WINDOW in plan.sides:
        return (UnifiedMambaSWAAllocator if STATE in plan.sides else UnifiedSWAAllocator).over(chain)
    return UnifiedMambaAllocator.over(chain) if STATE in plan.sides else MultiEndedAllocator(chain, FULL)


def _chain(
    layout: ModelLayout, plan: MemoryPlan, options: ArenaOptions, device: str | torch.device
) -> PoolChain | SharedBytes:
    """What the sides share. Raises `LayoutError`, before any bytes are allocated, for less than a page of each."""
    one_of_each = sum(plan.page_bytes.values())
    if plan.total_bytes >= plan.sink_bytes + one_of_each:
        chain = _arena(layout, plan, options, device) if plan.has_arena else _counted(plan)
        if chain.holds(Amounts(dict.fromkeys(plan.sides, 1))):
            return chain
    # In an arena each pool has a grid of its own, which may cost it up to a page.
    enough = plan.sink_bytes + one_of_each * (2 if plan.has_arena else 1)
    raise LayoutError(
        f"{plan.total_bytes:,} bytes hold no page of {plan.page_size} tokens of each kind of {layout.name}. "
        f"{enough:,} are enough."
    )


def _arena(layout: ModelLayout, plan: MemoryPlan, options: ArenaOptions, device: str | torch.device) -> PoolChain:
    """States and full slots at the ends, where nothing slides; windows have an end if there are no states."""
    has_states = STATE in plan.sides
    specs = [token_spec(layout, WHOLE_SEQUENCE, name=FULL, place=Place.HIGH)]
    if WINDOW in plan.sides:
        place = Place.MIDDLE if has_states else Place.LOW
        specs.insert(0, token_spec(layout, BOUNDED, name=WINDOW, place=place))
    # Kernels multiply masked rows by 0, which does not hide what another pool's bytes may stand for.
    is_mixed = len(plan.sides) > 1
    specs = [replace(spec, page_size=plan.page_size, zero_on_take=is_mixed) for spec in specs]
    if has_states:
        specs.insert(0, state_spec(layout, name=STATE, place=Place.LOW))
    arena = ByteArena(plan.total_bytes, device, storage=options.storage)
    return PoolChain(arena, specs, eager=options.eager, fence=options.fence, may_move=options.may_move)


def _counted(plan: MemoryPlan) -> SharedBytes:
    pools = [
        SharedPool(name, side.page_bytes, plan.page_bytes[name], side.page_entries) for name, side in plan.sides.items()
    ]
    return SharedBytes(plan.total_bytes, pools, sink_bytes=plan.sink_bytes)
