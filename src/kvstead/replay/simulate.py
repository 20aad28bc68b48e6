"""Replaying a trace: the real manager and scheduler, with a clock in place of the model.

    trace ---> Scheduler ---> Step ---> CostRunner: how long would this take?  ---> clock
      ^                                                                               |
      '------------------ requests arrive when the clock reaches their time <---------'

Pages are counted, not allocated, so any machine replays a pool of any size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from kvstead.engine import KVCacheManager, Outcome, Request, Scheduler, Step
from kvstead.kernels.array_types import IntArray
from kvstead.model import Window
from kvstead.replay.arrivals import Arrivals
from kvstead.replay.cost import StepCost, StepTimer
from kvstead.replay.load import COMPUTE, MAX_RUNNING, MEMORY
from kvstead.replay.recorder import Recorder
from kvstead.replay.result import Overload, ReplayResult
from kvstead.replay.slo import Slo
from kvstead.replay.trace import Trace

_STEPS_BETWEEN_REPORTS = 256
_TIMED = (
    "match",
    "peek",
    "checkpoint",
    "growth",
    "chunk_end",
    "extend",
    "decode",
    "commit",
    "cache",
    "append",
    "finish",
    "retract",
    "abort",
)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a replay, for a progress bar. Times in seconds, memory in bytes."""

    clock_s: float
    done: int
    total: int
    running: int
    waiting: int
    held_bytes: int
    total_bytes: int

    @classmethod
    def of(cls, manager: KVCacheManager, recorder: Recorder, clock_s: float, waiting: int, running: int) -> Progress:
        """The progress at `clock_s`, from what the manager holds and the recorder counted."""
        stats, done, total = manager.stats(), recorder.num_done, recorder.num_requests
        return cls(clock_s, done, total, running, waiting, stats.live + stats.cached, stats.total_bytes)


class Stopwatch:
    """Adds up the wall time inside one manager, whose methods it wraps."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.seconds = 0.0
        for name in _TIMED:
            setattr(manager, name, self._timed(getattr(manager, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            before, began = self.seconds, time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                # Methods called inside have added their time too; this replaces it.
                self.seconds = before + time.perf_counter() - began

        return timed


def silent(_progress: Progress) -> None:
    """Take a report and show nothing: the default of `report`."""


class _ComputedTokens:
    """A step that is finished when it is launched."""

    def __init__(self, tokens: IntArray) -> None:
        self._tokens = tokens

    def tokens(self) -> IntArray:
        """The tokens that were sampled."""
        return self._tokens


class CostRunner:
    """Computes nothing: adds up how long each step would take, and generates the trace's output ids.

    spend: told the seconds of each step when it is launched, while the memory is as the step uses it. admit: told of
    each request whose prompt a step computes. window, has_states: as in `StepTimer`.
    """

    def __init__(
        self,
        trace: Trace,
        cost: StepCost,
        num_rows: int,
        spend: Callable[[float], None],
        admit: Callable[[int], None] = lambda _request: None,
        *,
        window: Window | None = None,
        has_states: bool = False,
    ) -> None:
        self._trace = trace
        self._timer = StepTimer(cost, window, has_states=has_states)
        self._spend = spend
        self._admit = admit
        # The j-th token that a request generates is `output_token_base + j`.
        self._shift: IntArray = np.zeros(num_rows + 1, dtype=np.int64)
        self.seconds = 0.0
        self.num_steps = 0
        self.last_tokens = 0  # that the last step computed

    def launch(self, step: Step) -> _ComputedTokens:
        """Spend a step's time; its tokens continue the trace's output ids."""
        num_tokens = step.rows.size
        for chunk in step.chunks:
            request = chunk.request.number
            self._admit(request)
            num_tokens += chunk.end - chunk.start
            self._shift[chunk.row] = self._trace.output_token_base(request) - self._trace.prompt_lens[request]
        seconds = self._timer.seconds(step.lengths, [(chunk.start, chunk.end) for chunk in step.chunks])
        self._spend(seconds)
        self.seconds += seconds
        self.num_steps += 1
        self.last_tokens = num_tokens
        tokens = self._shift[step.rows] + step.lengths
        if step.chunks:
            behind = [self._shift[chunk.row] + chunk.end for chunk in step.chunks]
            tokens = np.concatenate((tokens, np.array(behind, dtype=np.int64)))
        return _ComputedTokens(tokens)


class Replay:
    """Replays one trace on one scheduler.

    report: called every few hundred steps with a `Progress`. An interrupt (Ctrl-C) ends the replay cleanly; the result
    then covers the steps until then, and `interrupted` is set.
    """

    def __init__(
        self,
        trace: Trace,
        scheduler: Scheduler,
        cost: StepCost,
        *,
        report: Callable[[Progress], None] = silent,
        slo: Slo | None = None,
    ) -> None:
        self.trace = trace
        self.scheduler = scheduler
        self.manager = scheduler.manager
        self._stopwatch = Stopwatch(self.manager)
        self._recorder = Recorder(trace, self.manager)
        self._runner = CostRunner(
            trace,
            cost,
            self.manager.table.num_rows,
            self._recorder.spend,
            lambda request: self._recorder.served.admit(request, self._clock),
            window=self.manager.window,
            has_states=self.manager.state_bytes > 0,
        )
        self._report = report
        self._cost, self._slo = cost, slo
        self._arrivals = Arrivals(trace)
        self._clock = 0.0

    def run(self) -> ReplayResult:
        """Replay the whole trace, or until an interrupt. Call it once."""
        began = time.perf_counter()
        interrupted = False
        try:
            while self._advance():
                if self._recorder.num_steps % _STEPS_BETWEEN_REPORTS == 0:
                    self._report(self._progress())
        except KeyboardInterrupt:
            interrupted = True
        self._report(self._progress())
        return self._recorder.result(
            wall_s=time.perf_counter() - began,
            memory_s=self._stopwatch.seconds,
            retracted=self.scheduler.num_retractions,
            interrupted=interrupted,
            overload=None if interrupted else self._overload(),
            slo=self._slo,
        )

    def _overload(self) -> Overload | None:
        """Whether requests piled up; those that wait for an answer before they come cannot."""
        if (self.trace.follows >= 0).any():
            return None
        return self._recorder.load.overload(self._clock, self._cost)

    def _advance(self) -> bool:
        """One step, or a jump of the clock to the next arrival; False at the end of the trace."""
        self._arrive()
        if self.scheduler.is_idle:
            arrival = self._arrivals.time
            if arrival == inf:
                return False
            self._recorder.spend(arrival - self._clock)
            self._clock = arrival
            return True
        launched, before, num_steps = self._clock, self._runner.seconds, self._runner.num_steps
        outcome = self.scheduler.step(self._runner)
        seconds = self._runner.seconds - before
        self._clock += seconds
        self._recorder.load.step(self._clock, seconds, waiting=len(self.scheduler.waiting), wants=self._shortage())
        assert outcome is not None or self._runner.num_steps > num_steps, "requests wait and none of them can run"
        if outcome is not None:
            # With overlap it is the step before that was processed, which ended when this one was launched.
            self._note(outcome, launched if self.scheduler.overlap else self._clock)
        return True

    def _note(self, outcome: Outcome, clock: float) -> None:
        recorder = self._recorder
        for request in outcome.started:
            recorder.start(request.number, request.num_cached, request.num_dead, clock)
        for request in outcome.ended:
            recorder.served.end(request.number, int(request.output.size), clock, request.num_retractions)
            self._arrivals.end(request.number, clock)
        recorder.step(clock, self.scheduler)

    def _shortage(self) -> str:
        """Why the last step admitted no more requests."""
        if self.scheduler.num_running >= self.scheduler.max_running:
            return MAX_RUNNING
        return COMPUTE if self._runner.last_tokens >= self.scheduler.chunk_tokens else MEMORY

    def _arrive(self) -> None:
        trace, arrivals = self.trace, self._arrivals
        while (arrival := arrivals.time) <= self._clock:
            number = arrivals.pop()
            self._recorder.served.arrivals[number] = arrival
            request = Request(number, trace.prompt_tokens(number), int(trace.output_lens[number]))
            if not self.scheduler.add(request):
                self._recorder.reject(request)
                arrivals.end(number, self._clock)

    def _progress(self) -> Progress:
        return Progress.of(
            self.manager, self._recorder, self._clock, len(self.scheduler.waiting), self.scheduler.num_running
        )
