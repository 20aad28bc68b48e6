"""The memory of a plan: its allocator, its tensors, and where in them a slot is now."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kvstead.allocators import ArenaAllocator, ArenaSWAAllocator, WindowSide
from kvstead.arena import Chain, PoolChain
from kvstead.engine.memory import ArenaOptions, MemoryPlan, build_allocator
from kvstead.engine.room import FULL, STATE, WINDOW, Room, SeparateRoom, SharedRoom
from kvstead.errors import InvalidSize
from kvstead.kernels.arrays import Integers, to_device, to_host
from kvstead.model import BOUNDED, ModelLayout
from kvstead.pools import ArenaKVPool, ArenaStatePool, KVPool, StatePool
from kvstead.prefix import PrefixTree


class Memory:
    """What a plan stands for.

    `pool`, `window_pool` and `state_pool` are None where the model keeps nothing of the kind, or without storage.
    `chain` is None where every side has bytes of its own.
    """

    def __init__(
        self, layout: ModelLayout, plan: MemoryPlan, options: ArenaOptions, device: str | torch.device
    ) -> None:
        if options.storage and plan.is_shared and not plan.has_arena:
            raise InvalidSize(f"pool_layout {plan.pool_layout!r} only counts. Pass storage=False, or use 'unified'.")
        self.plan = plan
        self.allocator = build_allocator(layout, plan, options, device)
        self.chain: Chain | None = getattr(self.allocator, "chain", None)
        self._may_move = options.may_move
        self._fence = options.fence
        self.pool: KVPool | ArenaKVPool | None = None
        self.window_pool: KVPool | ArenaKVPool | None = None
        self.state_pool: StatePool | ArenaStatePool | None = None
        if options.storage and isinstance(self.chain, PoolChain):
            self._view(layout, self.chain)
        elif options.storage:
            self._allocate(layout, device)

    @property
    def may_wait(self) -> bool:
        """Whether pages may not move at times, so that what there is room for may have to wait for its place."""
        return self._may_move is not None

    def may_move(self) -> bool:
        """Whether pages may move now, where they do at all."""
        return self._may_move is None or self._may_move()

    def room(self, tree: PrefixTree, notice: Callable[[], None]) -> Room:
        """What of it could be had, beside the prefixes of a tree."""
        plan = self.plan
        if self.chain is None:
            return SeparateRoom(self.allocator, tree, notice)
        return SharedRoom(self.chain, tree, plan.total_bytes - plan.sink_bytes, plan.page_bytes, notice)

    def slots(self, slots: Integers) -> torch.Tensor:
        """Where full slots are now; see `KVCacheManager.physical_slots`."""
        if isinstance(self.allocator, (ArenaAllocator, ArenaSWAAllocator)):
            return self.allocator.physical_slots(slots)
        return to_device(to_host(slots), self.allocator.device).reshape(np.shape(slots))

    def window_slots(self, slots: Integers) -> torch.Tensor:
        """Where the window side of full slots is now; see `KVCacheManager.window_slots`."""
        if isinstance(self.allocator, ArenaSWAAllocator):
            return self.allocator.physical_window_slots(slots)
        assert isinstance(self.allocator, WindowSide), "there is a window side"
        return self.allocator.window_slots(slots)

    def copy_state(self, source: int, target: int) -> None:
        """Copy the bytes of one state slot to another, behind the last forward pass."""
        if self.state_pool is not None:
            self._order()
            self.state_pool.copy(*self._states(source, target))

    def zero_state(self, slot: int) -> None:
        """Make a state slot's bytes those of an empty sequence, behind the last forward pass."""
        if self.state_pool is not None:
            self._order()
            self.state_pool.zero(*self._states(slot))

    def _states(self, *slots: int) -> list[torch.Tensor]:
        assert self.allocator.states is not None, "there is a pool of them"
        return [self.allocator.states.physical_slots([slot]) for slot in slots]

    def _order(self) -> None:
        if self.chain is not None:
            self.chain.order()
        elif self._fence is not None:
            self._fence()

    def _view(self, layout: ModelLayout, chain: PoolChain) -> None:
        specs = {name: pool.spec for name, pool in chain.pools.items()}
        self.pool = ArenaKVPool(layout, chain.arena, specs[FULL])
        if WINDOW in specs:
            self.window_pool = ArenaKVPool(layout, chain.arena, specs[WINDOW], kinds=BOUNDED)
        if STATE in specs:
            self.state_pool = ArenaStatePool(layout, chain.arena, specs[STATE])

    def _allocate(self, layout: ModelLayout, device: str | torch.device) -> None:
        plan = self.plan
        if plan.token_bytes:
            self.pool = KVPool(layout, plan.num_slots, plan.page_size, device=device)
        if plan.window is not None:
            self.window_pool = KVPool(layout, plan.num_window_slots, plan.page_size, kinds=BOUNDED, device=device)
        if plan.state_bytes:
            self.state_pool = StatePool(layout, plan.num_states, device=device)
