"""Counts while a replay runs, and makes its result of the counts."""

from __future__ import annotations

from kvstead.engine import KVCacheManager, Request, Scheduler
from kvstead.engine.meter import MemoryMeter, bytes_by_kind
from kvstead.engine.stats import FULL_SIDE, STATE_SIDE, WINDOW_SIDE
from kvstead.replay.load import LoadMeter
from kvstead.replay.result import (
    Figures,
    MemoryFigures,
    Overload,
    PrefixFigures,
    ReplayResult,
    RequestFigures,
)
from kvstead.replay.served import Served
from kvstead.replay.slo import Slo
from kvstead.replay.trace import Trace

_TIMELINE_POINTS = 2000
_FIRST_GAP_S = 0.05
_FREE_STATES = ("free", "hole", "gap")
_EVICTED = {FULL_SIDE: "evicted_full_tokens", WINDOW_SIDE: "evicted_window_tokens", STATE_SIDE: "evicted_states"}
_SIDE_COLUMNS = {WINDOW_SIDE: ("live", "cached", "free"), STATE_SIDE: ("live", "cached")}

TIMELINE_COLUMNS = (
    "clock_s",
    "running",
    "waiting",
    "finished",
    "live_bytes",
    "cached_bytes",
    "free_bytes",
    "hit_tokens",
    "prompt_tokens",
    *(f"{side}_{state}_bytes" for side, states in _SIDE_COLUMNS.items() for state in states),
    "retractions",
    *_EVICTED.values(),
    "queue_wait_s",
)
"""Columns of a timeline.

Bytes that name no side are those of the whole memory. Retractions and evictions are counted since the start;
queue_wait_s is how long the first of the queue has waited.
"""


class Recorder:
    """Counts while a replay runs; O(1) a step.

    spend: call it at every step with the seconds that the step takes, while the memory is as the step uses it.
    """

    def __init__(self, trace: Trace, manager: KVCacheManager) -> None:
        self._trace = trace
        self._manager = manager
        self._meter = MemoryMeter(manager)
        self.spend = self._meter.spend  # the meter's own method, to save a call
        self.num_requests = len(trace)
        self.served = Served(trace)
        self.load = LoadMeter(float(trace.arrivals[-1]))
        self._rejections: list[str] = []
        self._timeline: list[tuple[float, ...]] = []
        self._gap = _FIRST_GAP_S
        self._next_sample = 0.0
        self._clock = 0.0
        self._hit_tokens = 0
        self._lost_tokens = 0
        self._prompt_tokens = 0
        self.num_steps = 0

    @property
    def num_done(self) -> int:
        """The number of requests that have ended, finished or rejected."""
        return self.served.num_finished + len(self._rejections)

    def reject(self, request: Request) -> None:
        """Note a request that can never fit."""
        self._rejections.append(f"request {request.request_id}: {request.reason}")

    def step(self, clock: float, scheduler: Scheduler | None = None) -> None:
        """Note that a step ended at `clock`. scheduler: None where one request runs at a time."""
        self.num_steps += 1
        self._clock = clock
        if clock >= self._next_sample:
            self._sample(scheduler)

    def start(self, request: int, num_cached: int, num_dead: int, clock: float) -> None:
        """Note a request's first token. num_cached, num_dead: tokens of its prompt that were found, used and unused."""
        self.served.start(request, num_cached, clock)
        self._hit_tokens += num_cached
        self._lost_tokens += num_dead
        self._prompt_tokens += int(self._trace.prompt_lens[request])

    def result(
        self,
        *,
        wall_s: float,
        memory_s: float,
        retracted: int,
        interrupted: bool,
        overload: Overload | None = None,
        slo: Slo | None = None,
    ) -> ReplayResult:
        """The figures of everything noted so far.

        wall_s: the replay's wall time. memory_s: the part of it inside the manager. retracted: events. slo: a goal to
        count requests by.
        """
        output_tokens = self.served.num_tokens
        figures = Figures(
            page_size=self._manager.page_size,
            requests=RequestFigures(
                total=self.num_requests,
                finished=self.served.num_finished,
                rejected=len(self._rejections),
                retracted=retracted,
                aborted=0,  # no request of a trace is aborted
            ),
            prefix=self._prefix(),
            memory=self._memory(),
            latency_s=self.served.latencies(),
            throughput_tok_s=_per(output_tokens, self._clock),
            steps=self.num_steps,
            memory_us_per_step=_per(memory_s * 1e6, self.num_steps),
            wall_s=wall_s,
            output_tokens=output_tokens,
            clock_s=self._clock,
            interrupted=interrupted,
            overload=overload,
            goodput=None if slo is None else self.served.goodput(slo, self._clock),
        )
        rejections, timeline = tuple(self._rejections), tuple(self._timeline)
        return ReplayResult(self._trace, figures, rejections, timeline, self.served.columns())

    def _prefix(self) -> PrefixFigures:
        hits, lost, prompts = self._hit_tokens, self._lost_tokens, self._prompt_tokens
        evicted, has_states = self._manager.evicted, self._manager.state_bytes > 0
        page_size = self._manager.page_size
        return PrefixFigures(
            hit_tokens=hits,
            prompt_tokens=prompts,
            hit_rate=hits / prompts if self._trace.has_reuse and prompts else None,
            found_tokens=hits + lost,
            lost_to_dead_windows=0 if has_states else lost,
            lost_to_missing_states=lost if has_states else 0,
            evicted_tokens={side: evicted.pages[side] * page_size for side in (FULL_SIDE, WINDOW_SIDE)},
            tombstoned_tokens=evicted.alone[WINDOW_SIDE] * page_size,
            tombstone_tokens=self._manager.tree.num_tombstone_tokens,
            evicted_states=evicted.pages[STATE_SIDE],
            evicted_states_alone=evicted.alone[STATE_SIDE],
        )

    def _memory(self) -> MemoryFigures:
        manager, meter, chain = self._manager, self._meter, self._manager.chain
        by_side = meter.mean_by_side()
        by_state = meter.mean_by_state(by_side)
        return MemoryFigures(
            total_bytes=manager.total_bytes,
            peak_live_bytes=meter.peak_live_bytes,
            mean_live_bytes=by_state["live"],
            peak_bytes=meter.peak_bytes,
            mean_bytes=by_state["live"] + by_state["cached"],
            by_state=by_state,
            free=sum(by_state.get(state, 0) for state in _FREE_STATES),
            by_kind=bytes_by_kind(manager.layout, by_side),
            by_side=by_side,
            split=manager.split,
            bytes_moved=0 if chain is None else chain.bytes_moved,
            moves_per_step=0.0 if chain is None else _per(chain.num_moves, self.num_steps),
            state_copies=manager.num_state_copies,
            usable_at_first_refusal=manager.first_shortage,
        )

    def _sample(self, scheduler: Scheduler | None) -> None:
        """Add a sample to the timeline; when it grows long, drop every second one and sample half as often."""
        stats, evicted = self._manager.stats(), self._manager.evicted.pages
        queue = () if scheduler is None else scheduler.waiting
        running = 1 if scheduler is None else scheduler.num_running
        counts = (self._clock, running, len(queue), self.served.num_finished)
        retracted = 0 if scheduler is None else scheduler.num_retractions
        page_size = self._manager.page_size
        gone = (evicted[side] * (1 if side == STATE_SIDE else page_size) for side in _EVICTED)
        wait = self._clock - float(self.served.arrivals[queue[0].number]) if queue else 0.0
        held = (stats.live, stats.cached, stats.free)
        columns = ((stats.by_side.get(side), state) for side, states in _SIDE_COLUMNS.items() for state in states)
        of_sides = (getattr(side, state, 0) for side, state in columns)  # 0 for a side that the memory does not have
        hits = (self._hit_tokens, self._prompt_tokens)
        self._timeline.append((*counts, *held, *hits, *of_sides, retracted, *gone, wait))
        if len(self._timeline) >= 2 * _TIMELINE_POINTS:
            self._timeline = self._timeline[::2]
            self._gap = max(2 * self._gap, self._clock / _TIMELINE_POINTS)  # steps may be longer than the gap
        self._next_sample = self._clock + self._gap


def _per(amount: float, count: float) -> float:
    """`amount / count`; 0 where nothing was counted."""
    return amount / count if count else 0.0
