"""Which window slots running requests still need.

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

from kvstead.engine.rows import Rows
from kvstead.kernels import rows as row_kernels
from kvstead.kernels.array_types import IntArray
from kvstead.model.window import Window
from kvstead.prefix import PrefixTree, WindowPool

_NEVER = 2**62  # tokens
_PIECES_PER_WINDOW = 2


class RowWindows:
    """The window side of a manager's rows.

    start: int64[rows + 1], a multiple of the page size each. prefix_cache: whether computed tokens may be shared later,
    in whole pages, so that their windows are kept for that long.
    """

    def __init__(self, rows: Rows, tree: PrefixTree, pool: WindowPool, window: Window, *, prefix_cache: bool) -> None:
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
