"""How rows get pages to grow: windows slide, rows let go what they no longer need, cached prefixes are evicted."""

from __future__ import annotations

from kvstead.engine.capacity import FITS_ONLY_AFTER_A_REQUEST_ENDS, capacity_of
from kvstead.engine.memory import Memory
from kvstead.engine.row_states import RowStates
from kvstead.engine.row_windows import RowWindows
from kvstead.engine.rows import Rows
from kvstead.kernels.array_types import IntArray
from kvstead.pages.amounts import FULL, STATE, WINDOW, Amounts
from kvstead.prefix import PrefixTree, window_pool


class RowCapacity:
    """Makes capacity for the rows of one manager.

    capacity: of the memory and the tree. windows, states: those of its rows, None where the model has none.
    state_interval, prefix_cache: as for `KVCacheManager`.
    """

    def __init__(
        self, memory: Memory, tree: PrefixTree, rows: Rows, state_interval: int, *, prefix_cache: bool
    ) -> None:
        self.windows: RowWindows | None = None
        self.states: RowStates | None = None
        self.capacity = capacity_of(memory, tree)
        self._sides = [FULL]  # those on which a page of a row has a page
        if memory.plan.window is not None:
            pool = window_pool(memory.allocator)
            self.windows = RowWindows(rows, tree, pool, memory.plan.window, prefix_cache=prefix_cache)
            self._sides.append(WINDOW)
        if memory.allocator.states is not None:
            self.states = RowStates(rows, tree, memory, memory.allocator.states, self.capacity, state_interval)
        self._rows = rows
        self._is_shared = memory.chain is not None

    def make(self, demand: Amounts) -> bool:
        """Evict until the demand fits; False, and nothing is evicted, where that would not do."""
        return self.capacity.make(demand) or (self._let_go(demand) and self.capacity.make(demand))

    def make_pages(self, rows: IntArray, num_pages: int) -> bool:
        """Make capacity for new pages of rows that are about to grow."""
        if self.windows is not None:
            self.windows.slide(rows)
        return num_pages == 0 or self.make(self._pages(num_pages))

    def growth(self, row: int, num_tokens: int) -> int:
        """By how many tokens, `num_tokens` at most, a live row could grow now."""
        rows = self._rows
        have = int(rows.table.lengths[row])
        wanted = rows.pages(have + num_tokens) - rows.pages(have)
        pages = self._most(wanted)
        if pages < wanted and self._let_go(self._pages(wanted)):
            pages = self._most(wanted)
        return min(num_tokens, -have % rows.page_size + pages * rows.page_size)

    def window_pages(self) -> int:
        """Window pages that could be allocated now, once rows have released what they no longer need."""
        if self.windows is None:
            return 0
        self.windows.reclaim()
        return self.capacity.most(Amounts({WINDOW: 1}))

    def _most(self, num_pages: int) -> int:
        """How many new pages of rows, `num_pages` at most, could be had now."""
        return num_pages if self.capacity.has(self._pages(num_pages)) else self.capacity.most(self._pages(1))

    def _pages(self, num_pages: int) -> Amounts:
        """Pages of rows, on each side that has them."""
        return Amounts(dict.fromkeys(self._sides, num_pages))

    def _let_go(self, demand: Amounts) -> bool:
        """Have rows release what they do not need, if that may help; whether it may have."""
        may_help = self._is_shared or demand[STATE] > 0
        has_dropped = may_help and self.states is not None and self.states.drop_kept()
        if self.windows is None or self.capacity.lack(demand) >= FITS_ONLY_AFTER_A_REQUEST_ENDS:
            return has_dropped
        self.windows.reclaim()
        return True
