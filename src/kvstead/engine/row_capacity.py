"""How rows get pages to grow: windows slide, rows let go what they no longer need, cached prefixes are evicted.

One row, window of 4, page size 2, a prefix of 4 tokens taken from the cache, 9 tokens computed:

    position     0  1 | 2  3 | 4  5 | 6  7 | 8  9
                 '-- tree --'  '--- the row's own ---'
    window side  .  .   .  .   w  w   w  w   w  w       start = 4

Below `protected` the window side is the tree's, kept by the row's lock from `start` on; above, it is the row's own. So
one number for each row says both, and it only grows. It moves when the row is about to grow (what was computed is
shared with the tree by then); what falls out of the window is released at once.
"""

from __future__ import annotations

import numpy as np

from kvstead.engine.capacity import FITS_ONLY_AFTER_A_REQUEST_ENDS, capacity_of
from kvstead.engine.copy_record import CopyKind, CopyRecord
from kvstead.engine.memory import Memory
from kvstead.engine.row_states import RowStates, interval_of
from kvstead.engine.rows import Rows
from kvstead.kernels import rows as row_kernels
from kvstead.kernels.array_types import IntArray
from kvstead.model.window import Window
from kvstead.pages.amounts import FULL, STATE, WINDOW, Amounts
from kvstead.prefix import PrefixTree, WindowPool, window_pool

_NEVER = 2**62  # tokens
_PIECES_PER_WINDOW = 2
_LEAST_CHUNK = 512  # tokens


class RowWindows:
    """The window side of a manager's rows.

    start: int64[rows + 1], a multiple of the page size each. prefix_cache: whether computed tokens may be shared later,
    in whole pages, so that their windows are kept for that long. interval: tokens, whole pages, 0 for none. branch:
    int64[rows + 1], the tokens found for a row some of whose windows were gone, else 0. record: of windows that were
    kept for others to continue from, and used.
    """

    def __init__(
        self, rows: Rows, tree: PrefixTree, pool: WindowPool, window: Window, interval: int, *, prefix_cache: bool
    ) -> None:
        self.record = CopyRecord()
        self.branch: IntArray = np.zeros(rows.table.num_rows + 1, dtype=np.int64)
        self._interval = interval
        self.start: IntArray = np.zeros(rows.table.num_rows + 1, dtype=np.int64)
        self._rows = rows
        self._tree = tree
        self._pool = pool
        self._window = window
        self._prefix_cache = prefix_cache
        self._pages: IntArray = np.empty(2 * rows.table.num_rows, dtype=np.int64)
        self._loosened: IntArray = np.empty(2 * rows.table.num_rows, dtype=np.int64)

    def open(self, row: int) -> None:
        """Note that `row` has just locked a prefix of `protected` tokens; the lock keeps no more than is needed."""
        needed = self._window.needed_from(int(self._rows.protected[row]))
        self.start[row] = needed - needed % self._rows.page_size

    def ends(self, row: int, end: int) -> list[tuple[int, CopyKind]]:
        """Where up to `end`, in tokens not cached yet, sequences are expected to continue from the row's windows.

        Where the prompt parts from what was cached, at its last whole page and its last multiple of the interval, and
        at the end of the answer; once windows were evicted, only where requests do continue.
        """
        rows = self._rows
        start, last = int(rows.protected[row]), int(rows.prompt[row]) - 1
        if end == start:
            return []
        last -= last % rows.page_size
        places = [(int(self.branch[row]), CopyKind.BRANCH)]
        if start >= last:
            places.append((end, CopyKind.ANSWER))
        elif end >= last:
            grid = last - last % self._interval if self._interval else 0
            places += [(grid, CopyKind.INTERVAL), (last, CopyKind.PROMPT)]
        takes_all = (start < last <= end and self.record.begins_probe()) or not self._tree.evicted.pages[WINDOW]
        has_grid = 0 < self._interval <= last
        taken = {
            at: kind
            for at, kind in reversed(places)  # the first of those at one place counts
            if start < at <= end and (takes_all or self.record.is_worth(kind, has_grid=has_grid))
        }
        return sorted(taken.items())

    def slide(self, rows: IntArray, grain: int = _NEVER) -> None:
        """Release what falls out of the rows' windows. O(rows).

        grain: of the tree's slots, a stretch is released when it has that many tokens, or when the row needs none.
        """
        has, start = self._rows, self.start
        while True:
            num_pages, num_loosened = row_kernels.slide_windows(
                has.table.slots,
                has.computed,
                has.protected,
                start,
                rows,
                has.page_size,
                self._window.span,
                self._window.is_chunked,
                self._prefix_cache,
                grain,
                self._pages,
                self._loosened,
            )
            if num_loosened >= 0:
                break
            self._pages = np.empty(num_pages, dtype=np.int64)
        if num_pages:
            self._pool.free_window_pages(self._pages[:num_pages])
        for row, since in self._loosened[: 2 * num_loosened].reshape(-1, 2).tolist():
            self._tree.loosen(has.node[row], since, int(start[row]))

    def reclaim(self) -> None:
        """Release everything that no row needs any more, of the tree's slots too."""
        self.slide(self._rows.table.live_rows(), self._rows.page_size)

    def reclaim_pieces(self) -> None:
        """`reclaim`, but of the tree's slots only pieces of half a window or more: each piece becomes a node."""
        self.slide(self._rows.table.live_rows(), max(self._window.span // _PIECES_PER_WINDOW, 1))


class RowCapacity:
    """Makes capacity for the rows of one manager.

    capacity: of the memory and the tree. windows, states: those of its rows, None where the model has none.
    state_interval, prefix_cache: as for `KVCacheManager`.
    """

    def __init__(
        self, memory: Memory, tree: PrefixTree, rows: Rows, state_interval: int | None, *, prefix_cache: bool
    ) -> None:
        self.windows: RowWindows | None = None
        self.states: RowStates | None = None
        self.capacity = capacity_of(memory, tree)
        interval = interval_of(state_interval, rows)
        self._sides = [FULL]  # those on which a page of a row has a page
        if memory.plan.window is not None:
            pool = window_pool(memory.allocator)
            self.windows = RowWindows(rows, tree, pool, memory.plan.window, interval, prefix_cache=prefix_cache)
            self._sides.append(WINDOW)
        if memory.allocator.states is not None:
            self.states = RowStates(rows, tree, memory, memory.allocator.states, self.capacity, interval)
        self._rows, self._tree = rows, tree
        self._least_chunk = max(_LEAST_CHUNK, memory.plan.window.span) if memory.plan.window is not None else 0
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

    def chunk_end(self, row: int, end: int) -> int:
        """Where a chunk of a live row that could reach `end` should end: there, or before it."""
        if self.windows is not None:
            end = self._sparing_end(row, end)
        return self.states.chunk_end(row, end) if self.states is not None else end

    def window_pages(self) -> int:
        """Window pages that could be allocated now, once rows have released what they no longer need."""
        if self.windows is None:
            return 0
        self.windows.reclaim()
        return self.capacity.most(Amounts({WINDOW: 1}))

    def _sparing_end(self, row: int, end: int) -> int:
        """How far the row can go without the windows near which a cached sequence ended, at least by a short chunk."""
        start, page_size = int(self._rows.table.lengths[row]), self._rows.page_size
        if end - start <= self._least_chunk:
            return end
        assert self.windows is not None, "the model has windows"
        self.windows.slide(np.array([row]))
        spare = self.capacity.most(Amounts({WINDOW: 1}), Amounts({WINDOW: self._tree.spare_window_pages}))
        return min(end, max(start + -start % page_size + spare * page_size, start + self._least_chunk))

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
