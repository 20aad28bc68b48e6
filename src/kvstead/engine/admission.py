"""Whether a request may run on the memory: counted in pages, with the growth of running requests in mind.

    pages that could be had (free, or cached and not locked)
    |---- rest of the prompt ----|-- promised to running requests --|-- headroom of this one --|   must fit in it

The window side is counted apart: a request never needs more of it at once than a window and its ends, however long it
is, but a long prompt should have capacity for chunks of some size beside that. What is promised is not taken yet; a
decode step that does not fit nevertheless retracts a request.
"""

from __future__ import annotations

import numpy as np

from kvstead.engine.manager import KVCacheManager
from kvstead.engine.request import Request
from kvstead.engine.running import RunningRequests
from kvstead.model.window import Window
from kvstead.pages.amounts import FULL, STATE, WINDOW, Amounts

_STEPS = 16  # about as many chunks for a prompt that has the least capacity on the window side


class Admission:
    """Counts for one manager.

    decode_headroom: tokens of growth kept in reserve for every running request. overlap: whether a step is planned
    before the last one has been processed, for which a row may need one window page more.
    """

    def __init__(self, manager: KVCacheManager, decode_headroom: int, *, overlap: bool = False) -> None:
        self.manager = manager
        self.decode_headroom = decode_headroom
        self._capacity = manager.capacity
        self._memory = manager.memory
        self._rows = manager.rows
        window = manager.window
        self._most_windows = 0 if window is None else window.pages(manager.page_size) - (not overlap)
        # The last refusal: `rows.num_released` then, whether pages could have moved for it, by how much `slack` was
        # too small, and its least since.
        self._refused_at = -1
        self._could_move = True
        self._lacking = 0
        self._least = 0

    def why_never(self, request: Request) -> str:
        """Why a request cannot be served by this memory even alone; empty if it can."""
        manager = self.manager
        # The last token is sampled but its cache entries are never computed.
        pages = manager.pages(request.max_length - 1)
        windows = 0 if manager.window is None else min(pages, manager.window.pages(manager.page_size))
        demand = self._demand(pages, windows)
        wants = f"{request.prompt.size} prompt tokens and {request.max_new_tokens} new ones"
        texts = {side: f"{count} {manager.plan.sides[side].text}" for side, count in demand.items()}
        for side, count in demand.items():
            if not self._capacity.holds(Amounts({side: count})):
                return f"{wants} need {texts[side]}; the memory has {manager.allocator.pools[side].num_pages}"
        if not self._capacity.holds(demand):
            together = " and ".join(text for side, text in texts.items() if demand[side])
            return f"{wants} need {together}; the memory does not hold them together"
        if request.max_length > manager.table.width:
            return f"{wants} exceed the longest row of {manager.table.width}"
        return ""

    def fits(self, request: Request, running: RunningRequests) -> bool:
        """Whether the rest of the prompt fits beside what is promised to running requests.

        A request that would run alone needs its prompt only.
        """
        manager = self.manager
        known = int(request.tokens.size)
        seen = manager.peek(request.tokens, namespace=request.namespace, keys=request.keys)
        pages = manager.pages(known) - seen.num_cached // manager.page_size
        windows = 0 if manager.window is None else 1
        if running.active:
            pages += manager.pages(self._with_headroom(request)) - manager.pages(known)
            pages += self._promised(running)
            if manager.window is not None:
                windows = self._window_pages(manager.window, request, seen.num_cached)
                windows += self._promised_windows(running)
        self._lacking = self._capacity.lack(self._demand(pages, windows), seen.evictable)
        if self._lacking == 0:
            self.forget_refusal()
            return True
        self._refused_at = self._rows.num_released
        self._could_move = self._memory.may_move()
        self._least = self._capacity.slack()
        return False

    def is_hopeless(self) -> bool:
        """Whether too little has come back since a request was refused to look at it again. O(1).

        Most comes back when requests end; the window side also when a prompt's chunk is computed. Where pages could
        not move at the refusal and may now, the request is looked at again.
        """
        if self._refused_at != self._rows.num_released or (not self._could_move and self._memory.may_move()):
            return False
        slack = self._capacity.slack()
        self._least = min(self._least, slack)
        return slack - self._least < self._lacking

    def forget_refusal(self) -> None:
        """Look at the next request in full: another one is the first of the queue."""
        self._refused_at = -1

    def _demand(self, pages: int, windows: int) -> Amounts:
        """A request's pages, window pages and state, for the sides that the memory has."""
        wanted = Amounts({FULL: pages, WINDOW: windows, STATE: 1})
        return Amounts({side: wanted[side] for side in self.manager.plan.sides})

    def _promised(self, running: RunningRequests) -> int:
        """Pages that running requests will take: rests of prompts, and headroom."""
        page_size, lengths = self.manager.page_size, self._rows.table.lengths
        promised = 0
        for request in running.prefilling:
            promised += self.manager.pages(self._with_headroom(request)) - self.manager.pages(int(lengths[request.row]))
        decoding = running.decoding()
        have = lengths[decoding]
        grown = np.minimum(have + self.decode_headroom, running.target[decoding])
        return promised + int((-(-grown // page_size) + -have // page_size).sum())

    def _window_pages(self, window: Window, request: Request, num_cached: int) -> int:
        """Window pages that a request takes beside what it shares: its window, and what fills it by chunks."""
        pages, page_size = self.manager.pages, self.manager.page_size
        start = window.needed_from(num_cached) // page_size
        rest = pages(int(request.tokens.size)) - num_cached // page_size - self._most_windows
        most = self._most_windows + max(0, min(rest // _STEPS, pages(window.span)))
        return min(pages(self._with_headroom(request)) - start, most) - (num_cached // page_size - start)

    def _promised_windows(self, running: RunningRequests) -> int:
        """Window pages that running requests will take until their windows are full."""
        manager = self.manager
        rows = np.array(list(running.active), dtype=np.int64)
        have = self._rows.table.lengths[rows]
        grown = np.minimum(have + self.decode_headroom, running.target[rows])
        starts = manager.window_start[rows] // manager.page_size
        held = -(-have // manager.page_size) - starts
        full = np.minimum(-(-grown // manager.page_size) - starts, self._most_windows)
        return int(np.maximum(full - held, 0).sum())

    def _with_headroom(self, request: Request) -> int:
        return min(int(request.tokens.size) + self.decode_headroom, request.max_length)
