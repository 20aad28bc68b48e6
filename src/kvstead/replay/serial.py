"""A replay without a queue: one request at a time, so that what is reused is what the trace itself allows."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from kvstead.engine import KVCacheManager, Request
from kvstead.engine.admission import Admission
from kvstead.replay.cost import StepCost
from kvstead.replay.records import Recorder, ReplayResult
from kvstead.replay.simulate import Progress, Stopwatch, silent
from kvstead.replay.trace import Trace

_REQUESTS_BETWEEN_REPORTS = 32


class SerialReplay:
    """Each request starts when the one before has ended; arrival times are ignored.

    The manager is driven directly: prompts in chunks of `chunk_tokens`, the output in one stretch that takes the time
    of its tokens at their mean context (exact as long as a step's time grows linearly with the context).
    """

    def __init__(
        self,
        trace: Trace,
        manager: KVCacheManager,
        cost: StepCost,
        *,
        chunk_tokens: int = 8192,
        report: Callable[[Progress], None] = silent,
    ) -> None:
        self.trace = trace
        self.manager = manager
        self._cost = cost
        self._chunk_tokens = chunk_tokens
        self._admission = Admission(manager, decode_headroom=0)
        self._stopwatch = Stopwatch(manager)
        self._recorder = Recorder(trace, manager)
        self._report = report
        self._clock = 0.0

    def run(self) -> ReplayResult:
        """Replay the whole trace; an interrupt ends it with what was done so far."""
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
        )

    def _serve(self, index: int) -> None:
        request = Request(index, self.trace.prompt_tokens(index), int(self.trace.output_lens[index]))
        request.reason = self._admission.why_never(request)
        if request.reason:
            self._recorder.reject(request)
            return
        self._recorder.arrive(index, self._clock)
        lease = self.manager.match(request.prompt, owner=index)
        assert lease is not None, "no other request holds a row"
        row, prompt, end = lease.row, int(request.prompt.size), request.max_length - 1
        first_output = self.trace.output_token_base(index)
        for start in range(lease.num_cached, prompt, self._chunk_tokens):
            stop = min(start + self._chunk_tokens, prompt)
            pairs = (stop - start) * start + (stop - start) * (stop - start + 1) // 2
            self._grow(row, stop, first_output, self._cost.seconds(stop - start, stop, pairs))
        self._recorder.start(index, lease.num_cached, self._clock)
        if end > prompt:
            self.manager.append(row, np.arange(first_output + 1, first_output + end - prompt))
            context = (prompt + 1 + end) // 2
            seconds = (end - prompt) * self._cost.seconds(1, context, context)
            self._grow(row, end, first_output + end - prompt, seconds)
        self._recorder.end(index, request.max_new_tokens, self._clock)
        self.manager.finish(row)

    def _grow(self, row: int, end: int, next_token: int, seconds: float) -> None:
        """Compute the row up to `end` tokens, in so many seconds of the clock."""
        slots = self.manager.extend([row], [end])
        assert slots is not None, "a request that is alone fits; it was checked"
        self.manager.commit([row], [end], [next_token])
        self._recorder.spend(seconds)
        self._clock += seconds
        self._recorder.step(self._clock, running=1, waiting=0)
