"""A model without weights: what it caches for a token is a hash of everything up to that token.

Its pools remember which hash was written to which slot: one for the layers that keep whole sequences, one for those
that keep a window. Every step reads every row back as far as such layers see, so a slot that was handed out twice,
freed too early or mapped to the wrong position shows up as a wrong hash, and as wrong output in the end.
"""

from collections import deque
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from kvstead.engine import KVCacheManager, Step
from kvstead.model import ModelLayout
from kvstead.prefix import Namespace
from tiny_model import VOCABULARY

PLAIN = Namespace()
POISON = -1
_MODULUS = 2**31 - 1


def prefix_hashes(tokens, namespace=PLAIN) -> list[int]:
    """What the model caches at each position."""
    value = hash(namespace) % _MODULUS
    hashes = []
    for token in tokens:
        value = (value * 48271 + int(token) + 1) % _MODULUS
        hashes.append(value)
    return hashes


def sample(hash_value: int) -> int:
    """The token that follows a prefix."""
    return hash_value // 7 % VOCABULARY


def generate(prompt, max_new_tokens, namespace=PLAIN, stop_tokens=()) -> list[int]:
    """What the model says after a prompt, computed alone and without any cache."""
    tokens = [int(token) for token in prompt]
    for _ in range(max_new_tokens):
        tokens.append(sample(prefix_hashes(tokens, namespace)[-1]))
        if tokens[-1] in stop_tokens:
            break
    return tokens[len(prompt) :]


def first_seen(layout: ModelLayout, position: int) -> int:
    """The first position that a layer with a window or chunk sees from `position`, itself included."""
    span = layout.window
    return max(0, position - span + 1) if layout.window_kind == "sliding" else position // span * span


class Job(NamedTuple):
    """What a step computes for one row, as the row and its windows stood when the step was launched."""

    row: int
    start: int
    end: int
    slots: list[int]
    table_row: list[int]
    window_start: int  # first position that the job's first query sees in a window
    window_slots: list[int]  # of positions `window_start` .. `end` - 1; empty for a model without windows
    tokens: list[int] | None  # None: what this runner has sampled for the row so far
    namespace: Namespace


class _Done:
    def __init__(self, tokens):
        self._tokens = tokens

    def tokens(self):
        return self._tokens


class FakeRunner:
    """Writes to and reads from its pools of hashes, each step as soon as it is launched.

    As in a layer of a real model, all tokens of a step are written before any is read.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        layout = manager.layout
        self.keeps_all = layout.full_bytes_per_token > 0
        self.keeps_windows = layout.window is not None
        page_size = manager.page_size
        self.pool = np.full(manager.num_slots + page_size, POISON, dtype=np.int64)
        window_slots = manager.num_window_slots if self.keeps_windows else 0
        self.window_pool = np.full(window_slots + page_size, POISON, dtype=np.int64)
        self._known: dict[int, list[int]] = {}  # row -> tokens, as far as this runner has sampled them
        self._namespace: dict[int, Namespace] = {}
        self.num_reads = 0
        self.num_window_reads = 0

    def launch(self, step: Step):
        """Compute a step at once."""
        return _Done(self._run(self._jobs(step)))

    def poison_free_slots(self) -> None:
        """Overwrite what nobody owns, as another user of the memory might."""
        self._poison(*self._free_pages())

    def _jobs(self, step: Step) -> list[Job]:
        jobs = []
        for row, length, slot in zip(step.rows.tolist(), step.lengths.tolist(), step.slots.tolist(), strict=True):
            jobs.append(self._job(row, length - 1, length, [slot], None, PLAIN))
        for chunk in step.chunks:
            known = chunk.request.tokens[: chunk.end].tolist()
            slots = chunk.slots.tolist()
            jobs.append(self._job(chunk.row, chunk.start, chunk.end, slots, known, chunk.request.namespace))
        written = [slot for job in jobs for slot in job.slots]
        assert len(set(written)) == len(written), "no two tokens of a step go to one slot"
        return jobs

    def _job(self, row, start, end, slots, tokens, namespace) -> Job:
        table_row = self.manager.table.read(row, 0, end).tolist()
        assert table_row[start:] == slots, "the row holds the slots that the step names"
        if not self.keeps_windows:
            return Job(row, start, end, slots, table_row, 0, [], tokens, namespace)
        low = first_seen(self.manager.layout, start)
        seen = self.manager.window_slots(torch.tensor(table_row[low:])).tolist()
        states, page_size = self.manager.allocator.window_page_states(), self.manager.page_size
        for position, slot in enumerate(seen, low):
            assert slot >= page_size, f"row {row} has no window slot at {position}, which {start} .. {end - 1} see"
            assert states[slot // page_size] == 1, f"row {row} has a window slot at {position} that is not live"
            assert slot % page_size == position % page_size
        return Job(row, start, end, slots, table_row, low, seen, tokens, namespace)

    def _free_pages(self) -> tuple[np.ndarray, np.ndarray]:
        allocator = self.manager.allocator
        window = allocator.window_page_states() if self.keeps_windows else np.ones(1)
        return np.flatnonzero(allocator.page_states() != 1), np.flatnonzero(window != 1)

    def _poison(self, pages: np.ndarray, window_pages: np.ndarray) -> None:
        self.pool.reshape(-1, self.manager.page_size)[pages] = POISON
        self.window_pool.reshape(-1, self.manager.page_size)[window_pages] = POISON

    def _run(self, jobs: list[Job]) -> list[int]:
        for job in jobs:
            if job.tokens is not None:
                self._known[job.row] = job.tokens
                self._namespace[job.row] = job.namespace
        hashes = [prefix_hashes(self._known[job.row][: job.end], self._namespace[job.row]) for job in jobs]
        for job, values in zip(jobs, hashes, strict=True):
            self._write(job, values)
        return [self._compute(job, values) for job, values in zip(jobs, hashes, strict=True)]

    def _write(self, job: Job, hashes: list[int]) -> None:
        new = hashes[job.start :]
        if self.keeps_all:
            self.pool[job.slots] = new
        if self.keeps_windows:
            self.window_pool[job.window_slots[job.start - job.window_start :]] = new

    def _compute(self, job: Job, hashes: list[int]) -> int:
        if self.keeps_all:
            assert self.pool[job.table_row].tolist() == hashes, f"row {job.row} reads what it wrote, at every position"
            self.num_reads += job.end
        if self.keeps_windows:  # what the job's queries see together: each from its own first position on
            seen = self.window_pool[job.window_slots].tolist()
            assert seen == hashes[job.window_start :], f"row {job.row} reads its window as it wrote it"
            self.num_window_reads += len(seen)
        token = sample(hashes[-1])
        self._known[job.row] = [*self._known[job.row][: job.end], token]
        return token


class _Later:
    def __init__(self, runner, jobs):
        self._runner = runner
        self._jobs = jobs
        self._sampled = None

    def compute(self):
        self._sampled = self._runner._run(self._jobs)

    def tokens(self):
        while self._sampled is None:
            self._runner.advance()
        return self._sampled


class LateRunner(FakeRunner):
    """Computes each step only when its results are asked for, in the order of launch, as a device far behind does."""

    def __init__(self, manager: KVCacheManager) -> None:
        super().__init__(manager)
        self._queue = deque()

    def launch(self, step: Step):
        """Queue a step."""
        pending = _Later(self, self._jobs(step))
        self._queue.append(pending.compute)
        return pending

    def poison_free_slots(self) -> None:
        """Queue the overwriting of what nobody owns now."""
        self._queue.append(partial(self._poison, *self._free_pages()))

    def advance(self) -> None:
        """Do what was queued first."""
        self._queue.popleft()()
