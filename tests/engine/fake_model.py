"""A model without weights: what it caches for a token is a hash of everything up to that token.

Its memory remembers which hash was written where: for the layers that keep whole sequences, for those that keep a
window, and for those that keep a state, which is the hash of all tokens that it has consumed. Every step reads every
row back as far as such layers see, so a slot that was handed out twice, freed too early, mapped to the wrong position
or not moved with its page shows up as a wrong hash, and as wrong output in the end. So does a state that is another
sequence's, of another moment, or not empty at the beginning.
"""

from collections import deque
from functools import partial
from typing import NamedTuple

import numpy as np
from fake_memory import EMPTY, memory_of
from manager_model import keys_over

from kvstead.engine import KVCacheManager, Step
from kvstead.kernels import host
from kvstead.model import ModelLayout
from kvstead.pages.amounts import FULL, STATE, WINDOW
from kvstead.prefix import Adapter, Namespace, TokenKey
from tiny_model import VOCABULARY

PLAIN = Namespace()
SPACES = [  # namespace and keys
    (PLAIN, ()),
    (Namespace(lora="a"), ()),
    (Namespace(salt="a"), ()),
    (PLAIN, (TokenKey(3, 6, "image"),)),
    (PLAIN, (TokenKey(3, 6, "another"), TokenKey(5, None, Adapter("a", "1")))),
]
_MODULUS = 2**31 - 1


def prefix_hashes(tokens, namespace=PLAIN, keys=()) -> list[int]:
    """What the model caches at each position."""
    value = hash(namespace) % _MODULUS
    hashes = []
    for position, token in enumerate(tokens):
        value += hash(keys_over(keys, position))
        value = (value * 48271 + int(token) + 1) % _MODULUS
        hashes.append(value)
    return hashes


def sample(hash_value: int) -> int:
    """The token that follows a prefix."""
    return hash_value // 7 % VOCABULARY


def generate(prompt, max_new_tokens, namespace=PLAIN, stop_tokens=(), keys=()) -> list[int]:
    """What the model says after a prompt, computed alone and without any cache."""
    tokens = [int(token) for token in prompt]
    for _ in range(max_new_tokens):
        tokens.append(sample(prefix_hashes(tokens, namespace, keys)[-1]))
        if tokens[-1] in stop_tokens:
            break
    return tokens[len(prompt) :]


def first_seen(layout: ModelLayout, position: int) -> int:
    """The first position that a layer with a window or chunk sees from `position`, itself included."""
    span = layout.window
    return max(0, position - span + 1) if layout.window_kind == "sliding" else position // span * span


class Job(NamedTuple):
    """What a step computes for one row, as the row, its windows and its state stood when the step was launched.

    Places are where the memory keeps a thing. `window_start` is the first position that the job's first query sees in
    a window; `windows` are the places of it and all behind it. `blank`: by side, places that are not written yet.
    `tokens` is None where they are what this runner has sampled for the row so far.
    """

    row: int
    start: int
    end: int
    places: np.ndarray
    window_start: int
    windows: np.ndarray
    state: int
    blank: dict[str, np.ndarray]
    tokens: list[int] | None
    space: tuple


class _Done:
    def __init__(self, tokens):
        self._tokens = tokens

    def tokens(self):
        return self._tokens


class FakeRunner:
    """Writes to and reads from its memory of hashes, each step as soon as it is launched.

    As in a layer of a real model, all tokens of a step are written before any is read.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.memory = memory_of(manager)
        layout = manager.layout
        self.keeps_all = layout.full_bytes_per_token > 0
        self.keeps_windows = layout.window is not None
        self.keeps_states = layout.state_bytes > 0
        self._known: dict[int, list[int]] = {}  # row -> tokens, as far as this runner has sampled them
        self._space: dict[int, tuple] = {}  # row -> namespace and keys
        self.num_reads = 0
        self.num_window_reads = 0
        self.num_state_reads = 0

    def launch(self, step: Step):
        """Compute a step at once."""
        return _Done(self._run(self._jobs(step)))

    def poison_free_slots(self) -> None:
        """Overwrite what has no owner, as another user of the memory might."""
        self.memory.poison(self.memory.free())

    def check_cached(self) -> None:
        """All that the tree has cached is what it stands for."""
        self._check(self._cached())

    def _jobs(self, step: Step) -> list[Job]:
        jobs = []
        written = []
        for row, length, slot in zip(step.rows.tolist(), step.lengths.tolist(), step.slots.tolist(), strict=True):
            jobs.append(self._job(row, length - 1, length, [slot], None, ()))
            written.append(slot)
        for chunk in step.chunks:
            known = chunk.request.tokens[: chunk.end].tolist()
            slots = chunk.slots.tolist()
            space = chunk.request.namespace, chunk.request.keys
            jobs.append(self._job(chunk.row, chunk.start, chunk.end, slots, known, space))
            written += slots
        assert len(set(written)) == len(written), "no two tokens of a step go to one slot"
        states = [job.state for job in jobs if job.state]
        assert len(set(states)) == len(states), "no two rows of a step have one state"
        return jobs

    def _job(self, row, start, end, slots, tokens, space) -> Job:
        manager, memory, page_size = self.manager, self.memory, self.manager.page_size
        table_row = manager.table.read(row, 0, end)
        assert table_row[start:].tolist() == slots, "the row holds the slots that the step names"
        places = memory.places(FULL, table_row) if self.keeps_all else table_row[:0]
        windows, low, state = table_row[:0], 0, 0
        if self.keeps_windows:
            low = first_seen(manager.layout, start)
            windows = self._windows(row, low, table_row[low:])
        if self.keeps_states:
            state = int(memory.state_places([row])[0])
            assert state > 0, f"row {row} has a state"
        rest = np.arange(slots[-1] + 1, -(-(slots[-1] + 1) // page_size) * page_size)
        fresh = np.concatenate((table_row[start:], rest))
        blank = {side: memory.places(side, fresh) for side in memory.zeroes_pages}
        return Job(row, start, end, places, low, windows, state, blank, tokens, space)

    def _windows(self, row, low, slots):
        page_size = self.manager.page_size
        ids = self.manager.allocator.window_pages[slots // page_size] * page_size + slots % page_size
        states = self.manager.allocator.window_page_states()
        for position, slot in enumerate(ids.tolist(), low):
            assert slot >= page_size, f"row {row} has no window slot at {position}, which a step sees"
            assert states[slot // page_size] == host.LIVE, f"row {row} has a window slot at {position} that is not live"
            assert slot % page_size == position % page_size
        return self.memory.places(WINDOW, slots)

    def _run(self, jobs: list[Job]) -> list[int]:
        for job in jobs:
            if job.tokens is not None:
                self._known[job.row] = job.tokens
                self._space[job.row] = job.space
        hashes = [prefix_hashes(self._known[job.row][: job.end], *self._space[job.row]) for job in jobs]
        for job in jobs:
            for side, places in job.blank.items():
                found = set(self.memory.read(side, places)) - {EMPTY}
                assert not found, f"row {job.row} was given pages that are not zeroed: {found}"
        for job, values in zip(jobs, hashes, strict=True):
            self._write(job, values)
        return [self._compute(job, values) for job, values in zip(jobs, hashes, strict=True)]

    def _write(self, job: Job, hashes: list[int]) -> None:
        new = hashes[job.start :]
        if self.keeps_all:
            self.memory.write(FULL, job.places[job.start :], new)
        if self.keeps_windows:
            self.memory.write(WINDOW, job.windows[job.start - job.window_start :], new)
        if self.keeps_states:
            before = hashes[job.start - 1] if job.start else EMPTY
            found = self.memory.read(STATE, [job.state])
            assert found == [before], f"row {job.row} has the state of its first {job.start} tokens, not {found}"
            self.memory.write(STATE, [job.state], hashes[-1:])
            self.num_state_reads += 1

    def _compute(self, job: Job, hashes: list[int]) -> int:
        if self.keeps_all:
            found = self.memory.read(FULL, job.places)
            assert found == hashes, f"row {job.row} reads what it wrote, at every position"
            self.num_reads += job.end
        if self.keeps_windows:  # what the job's queries see together: each from its own first position on
            seen = self.memory.read(WINDOW, job.windows)
            assert seen == hashes[job.window_start :], f"row {job.row} reads its window as it wrote it"
            self.num_window_reads += len(seen)
        token = sample(hashes[-1])
        self._known[job.row] = [*self._known[job.row][: job.end], token]
        return token

    def _cached(self) -> list[tuple[str, np.ndarray, list[int]]]:
        """What the memory should say at places of the tree's: side, places, hashes."""
        memory, page_size = self.memory, self.manager.page_size
        expected = []
        above = [(child, child.key[0], [], []) for child in self.manager.tree.root.children.values()]
        while above:
            node, namespace, keys, tokens = above.pop()
            tokens = [*tokens, *node.tokens.tolist()]
            keys = [*keys, *(TokenKey(start, end, value) for (start, value), end in node.keys.items())]
            hashes = prefix_hashes(tokens, namespace, keys)
            slots = (node.pages[:, None] * page_size + np.arange(page_size)).ravel()
            if self.keeps_all:
                expected.append((FULL, memory.places(FULL, slots), hashes[node.start :]))
            if self.keeps_windows and node.window.is_live:
                expected.append((WINDOW, memory.places(WINDOW, slots), hashes[node.start :]))
            if node.state is not None:
                expected.append((STATE, memory.places(STATE, [node.state.slot]), hashes[-1:]))
            above += [(child, namespace, keys, tokens) for child in node.children.values()]
        return expected

    def _check(self, expected) -> None:
        for side, places, hashes in expected:
            assert self.memory.read(side, places) == hashes, f"what is cached on side {side} is what it stands for"


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
    """Computes each step only when its results are asked for, in the order of launch, as a device far behind does.

    What the manager itself writes to memory has to wait for it: `drain` is what its fence should do.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        super().__init__(manager)
        self.memory.wait = self.drain
        self._queue = deque()

    def launch(self, step: Step):
        """Queue a step."""
        pending = _Later(self, self._jobs(step))
        self._queue.append(pending.compute)
        return pending

    def poison_free_slots(self) -> None:
        """Queue the overwriting of what has no owner now."""
        self._queue.append(partial(self.memory.poison, self.memory.free()))

    def check_cached(self) -> None:
        """Queue it, for what is cached now."""
        self._queue.append(partial(self._check, self._cached()))

    def advance(self) -> None:
        """Do what was queued first."""
        self._queue.popleft()()

    def drain(self) -> None:
        """Do all of it."""
        while self._queue:
            self.advance()
