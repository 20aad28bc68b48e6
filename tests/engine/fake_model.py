"""A model without weights: what it caches for a token is a hash of everything up to that token.

Its pool remembers which hash was written to which slot. Every step reads every row back, so a slot that was handed out
twice, freed too early or mapped to the wrong position shows up as a wrong hash, and as wrong output in the end.
"""

from collections import deque
from functools import partial
from typing import NamedTuple

import numpy as np

from kvstead.engine import KVCacheManager, Step
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


class Job(NamedTuple):
    """What a step computes for one row, as the row stood when the step was launched."""

    row: int
    start: int
    end: int
    slots: list[int]
    table_row: list[int]
    tokens: list[int] | None  # None: what this runner has sampled for the row so far
    namespace: Namespace


class _Done:
    def __init__(self, tokens):
        self._tokens = tokens

    def tokens(self):
        return self._tokens


class FakeRunner:
    """Writes to and reads from a pool of hashes, each step as soon as it is launched."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.pool = np.full(manager.num_slots + manager.page_size, POISON, dtype=np.int64)
        self._known: dict[int, list[int]] = {}  # row -> tokens, as far as this runner has sampled them
        self._namespace: dict[int, Namespace] = {}
        self.num_reads = 0

    def launch(self, step: Step):
        """Compute a step at once."""
        return _Done(self._run(self._jobs(step)))

    def poison_free_slots(self) -> None:
        """Overwrite what nobody owns, as another user of the memory might."""
        self._poison(self._free_pages())

    def _jobs(self, step: Step) -> list[Job]:
        jobs = []
        for row, length, slot in zip(step.rows.tolist(), step.lengths.tolist(), step.slots.tolist(), strict=True):
            jobs.append(Job(row, length - 1, length, [slot], self._table_row(row, length), None, PLAIN))
        for chunk in step.chunks:
            known = chunk.request.tokens[: chunk.end].tolist()
            table_row = self._table_row(chunk.row, chunk.end)
            slots = chunk.slots.tolist()
            jobs.append(Job(chunk.row, chunk.start, chunk.end, slots, table_row, known, chunk.request.namespace))
        return jobs

    def _table_row(self, row: int, end: int) -> list[int]:
        return self.manager.table.read(row, 0, end).tolist()

    def _free_pages(self) -> np.ndarray:
        return np.flatnonzero(self.manager.allocator.page_states() != 1)

    def _poison(self, pages: np.ndarray) -> None:
        self.pool.reshape(-1, self.manager.page_size)[pages] = POISON

    def _run(self, jobs: list[Job]) -> list[int]:
        for job in jobs:
            if job.tokens is not None:
                self._known[job.row] = job.tokens
                self._namespace[job.row] = job.namespace
        return [self._compute(job) for job in jobs]

    def _compute(self, job: Job) -> int:
        tokens = self._known[job.row][: job.end]
        hashes = prefix_hashes(tokens, self._namespace[job.row])
        self.pool[job.slots] = hashes[job.start :]
        assert job.table_row[job.start :] == job.slots, "the row holds the slots that the step names"
        assert self.pool[job.table_row].tolist() == hashes, f"row {job.row} reads what it wrote, at every position"
        self.num_reads += job.end
        token = sample(hashes[-1])
        self._known[job.row] = [*tokens, token]
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
        self._queue.append(partial(self._poison, self._free_pages()))

    def advance(self) -> None:
        """Do what was queued first."""
        self._queue.popleft()()
