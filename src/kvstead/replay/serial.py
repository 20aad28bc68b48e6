"""A replay of one request at a time, so that reuse depends on the trace alone, not on the queue."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from kvstead.engine import KVCacheManager, Request
from kvstead.engine.admission import Admission
from kvstead.kernels.array_types import IntArray
from kvstead.replay.cost import StepCost, StepTimer
from kvstead.replay.recorder import Recorder
from kvstead.replay.result import ReplayResult
from kvstead.replay.simulate import Progress, Stopwatch, silent
from kvstead.replay.slo import Slo
from kvstead.replay.trace import Trace

_NO_ROWS: IntArray = np.empty(0, dtype=np.int64)
_STRETCHES_PER_WINDOW = 8  # a stretch holds its own tokens beside the window: an eighth more than decoding does
_REQUESTS_BETWEEN_REPORTS = 32


class SerialReplay:
    """Each request starts when the one before has ended; arrival times are ignored.

    The manager is driven directly: prompts in chunks of `chunk_tokens`, the output in one stretch that takes the time
    of its tokens one by one (exact as long as a step's time grows linearly with the context). In a model with windows
    chunks are no longer than the window side has capacity for, and stretches no longer than an eighth of a window. In
    one with recurrent layers both end where a scheduler would copy the state.
    """

    def __init__(
        self,
        trace: Trace,
        manager: KVCacheManager,
        cost: StepCost,
        *,
        chunk_tokens: int = 8192,
        report: Callable[[Progress], None] = silent,
        slo: Slo | None = None,
    ) -> None:
        self.trace = trace
        self.manager = manager
        self._window = manager.window
        self._timer = StepTimer(cost, manager.window, has_states=manager.state_bytes > 0)
        self._chunk_tokens = chunk_tokens
        self._admission = Admission(manager, decode_headroom=0)
        self._stopwatch = Stopwatch(manager)
        self._recorder = Recorder(trace, manager)
        self._report = report
        self._slo = slo
        self._clock = 0.0

    def run(self) -> ReplayResult:
        """Replay the whole trace, or until an interrupt. Call it once."""
        began = time.perf_counter()
        interrupted = False
        try:
            for index in range(len(self.trace)):
                self._serve(index)
                if index % _REQUESTS_BETWEEN_REPORTS == 0:
                    self._report(Progress.of(self.manager, self._recorder, self._clock, waiting=0, running=1))
        except KeyboardInterrupt:
            interrupted = True
        self._report(Progress.of(self.manager, self._recorder, self._clock, waiting=0, running=0))
        return self._recorder.result(
            wall_s=time.perf_counter() - began,
            memory_s=self._stopwatch.seconds,
            retracted=0,
            interrupted=interrupted,
            slo=self._slo,
        )

    def _serve(self, index: int) -> None:
        request = Request(index, self.trace.prompt_tokens(index), int(self.trace.output_lens[index]))
        request.reason = self._admission.why_never(request)
        if request.reason:
            self._recorder.reject(request)
            return
        self._recorder.served.arrivals[index] = self._clock
        self._recorder.served.admit(index, self._clock)
        lease = self.manager.match(request.prompt, owner=request.owner_tag)
        assert lease is not None, "no other request holds a row or a state"
        row, prompt, end = lease.row, int(request.prompt.size), request.max_length - 1
        if self.manager.row_states is not None:
            self.manager.row_states.expect_end(row, end)
        first_output = self.trace.output_token_base(index)
        start = lease.num_cached
        while start < prompt:
            self.manager.checkpoint([row])
            end_of_growth = start + self._growth(row, min(self._chunk_tokens, prompt - start))
            stop = self.manager.chunk_end(row, end_of_growth)
            self._grow(row, stop, first_output, self._chunk_seconds(start, stop))
            self.manager.cache(row)  # before its windows are freed
            start = stop
        self._recorder.start(index, lease.num_cached, lease.num_dead, self._clock)
        if end > prompt:
            self.manager.append(row, np.arange(first_output + 1, first_output + end - prompt))
        while start < end:
            self.manager.checkpoint([row])
            stop = start + self._growth(row, min(end, self._stretch_end(row, start)) - start)
            self._grow(row, stop, first_output + end - prompt, self._stretch_seconds(start, stop))
            start = stop
        self._recorder.served.end(index, request.max_new_tokens, self._clock)
        self.manager.finish(row)

    def _growth(self, row: int, num_tokens: int) -> int:
        """How many of `num_tokens` more tokens the row can take now, on the window side too; at least one."""
        growth = self.manager.growth(row, num_tokens)
        assert growth > 0, "a request that is alone can always go on; it was checked"
        return growth

    def _stretch_end(self, row: int, length: int) -> int:
        """The last position where a stretch of a row that begins at `length` may end.

        Within it the tokens read grow linearly, and no state is due to be copied.
        """
        end = self.manager.table.width
        if self.manager.row_states is not None and (due := int(self.manager.row_states.due[row])) > length:
            end = min(end, due)
        if self._window is None:
            return end
        span, page_size = self._window.span, self.manager.page_size
        longest = max(span // _STRETCHES_PER_WINDOW // page_size, 1) * page_size
        bend = (length // span + 1) * span  # where a window becomes full, or a chunk ends
        return min(end, length + longest, bend)

    def _chunk_seconds(self, start: int, stop: int) -> float:
        """The time of one step that computes tokens `start` .. `stop` - 1."""
        return self._timer.seconds(_NO_ROWS, [(start, stop)])

    def _stretch_seconds(self, start: int, stop: int) -> float:
        """The time of a step for each of the tokens `start` .. `stop` - 1: their number times the mean step."""
        first, last = self._chunk_seconds(start, start + 1), self._chunk_seconds(stop - 1, stop)
        return (stop - start) * (first + last) / 2

    def _grow(self, row: int, end: int, next_token: int, seconds: float) -> None:
        """Extend the row to `end` tokens, which takes `seconds` of the clock."""
        slots = self.manager.extend([row], [end])
        assert slots is not None, "a request that is alone fits; it was checked"
        self.manager.commit([row], [end], [next_token])
        self._recorder.spend(seconds)
        self._clock += seconds
        self._recorder.step(self._clock)
