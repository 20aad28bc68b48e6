"""Requests computed on a manager's memory, and what `model.generate` generates for each alone."""

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from hf_models import VOCABULARY, tiny_model

from kvstead.engine import KVCacheManager, Request, Scheduler, Status
from kvstead.integrations.transformers import TransformersRunner, greedy, model_layout
from kvstead.kernels import host
from kvstead.model import ModelLayout

TOLERANCE = 1e-4  # of a logit
PAGE_SIZE = 4
MAX_LENGTH = 96


@dataclass(frozen=True)
class Asked:
    """A prompt and the number of tokens to generate."""

    prompt: tuple[int, ...]
    num_new: int


def _tokens(seed, length):
    return tuple(np.random.default_rng(seed).integers(3, VOCABULARY, length).tolist())


_COMMON = _tokens(1, 36)
FIRST = (Asked(_tokens(2, 5), 9), Asked(_COMMON, 12), Asked(_tokens(3, 1), 7), Asked(_tokens(4, 21), 10))
SECOND = (
    Asked(_COMMON[:24] + _tokens(5, 7), 8),
    Asked(_COMMON + _tokens(6, 2), 5),
    Asked(_tokens(4, 21), 6),
    Asked(_tokens(7, 40), 5),
)
ASKED = FIRST + SECOND


@cache
def references(family):
    """What the model of a family generates for `ASKED`, one by one: (tokens, logits) each."""
    return [generate(tiny_model(family), asked) for asked in ASKED]


def generate(model, asked):
    """Tokens, and the logits of each, by the library alone."""
    ids = torch.tensor([asked.prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=asked.num_new,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return out.sequences[0, ids.shape[1] :].tolist(), torch.cat(out.logits)


@dataclass
class Run:
    """One run of requests on a manager of its own; free memory is poisoned before every step.

    manager, scheduler: their options. layout: the model's own by default. aborts: by request, the step of its wave
    after which it is aborted. attention: of the runner.
    """

    model: object
    manager: dict
    scheduler: dict = field(default_factory=dict)
    aborts: dict[int, int] = field(default_factory=dict)
    layout: ModelLayout | None = None
    attention: str = "sdpa"

    def __post_init__(self):
        options = {"page_size": PAGE_SIZE, "max_requests": 8, "max_length": MAX_LENGTH, "state_interval": 8}
        self.memory = KVCacheManager(self.layout or model_layout(self.model), **{**options, **self.manager})
        self.planner = Scheduler(self.memory, **{"decode_headroom": 0, **self.scheduler})
        self.logits = {}
        self.requests = []
        self._drawn = []

    def serve(self, *waves):
        """Compute requests, wave after wave: the next is added when the last has ended."""
        attention = self.model.config._attn_implementation
        self._runner = TransformersRunner(self.model, self.memory, sample=self._sample, attention=self.attention)
        self._on_row = {}
        try:
            for wave in waves:
                self._serve(wave)
        finally:
            self.model.set_attn_implementation(attention)
        self.memory.audit()
        return self

    def check(self, expected):
        """Check that requests got the expected tokens and logits; an aborted one may have only the first tokens."""
        for request, (tokens, logits) in zip(self.requests, expected, strict=True):
            got = request.output.tolist()
            assert got == tokens[: len(got)], f"request {request.request_id} goes on as it does alone"
            assert len(got) == len(tokens) or request.status is Status.ABORTED, "only aborted requests ended early"
            for at in range(len(got)):
                error = (self.logits[request.request_id, request.prompt.size + at] - logits[at]).abs().max()
                assert error < TOLERANCE, f"request {request.request_id}, token {at}: logits are off by {error}"

    def launch(self, step):
        """Act as the runner: poison free memory, compute, and keep the logits."""
        poison_free(self.memory)
        for chunk in step.chunks:
            self._on_row[chunk.row] = chunk.request
        pending = self._runner.launch(step)
        ends = [*step.lengths.tolist(), *(chunk.end for chunk in step.chunks)]
        rows = [*step.rows.tolist(), *(chunk.row for chunk in step.chunks)]
        for row, end, logits in zip(rows, ends, self._drawn.pop(), strict=True):
            self.logits[self._on_row[row].request_id, end] = logits
        return pending

    @property
    def num_passes(self):
        """Forward passes so far."""
        return self._runner.num_passes

    def _sample(self, logits, jobs):
        self._drawn.append(logits.clone())
        return greedy(logits, jobs)

    def _serve(self, wave):
        for asked in wave:
            request = Request(len(self.requests), np.array(asked.prompt), asked.num_new)
            assert self.planner.add(request), request.reason
            self.requests.append(request)
        num_steps = 0
        while not self.planner.is_idle:
            self.planner.step(self)
            num_steps += 1
            for request in self.requests:
                if self.aborts.get(request.request_id) == num_steps:
                    self.planner.abort(request)


def poison_free(manager):
    """Fill free memory with NaN, as another user of it might."""
    if manager.chain is not None:
        mask = np.ones(manager.chain.arena.total_bytes, dtype=bool)
        for pool in manager.chain.pools.values():
            pages, size = pool.map.v2p, pool.spec.page_bytes
            mask[: mask.size // size * size].reshape(-1, size)[pages[pages > 0]] = False
        manager.chain.arena.storage.numpy()[mask] = 0xFF
        return
    allocator, page_size = manager.allocator, manager.page_size
    if manager.pool:
        _fill([*manager.pool.key, *manager.pool.value], allocator.page_states(), page_size)
    if manager.window_pool:
        pool = manager.window_pool
        _fill([*pool.key, *pool.value], allocator.window_page_states(), page_size)
    if manager.state_pool:
        _fill(
            [part for parts in manager.state_pool.parts for part in parts.values()], allocator.states.page_states(), 1
        )


def _fill(tensors, states, page_size):
    pages = np.flatnonzero(states != host.LIVE)
    slots = torch.from_numpy((pages[:, None] * page_size + np.arange(page_size)).ravel())
    for tensor in tensors:
        if tensor is not None:
            tensor[slots] = float("nan")
