"""What can be read of a manager's memory: sizes, counts, and where things lie."""

from __future__ import annotations

import torch

from kvstead.allocators import WindowSide
from kvstead.engine.memory_pools import Memory
from kvstead.engine.states import RowStates
from kvstead.engine.stats import MemoryStats, memory_stats
from kvstead.engine.windows import RowWindows
from kvstead.errors import InvalidSize
from kvstead.kernels.arrays import Integers, to_host
from kvstead.model import ModelLayout
from kvstead.pools import RequestTable
from kvstead.prefix import Evicted, PrefixTree


class MemoryView:
    """The memory of a plan, the rows on it and the prefixes cached in it.

    num_slots, num_window_slots, num_states: what each side could hold; one by itself, where sides share memory.
    token_bytes, window_token_bytes, state_bytes: what one takes. `pool`, `window_pool`, `state_pool`: the tensors, None
    without storage or where the model keeps nothing of the kind. `chain` is what sides share, None where each has bytes
    of its own. first_shortage: the share of the bytes that was live or cached when there was no room for a demand
    for the first time, before anything was evicted for it; None until then.
    """

    def __init__(self, layout: ModelLayout, memory: Memory, table: RequestTable, policy: str) -> None:
        plan, allocator = memory.plan, memory.allocator
        self.layout, self.memory, self.plan, self.table = layout, memory, plan, table
        self.window, self.split = plan.window, plan.split
        self.page_size, self.total_bytes = plan.page_size, plan.total_bytes
        self.token_bytes, self.window_token_bytes = plan.token_bytes, plan.window_token_bytes
        self.state_bytes = plan.state_bytes
        self.allocator, self.chain = allocator, memory.chain
        self.num_slots = allocator.size
        self.num_window_slots = allocator.swa_size if isinstance(allocator, WindowSide) else 0
        self.num_states = allocator.states.size if allocator.states else 0
        self.pool, self.window_pool, self.state_pool = memory.pool, memory.window_pool, memory.state_pool
        self.tree = PrefixTree(allocator, policy=policy, window=plan.window, states=allocator.states)
        self.room = memory.room(self.tree, self._notice_shortage)
        self.row_windows: RowWindows | None = None
        self.row_states: RowStates | None = None
        self.first_shortage: float | None = None

    def physical_slots(self, slots: Integers) -> torch.Tensor:
        """Where the entries of slots lie now: rows of `pool`, int64 of the same shape.

        The slots themselves, but in an arena; good until pages are taken, which may move others.
        """
        return self.memory.slots(slots)

    def window_slots(self, slots: Integers) -> torch.Tensor:
        """Where the window side of full slots lies now: int64 of the same shape, 0 (padding) where there is none.

        -1 stays -1 but in an arena, where it is 0. Good until pages are taken, which may move others. Raises
        `InvalidSize` where no layer has a window.
        """
        if self.row_windows is None:
            raise InvalidSize(f"{self.layout.name} has no window slots. Only models with windows or chunks do.")
        return self.memory.window_slots(slots)

    def state_slots(self, rows: Integers) -> torch.Tensor:
        """Where the recurrent states of rows lie now: rows of `state_pool`, int64[rows] on the device.

        Good until pages are taken. Raises `InvalidSize` where no layer has a state, `StaleRow`.
        """
        if self.row_states is None:
            raise InvalidSize(f"{self.layout.name} keeps no recurrent states. Only models with such layers do.")
        which = to_host(rows)
        for row in which.tolist():
            self.table.require_live(row)
        return self.row_states.allocator.physical_slots(self.row_states.slot[which])

    @property
    def evicted(self) -> Evicted:
        """All that was evicted so far."""
        return self.tree.evicted

    def pages(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens of one row take."""
        return -(-num_tokens // self.page_size)

    def live_tokens(self) -> int:
        """Slots that running requests hold, shared prefixes included, in whole pages. O(1)."""
        return self.allocator.live_size() - self.tree.evictable_tokens

    def window_live_tokens(self) -> int:
        """Window slots that running requests hold, in whole pages. O(1)."""
        if self.row_windows is None:
            return 0
        return self.row_windows.allocator.swa_live_size() - self.tree.window_evictable_tokens

    def live_states(self) -> int:
        """States that running requests hold, copies that are not cached yet included. O(1)."""
        states = self.allocator.states
        return 0 if states is None else states.live_size() - self.tree.evictable_states

    @property
    def num_state_copies(self) -> int:
        """States copied so far."""
        return self.row_states.num_copies if self.row_states else 0

    def stats(self) -> MemoryStats:
        """Bytes by state and side, adding up to `total_bytes`. O(1)."""
        return memory_stats(self)

    def _notice_shortage(self) -> None:
        """Remember how full the memory was when it was short for the first time."""
        if self.first_shortage is None:
            stats = self.stats()
            self.first_shortage = (stats.live + stats.cached) / stats.total_bytes
