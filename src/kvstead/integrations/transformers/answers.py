"""What comes back for a prompt: pieces as they are generated, and the completion when the answer has ended.

Also the answers in progress, and the figures of an `LLM`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from kvstead.engine import KVCacheManager, Request, Status, Step
from kvstead.engine.meter import MemoryMeter, bytes_by_kind
from kvstead.integrations.transformers.checkpoint import Checkpoint
from kvstead.integrations.transformers.sampling import RowSampler, SamplingParams, seeded
from kvstead.integrations.transformers.stop_texts import StopTexts

_MOST_MESSAGES = 20  # reasons of rejected requests that are kept
_INCOMPLETE = "�"  # what bytes decode to that are not a character, or not yet


class FinishReason(StrEnum):
    """Why an answer ended; equal to its string."""

    STOP = "stop"  # with a stop token, or before a text that ends it
    LENGTH = "length"  # with as many tokens as it may have
    ABORTED = "aborted"
    REJECTED = "rejected"  # before it began


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer that has ended.

    prompt_tokens: the prompt's ids, empty if it could not be read. tokens: the generated ids, including a stop token.
    text: their text, without special tokens; empty without a tokenizer. num_cached: prompt tokens found in the cache.
    num_retractions: how often the request lost its memory to others. reason: why it was rejected, or aborted by an
    error.
    """

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    num_cached: int = 0
    num_retractions: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a step generated for one prompt.

    index: the prompt's place among those passed together, or the `request_id` of a prompt passed alone. text: a part of
    the answer's text; empty while a character is incomplete. tokens: the step's tokens. completion: None, except in the
    last piece, which has no tokens. The texts of all pieces joined are the answer's text.
    """

    index: int
    request_id: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    completion: Completion | None = None


class TextStream:
    """The text of one answer as its tokens come, in pieces that never split a character; special tokens have no text.

    Several tokens may make one character, and a space may depend on the tokens before it. So each piece is cut from the
    text of a few tokens; all pieces and the `rest` joined are what the tokenizer decodes from all tokens at once:

        tokens    The | cap | ital | of | Ⓕ 1 | Ⓕ 2 |
                              start  read                  text[:given] was returned; the rest follows once it is whole
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start = self._read = self._given = 0

    def take(self, token: int) -> str:
        """Add the next token; returns the text that is complete now, perhaps none."""
        self._tokens.append(token)
        text = self._text()
        if len(text) <= self._given or text.endswith(_INCOMPLETE):
            return ""
        piece = text[self._given :]
        self._start, self._read = self._read, len(self._tokens)
        self._given = len(self._text())
        return piece

    def rest(self) -> str:
        """The text that was held back; call it after the last token."""
        return self._text()[self._given :]

    def _text(self) -> str:
        """The text of the tokens from `start` on."""
        text = self._tokenizer.decode(
            self._tokens[self._start :], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str), "one answer is decoded to one text"
        return text


@dataclass(slots=True, eq=False)
class Answer:
    """An answer in progress.

    index: of its pieces. params: with a seed. text: None without a tokenizer. pieces: the queue that its pieces go to.
    stops: None where no text ends the answer.
    """

    index: int
    request: Request
    params: SamplingParams
    text: TextStream | None
    pieces: deque[Piece]
    stops: StopTexts | None = None
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def take(self, token: int) -> None:
        """Queue the piece of the next token."""
        self.tokens.append(token)
        stream = None if token in self.request.stop_tokens else self.text
        text = "" if stream is None else stream.take(token)
        self._queue(text if self.stops is None else self.stops.take(text), (token,))

    @property
    def has_stopped(self) -> bool:
        """Whether a text has ended the answer."""
        return self.stops is not None and self.stops.has_ended

    def end(self, finish_reason: FinishReason, reason: str = "") -> None:
        """Queue the last piece, with the completion."""
        rest = "" if self.text is None else self.text.rest()
        if self.stops is not None:
            rest = self.stops.take(rest) + self.stops.rest()
        completion = Completion(
            tuple(self.request.prompt.tolist()),
            tuple(self.tokens),
            "".join((*self.texts, rest)),
            finish_reason,
            max(self.request.num_cached, 0),
            self.request.num_retractions,
            reason,
        )
        self._queue(rest, (), completion)

    def _queue(self, text: str, tokens: tuple[int, ...], completion: Completion | None = None) -> None:
        self.texts.append(text)
        self.pieces.append(Piece(self.index, self.request.number, text, tokens, completion))


class RunStatistics:
    """Sums over all steps, in O(1) a step.

    ended: requests by how they ended. prompt_tokens, hit_tokens: of requests that got their first token, all and those
    found in the cache. wall_s, model_s: seconds in steps, and the part of them in the model.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self.meter = MemoryMeter(manager)
        self.num_requests = self.num_steps = 0
        self.ended: Counter[str] = Counter()
        self.prompt_tokens = self.hit_tokens = self.output_tokens = 0
        self.wall_s = self.model_s = 0.0
        self.rejections: list[str] = []
        self._manager = manager

    def summary(self, num_retractions: int) -> dict[str, Any]:
        """The part of `LLM.summary` that is counted here."""
        by_side = self.meter.mean_by_side()
        by_kind = bytes_by_kind(self._manager.layout, by_side)
        return {
            "requests": {
                "total": self.num_requests,
                "finished": self.ended["stop"] + self.ended["length"],
                "rejected": self.ended["rejected"],
                "retracted": num_retractions,
                "aborted": self.ended["aborted"],
            },
            "prefix": {
                "hit_tokens": self.hit_tokens,
                "prompt_tokens": self.prompt_tokens,
                "hit_rate": self.hit_tokens / self.prompt_tokens if self.prompt_tokens else None,
            },
            "memory": {
                "total_bytes": self._manager.total_bytes,
                "peak_live_bytes": self.meter.peak_live_bytes,
                "mean_live_bytes": sum(side["live"] for side in by_side.values()),
                "peak_bytes": self.meter.peak_bytes,
                "mean_bytes": sum(by_kind.values()),
                "by_state": self.meter.mean_by_state(by_side),
                "by_kind": by_kind,
                "by_side": by_side,
            },
            "output_tokens": self.output_tokens,
            "throughput_tok_s": self.output_tokens / self.wall_s if self.wall_s else 0.0,
            "steps": self.num_steps,
            "wall_s": self.wall_s,
            "model_s": self.model_s,
            "outside_model_share": 1 - self.model_s / self.wall_s if self.wall_s else 0.0,
            "rejections": list(self.rejections),
        }


class OpenAnswers:
    """The answers in progress, from a prompt that comes in to the last piece that goes out.

    sampler: draws the tokens of each row as the params of its request say. by_id: the open answers by request id; `end`
    takes them out. statistics: counts them. added: pieces of requests that came by `LLM.add`.
    """

    def __init__(self, checkpoint: Checkpoint, statistics: RunStatistics) -> None:
        self.sampler = RowSampler()
        self.by_id: dict[int, Answer] = {}
        self.added: deque[Piece] = deque()
        self._checkpoint = checkpoint
        self.statistics = statistics
        self._on_row: dict[int, Answer] = {}

    def prepare(self, params: SamplingParams, pieces: deque[Piece], index: int | None) -> Answer:
        """An answer to a new request, still without a prompt and not in `by_id`. index: None is the request's id."""
        request_id = self.statistics.num_requests
        self.statistics.num_requests += 1
        tokenizer, ends = self._checkpoint.tokenizer, (*self._checkpoint.stop_tokens, *params.stop_tokens)
        request = Request(
            request_id, np.empty(0, dtype=np.int64), params.max_new_tokens, stop_tokens=ends, keys=params.keys
        )
        text = None if tokenizer is None else TextStream(tokenizer)
        stops = StopTexts(params.stop) if params.stop else None
        return Answer(request_id if index is None else index, request, seeded(params), text, pieces, stops)

    def end(self, answer: Answer, finish_reason: FinishReason, reason: str = "") -> None:
        """Close an answer: count it, and queue its last piece."""
        rejections = self.statistics.rejections
        if finish_reason is FinishReason.REJECTED and len(rejections) < _MOST_MESSAGES:
            rejections.append(f"request {answer.request.request_id}: {reason}")
        del self.by_id[answer.request.number]
        self.statistics.ended[finish_reason] += 1
        answer.end(finish_reason, reason)

    def place(self, step: Step) -> None:
        """Note the rows of requests whose prompts a step computes."""
        for chunk in step.chunks:
            answer = self.by_id[chunk.request.number]
            self._on_row[chunk.row] = answer
            self.sampler.params[chunk.row] = answer.params

    def in_step(self, step: Step) -> list[Answer]:
        """The open answers whose requests a step computes."""
        answers = [self._on_row[row] for row in _rows(step)]
        return [answer for answer in answers if answer.request.request_id in self.by_id]

    def deliver(self, step: Step, tokens: list[int]) -> list[Request]:
        """Give each answer its token, once the scheduler has processed the step, and end those that have ended.

        Returns the requests whose answers a text has ended, while the scheduler still runs them.
        """
        stopped = []
        has_next = [True] * step.rows.size + [chunk.is_last for chunk in step.chunks]
        for row, token, is_next in zip(_rows(step), tokens, has_next, strict=True):
            answer = self._on_row[row]
            if not is_next or answer.request.request_id not in self.by_id:
                continue
            self.statistics.output_tokens += 1
            answer.take(token)
            if answer.has_stopped:
                self.end(answer, FinishReason.STOP)
                stopped.append(answer.request)
            elif answer.request.status is Status.FINISHED:
                is_stop = token in answer.request.stop_tokens
                self.end(answer, FinishReason.STOP if is_stop else FinishReason.LENGTH)
        return stopped


def _rows(step: Step) -> list[int]:
    return [*step.rows.tolist(), *(chunk.row for chunk in step.chunks)]
