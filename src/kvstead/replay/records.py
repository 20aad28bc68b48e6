"""What a replay writes down while it runs, and the result it makes of that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvstead.engine import KVCacheManager, Request
from kvstead.engine.meter import MemoryMeter, bytes_by_kind
from kvstead.engine.stats import FULL_SIDE, STATE_SIDE, WINDOW_SIDE
from kvstead.model import MemorySplit
from kvstead.replay.trace import Trace

_TIMELINE_POINTS = 2000
_FIRST_GAP_S = 0.05

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
    "window_live_bytes",
    "window_cached_bytes",
    "window_free_bytes",
    "state_live_bytes",
    "state_cached_bytes",
)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Quantiles of a latency in seconds; None where nothing was measured."""

    p50: float | None
    p90: float | None
    p99: float | None

    @classmethod
    def of(cls, seconds: NDArray[np.float64]) -> Latencies:
        """Quantiles by linear interpolation."""
        if not seconds.size:
            return cls(None, None, None)
        return cls(*(float(value) for value in np.quantile(seconds, (0.5, 0.9, 0.99))))


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came out of a replay.

    Times are the trace's clock in seconds unless they say wall. `retracted` counts events, all other request counts are
    requests. `hit_tokens` of `prompt_tokens` were found in the cache when their request was first admitted,
    `lost_tokens` more were found as well but had lost their windows, or, in a model with recurrent layers, were not
    those that a state was kept for; `has_reuse` is False for a trace that says nothing about equal prefixes.
    `evicted_tokens` by side; `tombstoned_tokens` are those of the window side that went alone, `tombstone_tokens` what
    was without its window side at the end. `evicted_states` are all, `evicted_states_alone` those whose tokens stayed.

    page_size: as it was, which some layouts enlarge. `mean_by_state` are bytes by state, averaged over the clock, that
    add up to the `total_bytes` of the memory. `mean_by_side` has for each side its `total_bytes`, and what adds up to
    it; sides with bytes of their own add up to the memory, state by state, and sides that share bytes leave out what is
    no side's. `peak_bytes` and `mean_bytes` count live and cached ones. split: how the memory was divided, if it was.
    bytes_moved, num_moves: of pages of an arena. state_copies: recurrent states copied, for others to go on from and by
    them. usable_at_first_refusal: the share of the memory that was live or cached when it was short for the first time,
    None if it never was.

    ttft: arrival to first token. tpot: time per further token of a request. timeline: one row of TIMELINE_COLUMNS per
    sample; columns that name no side count all.
    """

    trace: Trace
    total: int
    finished: int
    rejected: int
    retracted: int
    aborted: int
    interrupted: bool
    has_reuse: bool
    hit_tokens: int
    lost_tokens: int
    prompt_tokens: int
    evicted_tokens: dict[str, int]
    tombstoned_tokens: int
    tombstone_tokens: int
    evicted_states: int
    evicted_states_alone: int
    output_tokens: int
    page_size: int
    total_bytes: int
    peak_bytes: int
    mean_by_state: dict[str, int]
    mean_by_side: dict[str, dict[str, int]]
    mean_by_kind: dict[str, int]
    split: MemorySplit | None
    bytes_moved: int
    num_moves: int
    state_copies: int
    usable_at_first_refusal: float | None
    ttft: Latencies
    tpot: Latencies
    clock_s: float
    steps: int
    memory_us_per_step: float
    wall_s: float
    rejections: tuple[str, ...]
    timeline: tuple[tuple[float, ...], ...]

    @property
    def mean_bytes(self) -> int:
        """Bytes live or cached, averaged over the clock."""
        return self.mean_by_state["live"] + self.mean_by_state["cached"]

    @property
    def free_bytes(self) -> int:
        """Bytes that were nobody's, averaged over the clock: in an arena holes and gaps."""
        return sum(self.mean_by_state.get(state, 0) for state in ("free", "hole", "gap"))

    @property
    def has_states(self) -> bool:
        """Whether the model has recurrent layers."""
        return STATE_SIDE in self.mean_by_side

    @property
    def moves_per_step(self) -> float:
        """Pages of an arena that were moved in a step, on average."""
        return self.num_moves / self.steps if self.steps else 0.0

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens that were in the cache; None where the trace carries no reuse."""
        return self.hit_tokens / self.prompt_tokens if self.has_reuse and self.prompt_tokens else None

    @property
    def throughput_tok_s(self) -> float:
        """Generated tokens per second of the clock."""
        return self.output_tokens / self.clock_s if self.clock_s else 0.0


class Recorder:
    """Counts while a replay runs; O(1) a step."""

    def __init__(self, trace: Trace, manager: KVCacheManager) -> None:
        self._trace = trace
        self._manager = manager
        self._meter = MemoryMeter(manager)
        self.spend = self._meter.spend  # told at every step how long it takes; the meter's own, to save a call
        self._arrivals = trace.arrivals.copy()
        self._first = np.full(len(trace), np.nan)
        self._last = np.full(len(trace), np.nan)
        self._generated = np.zeros(len(trace), dtype=np.int64)
        self._rejections: list[str] = []
        self._timeline: list[tuple[float, ...]] = []
        self._gap = _FIRST_GAP_S
        self._next_sample = 0.0
        self._clock = 0.0
        self._hit_tokens = 0
        self._lost_tokens = 0
        self._prompt_tokens = 0
        self.num_steps = 0
        self.num_finished = 0

    @property
    def num_requests(self) -> int:
        """Requests in the trace."""
        return len(self._trace)

    @property
    def num_done(self) -> int:
        """Requests that have ended, finished or rejected."""
        return self.num_finished + len(self._rejections)

    def reject(self, request: Request) -> None:
        """Note a request that can never fit."""
        self._rejections.append(f"request {request.request_id}: {request.reason}")

    def step(self, clock: float, *, running: int, waiting: int) -> None:
        """Note that a step ended at `clock`."""
        self.num_steps += 1
        self._clock = clock
        if clock >= self._next_sample:
            self._sample(running, waiting)

    def arrive(self, request: int, clock: float) -> None:
        """Note when a request came in, where that is not the trace's own time."""
        self._arrivals[request] = clock

    def start(self, request: int, num_cached: int, num_dead: int, clock: float) -> None:
        """Note a request's first token, and how much of its prompt the cache held, to go on from and in vain."""
        self._first[request] = clock
        self._hit_tokens += num_cached
        self._lost_tokens += num_dead
        self._prompt_tokens += int(self._trace.prompt_lens[request])

    def end(self, request: int, num_generated: int, clock: float) -> None:
        """Note a request's last token."""
        self._last[request] = clock
        self._generated[request] = num_generated
        self.num_finished += 1

    def result(self, *, wall_s: float, memory_s: float, retracted: int, interrupted: bool) -> ReplayResult:
        """Everything that was noted."""
        first, last = self._first, self._last
        longer = self._generated > 1
        tpot = (last - first)[longer] / (self._generated[longer] - 1)
        manager, by_side = self._manager, self._meter.mean_by_side()
        chain, evicted = manager.chain, manager.evicted
        return ReplayResult(
            trace=self._trace,
            total=len(self._trace),
            finished=self.num_finished,
            rejected=len(self._rejections),
            retracted=retracted,
            aborted=0,  # nobody in a trace goes away before the end
            interrupted=interrupted,
            has_reuse=self._trace.has_reuse,
            hit_tokens=self._hit_tokens,
            lost_tokens=self._lost_tokens,
            prompt_tokens=self._prompt_tokens,
            evicted_tokens={side: evicted.pages[side] * manager.page_size for side in (FULL_SIDE, WINDOW_SIDE)},
            tombstoned_tokens=evicted.alone[WINDOW_SIDE] * manager.page_size,
            tombstone_tokens=manager.tree.num_tombstone_tokens,
            evicted_states=evicted.pages[STATE_SIDE],
            evicted_states_alone=evicted.alone[STATE_SIDE],
            output_tokens=int(self._generated.sum()),
            page_size=manager.page_size,
            total_bytes=manager.total_bytes,
            peak_bytes=self._meter.peak_bytes,
            mean_by_state=self._meter.mean_by_state(by_side),
            mean_by_side=by_side,
            mean_by_kind=bytes_by_kind(manager.layout, by_side),
            split=manager.split,
            bytes_moved=0 if chain is None else chain.bytes_moved,
            num_moves=0 if chain is None else chain.num_moves,
            state_copies=manager.num_state_copies,
            usable_at_first_refusal=manager.first_shortage,
            ttft=Latencies.of((first - self._arrivals)[~np.isnan(first)]),
            tpot=Latencies.of(tpot),
            clock_s=self._clock,
            steps=self.num_steps,
            memory_us_per_step=memory_s * 1e6 / self.num_steps if self.num_steps else 0.0,
            wall_s=wall_s,
            rejections=tuple(self._rejections),
            timeline=tuple(self._timeline),
        )

    def _sample(self, running: int, waiting: int) -> None:
        """Add a point to the timeline; when it grows long, drop every second one and sample half as often."""
        stats = self._manager.stats()
        window, state = stats.by_side.get(WINDOW_SIDE), stats.by_side.get(STATE_SIDE)
        self._timeline.append(
            (
                self._clock,
                running,
                waiting,
                self.num_finished,
                stats.live,
                stats.cached,
                stats.free,
                self._hit_tokens,
                self._prompt_tokens,
                *((0, 0, 0) if window is None else (window.live, window.cached, window.free)),
                *((0, 0) if state is None else (state.live, state.cached)),
            )
        )
        if len(self._timeline) >= 2 * _TIMELINE_POINTS:
            self._timeline = self._timeline[::2]
            self._gap = max(2 * self._gap, self._clock / _TIMELINE_POINTS)  # steps may be longer than the gap
        self._next_sample = self._clock + self._gap
