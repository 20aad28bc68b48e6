"""The answers in progress: from a prompt that comes in to the last piece that goes out."""

from __future__ import annotations

from collections import deque

import numpy as np

from kvstead.engine import Request, Status, Step
from kvstead.integrations.transformers.answers import Answer, FinishReason, Piece
from kvstead.integrations.transformers.checkpoint import Checkpoint
from kvstead.integrations.transformers.run_statistics import RunStatistics
from kvstead.integrations.transformers.sampling import Draw, RowSampler, SamplingParams
from kvstead.integrations.transformers.text_stream import TextStream


class OpenAnswers:
    """Answers by request id, and by the row that their request is on.

    sampler: draws the tokens of each row as the params of its request say.
    """

    def __init__(self, checkpoint: Checkpoint, statistics: RunStatistics) -> None:
        self.sampler = RowSampler()
        self._checkpoint = checkpoint
        self._model_stops = checkpoint.stop_tokens
        self._statistics = statistics
        self._by_id: dict[int, Answer] = {}
        self._on_row: dict[int, Answer] = {}

    def prepare(self, params: SamplingParams, pieces: deque[Piece], index: int | None) -> Answer:
        """An answer to a new request, still without a prompt; not open yet. index: None is the request's id."""
        request_id = self._statistics.num_requests
        self._statistics.num_requests += 1
        stops = (*self._model_stops, *params.stop_tokens)
        request = Request(request_id, np.empty(0, dtype=np.int64), params.max_new_tokens, stop_tokens=stops)
        tokenizer = self._checkpoint.tokenizer
        text = None if tokenizer is None else TextStream(tokenizer)
        return Answer(request_id if index is None else index, request, Draw.by(params), text, pieces)

    def open(self, answer: Answer) -> None:
        """Make an answer known by its request's id, until `end`."""
        self._by_id[answer.request.request_id] = answer

    def find(self, request_id: int) -> Answer | None:
        """The open answer of a request, None if there is none."""
        return self._by_id.get(request_id)

    def end(self, answer: Answer, finish_reason: FinishReason, reason: str = "") -> None:
        """Close an answer: count it, and queue its last piece."""
        del self._by_id[answer.request.request_id]
        self._statistics.ended[finish_reason] += 1
        answer.end(finish_reason, reason)

    def place(self, step: Step) -> None:
        """Note the rows of requests whose prompts a step computes."""
        for chunk in step.chunks:
            answer = self._by_id[chunk.request.request_id]
            self._on_row[chunk.row] = answer
            self.sampler.draws[chunk.row] = answer.draw

    def in_step(self, step: Step) -> list[Answer]:
        """The open answers whose requests a step computes."""
        answers = [self._on_row[row] for row in _rows(step)]
        return [answer for answer in answers if answer.request.request_id in self._by_id]

    def deliver(self, step: Step, tokens: list[int]) -> None:
        """Give each answer its token, once the scheduler has processed the step, and end those that have ended."""
        has_next = [True] * step.rows.size + [chunk.is_last for chunk in step.chunks]
        for row, token, is_next in zip(_rows(step), tokens, has_next, strict=True):
            answer = self._on_row[row]
            if not is_next or answer.request.request_id not in self._by_id:
                continue
            self._statistics.output_tokens += 1
            answer.take(token)
            if answer.request.status is Status.FINISHED:
                is_stop = token in answer.request.stop_tokens
                self.end(answer, FinishReason.STOP if is_stop else FinishReason.LENGTH)


def _rows(step: Step) -> list[int]:
    return [*step.rows.tolist(), *(chunk.row for chunk in step.chunks)]
