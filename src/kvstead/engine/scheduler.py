"""Continuous batching: which requests compute what in the next step.

                 add                admit                 last chunk planned
    (request) ---------> waiting ------------> prefill --------------------> decode ---> ended
                  ^                     |                                      |
                  '---------------------+------------- retract ----------------'

A step is planned (`schedule`), computed (a `Runner`), and its results processed (`process`); plans and results come in
the same order. With `overlap` step n + 1 is planned before the results of step n are processed. Then a request may end
while a later step that holds it is under way: its memory is given back when that step's results are processed.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from kvstead.engine.admission import Admission
from kvstead.engine.chunk_planner import ChunkPlanner
from kvstead.engine.manager import KVCacheManager
from kvstead.engine.request import Request, Status, checked
from kvstead.engine.running import RunningRequests
from kvstead.engine.step import Outcome, Pending, Runner, Step
from kvstead.errors import InvalidSize, RequestError
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, whole

_NO_ROWS: IntArray = np.empty(0, dtype=np.int64)


class Scheduler:
    """First come, first served, on the memory of one `KVCacheManager`.

    chunk_tokens: tokens computed in a step at most; longer prompts are cut into chunks. max_running: requests on the
    memory at once (by default as many as there are rows). decode_headroom: tokens of growth that are kept in reserve
    for every running request when another is admitted. overlap: plan a step before the last one has been processed.
    Raises `InvalidSize` for limits below 1.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        *,
        chunk_tokens: int = 8192,
        max_running: int | None = None,
        decode_headroom: int = 128,
        overlap: bool = False,
    ) -> None:
        num_rows = manager.table.num_rows
        max_running = num_rows if max_running is None else whole(max_running, "max_running")
        self.manager = manager
        self._may_wait = manager.memory.may_wait
        self._lengths = manager.table.lengths
        self.chunk_tokens = whole(chunk_tokens, "chunk_tokens")
        self.max_running = min(max_running, num_rows)
        self.admission = Admission(manager, whole(decode_headroom, "decode_headroom"), overlap=overlap)
        self.overlap = overlap
        if min(self.chunk_tokens, self.max_running) < 1 or decode_headroom < 0:
            raise InvalidSize(
                f"chunk_tokens {chunk_tokens}, max_running {self.max_running}, decode_headroom {decode_headroom}: the "
                "first two must be 1 or more, the last 0 or more."
            )
        self.waiting: deque[Request] = deque()
        self.num_retractions = 0
        self._running = RunningRequests(num_rows)
        self._chunks = ChunkPlanner(manager, self.admission, self._running, self.waiting, self.max_running)
        self._planned = self._processed = 0
        self._in_flight: tuple[Step, Pending] | None = None

    def __repr__(self) -> str:
        return f"<Scheduler: {self.num_running} running, {len(self.waiting)} waiting, on {self.manager!r}>"

    @property
    def num_running(self) -> int:
        """Requests that hold memory, ended ones in a step under way included."""
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, runs or is under way."""
        return not (self.waiting or self._running) and self._planned == self._processed

    def add(self, request: Request) -> bool:
        """Queue a request, its prompt copied. False if it can never fit: then `request.reason` says why.

        Raises `RequestError` for a request that is not new, or whose parts are of a kind that cannot be used.
        """
        checked(request)
        request.reason = self.admission.why_never(request)
        if request.reason:
            request.status = Status.REJECTED
            return False
        request.tokens = request.prompt
        self.waiting.append(request)
        return True

    def abort(self, request: Request) -> None:
        """End a request at any moment. Memory that a step under way uses comes back with that step's results."""
        if request.status is Status.WAITING:
            if request in self.waiting:
                self.waiting.remove(request)
                self.admission.forget_refusal()
            request.status = Status.ABORTED
        elif self._running.active.get(request.row) is request:
            self._end(request, Status.ABORTED)

    def step(self, runner: Runner) -> Outcome | None:
        """Plan and launch the next step, and process the one that is due, if any; on any error, `drop` them first."""
        try:
            planned = self.schedule()
            launched = None if planned is None else (planned, runner.launch(planned))
            due, self._in_flight = (self._in_flight, launched) if self.overlap else (launched, None)
            return None if due is None else self.process(due[0], due[1].tokens())
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Give up the steps that were planned and not processed, if any, for a runner that failed.

        Their requests wait again, before all others, with the tokens that are known of them. Nothing more of them is
        cached: a failed step may have changed a recurrent state.
        """
        self._in_flight = None
        for request in self._running.held_after(self._processed):
            self._back_to_queue(request)
            self.manager.abort(request.row)
        for request in self._running.pop_ended(self._planned):
            self.manager.abort(request.row)
        self._planned = self._processed
        self.admission.forget_refusal()

    def schedule(self) -> Step | None:
        """Plan the next step and allocate its slots; None when there is nothing to do.

        None can also mean that a step under way has to be processed before a request can be retracted, or, where pages
        may not move at times, that a request waits for that.
        """
        if self.manager.state_bytes:
            self.manager.checkpoint(np.array(list(self._running.active), dtype=np.int64))
        while True:
            rows, lengths, slots = self._plan_decode()
            if slots is None:
                return None
            chunks = self._chunks.plan(self.chunk_tokens - rows.size)
            if rows.size or chunks or not self._running.active or self._must_wait():
                break
            self._retract_newest()  # prompts block each other half-way; the oldest alone always fits
        if not rows.size and not chunks:
            return None
        self._planned += 1
        self._running.last_step[rows] = self._planned
        for chunk in chunks:
            self._running.last_step[chunk.row] = self._planned
        return Step(self._planned, rows, lengths, slots, tuple(chunks))

    def process(self, step: Step, tokens: Integers) -> Outcome:
        """Take in the next step's results: a token for each row, then for each chunk. Frees take effect at its end."""
        if step.index != self._processed + 1:
            raise RequestError(f"step {step.index} cannot follow step {self._processed}. Process steps in order.")
        row_tokens, chunk_tokens = step.divide(tokens)
        rows, lengths = step.rows, step.lengths
        if self._running.ended:
            active = np.array([row not in self._running.ended for row in rows.tolist()], dtype=bool)
            rows, lengths, row_tokens = rows[active], lengths[active], row_tokens[active]
        self.manager.commit(rows, lengths, row_tokens)  # the last that may refuse; nothing has changed before
        self._processed = step.index
        outcome = Outcome(step)
        with self.manager.defer_frees():
            self._process_rows(rows, lengths, row_tokens, outcome)
            self._process_chunks(step, chunk_tokens, outcome)
            for request in self._running.pop_ended(step.index):
                self._release(request)
        return outcome

    def _plan_decode(self) -> tuple[IntArray, IntArray, torch.Tensor | None]:
        """Rows that decode, their new lengths and slots; no slots when these have to wait."""
        while True:
            rows = self._running.decoding()
            if self._planned > self._processed:  # a row that ends with the step under way takes no further slot
                rows = rows[self._lengths[rows] + 1 < self._running.target[rows]]
            slots = self.manager.decode(rows)
            if slots is not None:
                return rows, self._lengths[rows], slots
            if self._must_wait():
                return _NO_ROWS, _NO_ROWS, None
            self._retract_newest()

    def _retract_newest(self) -> None:
        """Take the request that was admitted last off the memory, and put it first in the queue."""
        assert len(self._running.active) > 1, "a request that runs alone fits; `add` has checked that"
        request = self._running.active[next(reversed(self._running.active))]
        self._back_to_queue(request)
        self.manager.finish(request.row)
        request.num_retractions += 1
        self.num_retractions += 1

    def _back_to_queue(self, request: Request) -> None:
        """Put a running request first in the queue, with the tokens that are known of it; it still has its memory."""
        self._running.leave(request)
        request.tokens, request.status = self.manager.known_tokens(request.row), Status.WAITING
        self.waiting.appendleft(request)

    def _process_rows(self, rows: IntArray, lengths: IntArray, tokens: IntArray, outcome: Outcome) -> None:
        done = lengths + 1 >= self._running.target[rows]
        for row in rows[done].tolist():
            self._finish(self._running.active[row], outcome)
        if self._running.num_stopping:
            for row, token in zip(rows[~done].tolist(), tokens[~done].tolist(), strict=True):
                if token in self._running.active[row].stop_tokens:
                    self._finish(self._running.active[row], outcome)

    def _process_chunks(self, step: Step, sampled: IntArray, outcome: Outcome) -> None:
        for chunk, token in zip(step.chunks, sampled.tolist(), strict=True):
            request = chunk.request
            if chunk.row in self._running.ended:
                continue
            self.manager.commit([chunk.row], [chunk.end], [token])
            self.manager.cache(chunk.row)
            if not chunk.is_last:
                continue
            if chunk.end == request.prompt.size:
                outcome.started.append(request)
            if chunk.end + 1 >= self._running.target[chunk.row] or token in request.stop_tokens:
                self._finish(request, outcome)

    def _finish(self, request: Request, outcome: Outcome) -> None:
        outcome.ended.append(request)
        self._end(request, Status.FINISHED)

    def _end(self, request: Request, status: Status) -> None:
        """Leave the batch; the memory comes back now, or with the step under way that still uses it."""
        row = request.row
        request.tokens = self.manager.known_tokens(row)
        request.status = status
        self._running.leave(request)
        if self._running.last_step[row] > self._processed:
            self._running.ended[row] = request
        else:
            self._release(request)

    def _release(self, request: Request) -> None:
        if request.status is Status.FINISHED:
            self.manager.finish(request.row)
        else:
            self.manager.abort(request.row)

    def _must_wait(self) -> bool:
        """Whether no request can be retracted: results are due first, or a single one waits until pages may move."""
        return self._planned > self._processed or (len(self._running.active) == 1 and self._may_wait)
