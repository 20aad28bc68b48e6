"""When the requests of a trace arrive: at the trace's own times, or after the turn before has ended."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

import numpy as np

from kvstead.replay.trace import Trace


class Arrivals:
    """The requests that are still to arrive. `time`: when the next one does, infinite at the end of the trace."""

    def __init__(self, trace: Trace) -> None:
        self._delays = trace.delays
        first = np.flatnonzero(trace.follows < 0)
        self._first = list(zip(trace.arrivals[first].tolist(), first.tolist(), strict=True))[::-1]  # the next one last
        turns = np.flatnonzero(trace.follows >= 0)
        self._turn_after: dict[int, int] = dict(zip(trace.follows[turns].tolist(), turns.tolist(), strict=True))
        self._turns: list[tuple[float, int]] = []  # a heap: turns whose time is known
        self.time = inf
        self._look_ahead()

    def pop(self) -> int:
        """The next request, which arrives at `time`."""
        first_time = self._first[-1][0] if self._first else inf
        _, request = self._first.pop() if self.time == first_time else heappop(self._turns)
        self._look_ahead()
        return request

    def end(self, request: int, clock: float) -> None:
        """Note that a request has ended, finished or not: the turn after it can come."""
        turn = self._turn_after.pop(request, None)
        if turn is not None:
            heappush(self._turns, (clock + float(self._delays[turn]), turn))
            self._look_ahead()

    def _look_ahead(self) -> None:
        self.time = min(self._first[-1][0] if self._first else inf, self._turns[0][0] if self._turns else inf)
