"""Which window slots running requests still need.

One row, window of 4, page size 2, a prefix of 4 tokens taken from the cache, 9 tokens computed:

    position     0  1 | 2  3 | 4  5 | 6  7 | 8  9
                 '-- tree --'  '--- the row's own ---'
    window side  .  .   .  .   w  w   w  w   w  w       window_start = 4

Below `protected` the window side is the tree's, kept by the row's lock from `window_start` on; above, it is the row's
own. So one number a row says both, and it only grows. It moves when the row is about to grow (what was computed is
shared with the tree by then); what falls out is given back at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvstead.allocators import WindowSide
from kvstead.kernels import rows as row_kernels
from kvstead.kernels.array_types import IntArray

_NEVER = 2**62  # tokens
_PIECES_A_WINDOW = 2

if TYPE_CHECKING:
    from kvstead.engine.manager import KVCacheManager


class RowWindows:
    """The window side of a manager's rows. start: int64[rows + 1], a multiple of the page size each."""

    def __init__(self, manager: KVCacheManager, allocator: WindowSide) -> None:
        assert manager.window is not None, "an allocator with two sides is for a model with a window"
        self.allocator = allocator
        self._manager = manager
        self._window = manager.window
        self.start: IntArray = np.zeros(manager.table.num_rows + 1, dtype=np.int64)
        self._pages: IntArray = np.empty(2 * manager.table.num_rows, dtype=np.int64)
        self._loosened: IntArray = np.empty(2 * manager.table.num_rows, dtype=np.int64)

    def open(self, row: int) -> None:
        """Note that `row` has just locked a prefix of `protected` tokens; the lock keeps no more than is needed."""
        needed = self._window.needed_from(int(self._manager.protected[row]))
        self.start[row] = needed - needed % self._manager.page_size

    def slide(self, rows: IntArray) -> None:
        """Give back what falls out of the rows' windows; of the tree's, once nothing of it is needed. O(rows)."""
        self._slide(rows, _NEVER)

    def reclaim(self) -> None:
        """`slide` for every row, and of the tree's slots too all that is not needed any more."""
        self._slide(self._manager.table.live_rows(), self._manager.page_size)

    def reclaim_pieces(self) -> None:
        """`reclaim`, but leaving a row's part of the tree whole while less than a good piece of it could go.

        Each piece is a node for the time being.
        """
        self._slide(self._manager.table.live_rows(), max(self._window.span // _PIECES_A_WINDOW, 1))

    def _slide(self, rows: IntArray, grain: int) -> None:
        manager = self._manager
        while True:
            num_pages, num_loosened = row_kernels.slide_windows(
                manager.table.slots,
                manager.computed,
                manager.protected,
                self.start,
                rows,
                manager.page_size,
                self._window.span,
                self._window.is_chunked,
                manager.prefix_cache,
                grain,
                self._pages,
                self._loosened,
            )
            if num_loosened >= 0:
                break
            self._pages = np.empty(num_pages, dtype=np.int64)
        if num_pages:
            self.allocator.free_window_pages(self._pages[:num_pages])
        for row, start in self._loosened[: 2 * num_loosened].reshape(-1, 2).tolist():
            manager.tree.loosen(manager.lock_of(row), start, int(self.start[row]))
