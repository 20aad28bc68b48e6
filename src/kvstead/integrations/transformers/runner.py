"""`TransformersRunner`: computes a scheduler's steps with a Hugging Face model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from kvstead.engine import KVCacheManager, Step
from kvstead.errors import LayoutError, RequestError
from kvstead.integrations.transformers.attention import ATTENTION_NAME, FlexAttention, register_attention
from kvstead.integrations.transformers.families import Way, packing_limit, rope_limit, way_of
from kvstead.integrations.transformers.forward_plan import PLAN_KEYWORD, Jobs, concatenated_ranges, plan_forward
from kvstead.integrations.transformers.layout import require_same_layers
from kvstead.integrations.transformers.pooled_cache import PooledCache
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_device


def greedy(logits: torch.Tensor, _: Jobs) -> torch.Tensor:
    """The most likely token of each job: int64[jobs] from logits, [jobs, vocabulary]."""
    return logits.argmax(-1)


class TransformersRunner:
    """Computes a scheduler's steps with a model on the pools of the scheduler's manager.

    model: a causal language model in eval mode, on the manager's device. From now on it attends by `attend`, so it
    cannot be called directly until `model.set_attn_implementation` sets another attention. manager: with storage, for
    the model's `model_layout`. sample: picks tokens, int64[jobs], from logits, [jobs, vocabulary], and their jobs; a
    token is for position `ends` of the job's row, and is ignored in the middle of a prompt. attention: "sdpa", one call
    for each group of similar lengths, or "flex", one call of FlexAttention for all, which is for CUDA.

    num_passes, model_s: forward passes so far, and the seconds in their calls; on an accelerator a call returns before
    its work is done. `families` says how a family runs. Raises `LayoutError` for a family that does not, for a manager
    without storage or for another layout, for rows longer than the model's positions allow, and for an attention that
    is unknown or does not run on the manager's device.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        manager: KVCacheManager,
        *,
        sample: Callable[[torch.Tensor, Jobs], torch.Tensor] = greedy,
        attention: str = "sdpa",
    ) -> None:
        config = model.config
        self.way = way_of(config)
        require_same_layers(manager.layout, config)
        _require_fit(model, manager)
        self._device = manager.allocator.device
        if attention not in {"sdpa", "flex"}:
            raise LayoutError(f"attention is {attention!r}. Use 'sdpa' or 'flex'.")
        self._flex = FlexAttention(self._device) if attention == "flex" else None
        self.model, self.manager, self.sample = model, manager, sample
        self.num_passes = 0
        self.model_s = 0.0
        self._packing_limit = packing_limit(config)
        self._next = torch.zeros(manager.table.num_rows + 1, dtype=torch.int64, device=self._device)
        self._keeps_some = "logits_to_keep" in inspect.signature(model.forward).parameters
        register_attention()
        model.set_attn_implementation(ATTENTION_NAME)

    def launch(self, step: Step) -> Sampled:
        """Start computing a step. Raises `RequestError` for a chunk of a prompt that the family must compute whole."""
        jobs = _jobs(step)
        if self.way is Way.WHOLE:
            _require_whole(step)
        given = [chunk.request.tokens[chunk.start : chunk.end] for chunk in step.chunks]
        inputs = self._next[to_device(step.rows, self._device)]
        if given:
            inputs = torch.cat((inputs, to_device(np.concatenate(given).astype(np.int64), self._device)))
        with torch.no_grad():
            tokens = self.sample(self._logits(jobs, inputs, step.rows.size), jobs)
        self._next[to_device(jobs.rows, self._device)] = tokens
        return Sampled(tokens)

    def _logits(self, jobs: Jobs, inputs: torch.Tensor, num_decoding: int) -> torch.Tensor:
        """The logits after the last token of each job, [jobs, vocabulary]. inputs: the tokens of all jobs in order."""
        ends = np.cumsum(jobs.num_new)
        passes = self._passes(jobs, num_decoding)
        found = []
        for which in passes:
            taken = concatenated_ranges((ends - jobs.num_new)[which], ends[which])
            found.append(self._forward(jobs.take(which), inputs[to_device(taken, self._device)]))
        back = np.argsort(np.concatenate(passes))
        return torch.cat(found)[to_device(back, self._device)]

    def _passes(self, jobs: Jobs, num_decoding: int) -> Sequence[IntArray]:
        """The jobs of each forward pass, in the order in which their tokens are packed."""
        order = jobs.order()
        is_alone = jobs.ends[order] > self._packing_limit if self.way is Way.PACKED else order >= num_decoding
        together, alone = order[~is_alone], order[is_alone]
        return [*_cut(together, jobs.num_new, self._packing_limit), *alone.reshape(-1, 1)]

    def _forward(self, jobs: Jobs, tokens: torch.Tensor) -> torch.Tensor:
        """The logits after the last token of each job, [jobs, vocabulary], by one forward pass."""
        self.num_passes += 1
        plan = plan_forward(self.manager, jobs)
        cache = PooledCache(self.manager, plan)
        is_column = self.way is not Way.PACKED and tokens.numel() == jobs.rows.size
        shape = (-1, 1) if is_column else (1, -1)
        positions = to_device(jobs.positions(), self._device).view(shape)
        last = to_device(np.cumsum(jobs.num_new) - 1, self._device)
        keywords: dict[str, Any] = {"logits_to_keep": last} if self._keeps_some and not is_column else {}
        keywords[PLAN_KEYWORD] = self._flex.plan(plan, self.manager.layout.window_rule) if self._flex else plan
        began = perf_counter()
        logits = self.model(
            input_ids=tokens.view(shape), position_ids=positions, cache=cache, use_cache=True, **keywords
        ).logits
        self.model_s += perf_counter() - began
        cache.commit()
        flat: torch.Tensor = logits.flatten(0, 1)
        return flat if flat.shape[0] == last.numel() else flat[last]


class Sampled:
    """A launched step, whose tokens may still be computed."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self._tokens = tokens

    def tokens(self) -> torch.Tensor:
        """Wait for the step's tokens: int64[rows + chunks] on the host."""
        return self._tokens.cpu()


def _cut(jobs: IntArray, num_new: IntArray, limit: int) -> list[IntArray]:
    """Jobs in stretches of at most `limit` tokens, none of which has more alone."""
    stretches, start, num_tokens = [], 0, 0
    for at, count in enumerate(num_new[jobs].tolist()):
        if num_tokens + count > limit:
            stretches.append(jobs[start:at])
            start, num_tokens = at, 0
        num_tokens += count
    return [*stretches, jobs[start:]] if jobs.size else []


def _jobs(step: Step) -> Jobs:
    """The jobs of a step: its rows, then its chunks."""
    chunks = np.array([(chunk.row, chunk.start, chunk.end) for chunk in step.chunks], dtype=np.int64).reshape(-1, 3)
    return Jobs(
        np.concatenate((step.rows, chunks[:, 0])),
        np.concatenate((step.lengths - 1, chunks[:, 1])),
        np.concatenate((step.lengths, chunks[:, 2])),
    )


def _require_whole(step: Step) -> None:
    """Raise unless prompts are whole: for more than one token these families scan from an empty state."""
    for chunk in step.chunks:
        if chunk.end - chunk.start > 1 and not (chunk.start == 0 and chunk.is_last):
            raise RequestError(
                f"request {chunk.request.request_id} computes tokens {chunk.start} .. {chunk.end - 1} alone, and "
                "this family must compute a prompt whole. Give the manager prefix_cache=False, and the scheduler "
                "chunk_tokens for the longest request and all rows that decode beside it."
            )


def _require_fit(model: PreTrainedModel, manager: KVCacheManager) -> None:
    if model.training:
        raise LayoutError("the model is in training mode. Call model.eval().")
    if not (manager.pool or manager.window_pool or manager.state_pool):
        raise LayoutError("the manager has no storage. Make it with storage=True.")
    limit = rope_limit(model.config)
    if manager.table.width > limit:
        raise LayoutError(
            f"rows of {manager.table.width} tokens are longer than the {limit} that this model can share: beyond, a "
            f"token's rotation depends on the batch. Make the manager with max_length={limit}."
        )
