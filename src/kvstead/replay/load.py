"""Whether requests came faster than they were served: since when, by how much, and for want of what."""

from __future__ import annotations

from collections import defaultdict

from kvstead.replay.cost import RooflineCost, StepCost
from kvstead.replay.result import Overload

MEMORY, COMPUTE, MAX_RUNNING = "memory", "compute", "max_running"

_LEAST_FACTOR = 1.1  # of the trace's time; below that a queue is a burst that is worked off
_SATURATED = 1.0  # of the trace's time in arithmetic alone: no memory helps then


class LoadMeter:
    """Notes at every step whether requests wait, and for what: O(1). last_arrival: of the trace, in seconds."""

    def __init__(self, last_arrival: float) -> None:
        self._last_arrival = last_arrival
        self._seconds_waited: defaultdict[str, float] = defaultdict(float)
        self._clock_of_empty_queue = 0.0

    def step(self, clock: float, seconds: float, *, waiting: int, wants: str) -> None:
        """Note a step that ended at `clock`. wants: what those that wait were not admitted for."""
        if waiting:
            self._seconds_waited[wants] += seconds
        elif clock <= self._last_arrival:
            self._clock_of_empty_queue = clock

    def overload(self, clock: float, cost: StepCost) -> Overload | None:
        """The overload at the end of a replay, if there was one; a trace that arrives at one time has none."""
        last_arrival = self._last_arrival
        since, waited = self._clock_of_empty_queue, sum(self._seconds_waited.values())
        if last_arrival <= 0 or clock < _LEAST_FACTOR * last_arrival or not waited:
            return None
        shares = {what: seconds / waited for what, seconds in self._seconds_waited.items()}
        arithmetic = traffic = 0.0
        if isinstance(cost, RooflineCost):
            arithmetic, traffic = cost.compute_seconds, cost.traffic_seconds
        wants = COMPUTE if arithmetic >= _SATURATED * last_arrival else max(shares, key=shares.__getitem__)
        bound = "" if not arithmetic + traffic else "compute" if arithmetic >= traffic else "bandwidth"
        return Overload(since, clock / last_arrival, arithmetic / last_arrival, shares, wants, bound)
