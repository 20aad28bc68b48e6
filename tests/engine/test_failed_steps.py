"""A runner that fails: no request, row or page is lost, and all goes on as if the step had never been."""

import random

import numpy as np
import pytest
from fake_model import FakeRunner, generate
from scenario import prompt_of

from kvstead.engine import Request, Scheduler, Status
from kvstead.errors import RequestError
from kvstead.prefix import Namespace
from tiny_model import tiny_layout, tiny_manager, tiny_state_layout, tiny_window_layout

LAYOUTS = {
    "whole": tiny_layout(),
    "windows": tiny_window_layout(8),
    "states": tiny_state_layout(),
    "both": tiny_state_layout(8),
}
FAULTS = ("before", "after", "tokens", "missing", "impossible")


class Failure(Exception):
    """What the runner raises."""


class Failing:
    """Tokens that never come, too few of them, or one that is none."""

    def __init__(self, pending, fault):
        self._pending = pending
        self._fault = fault

    def tokens(self):
        """Fail in one of three ways."""
        found = list(self._pending.tokens())
        if self._fault == "tokens":
            raise Failure
        return found[1:] if self._fault == "missing" else [-1] * len(found)


class FlakyRunner(FakeRunner):
    """Fails at some steps: before or after they are computed, or with their tokens."""

    def __init__(self, manager, seed):
        super().__init__(manager)
        self._rng = random.Random(seed)
        self.num_failures = 0

    def launch(self, step):
        """Compute a step, or fail."""
        if self._rng.random() > 1 / 2:
            return super().launch(step)
        self.num_failures += 1
        fault = self._rng.choice(FAULTS)
        if fault == "before":
            raise Failure
        pending = super().launch(step)
        if fault == "after":
            raise Failure
        return Failing(pending, fault)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_requests_are_answered_whatever_steps_fail(kind, overlap, seed):
    """Retrying after each failure, every request gets the tokens that the model says; aborts work in between."""
    manager = tiny_manager(96, 4, layout=LAYOUTS[kind], state_interval=8)
    scheduler = Scheduler(manager, chunk_tokens=16, overlap=overlap)
    runner, rng = FlakyRunner(manager, seed), random.Random(seed)
    requests = [Request(f"r-{n}", prompt_of(rng.randrange(1, 30), n % 3), rng.randrange(1, 12)) for n in range(12)]
    aborted = set()
    for step in range(600):
        if step < len(requests):
            scheduler.add(requests[step])
        try:
            scheduler.step(runner)
        except (Failure, RequestError):
            if rng.random() < 1 / 6 and (live := [each for each in requests[: step + 1] if each.status in LIVE]):
                aborted.add(rng.choice(live))
                scheduler.abort(max(aborted & set(live), key=requests.index))
        manager.audit()
        runner.poison_free_slots()
        if step > len(requests) and scheduler.is_idle:
            break
    assert scheduler.is_idle
    assert runner.num_failures > 3
    for request in requests:
        if request.status is Status.FINISHED:
            assert request.output.tolist() == generate(request.prompt, request.max_new_tokens)
        else:
            assert request in aborted
    assert manager.flush()
    assert manager.allocator.live_size() == 0


LIVE = {Status.WAITING, Status.PREFILL, Status.DECODE}


@pytest.mark.parametrize("overlap", [False, True])
def test_step_is_retried_after_a_failure(overlap):
    """The step that failed comes again; requests keep their order and are not counted as retracted."""
    manager = tiny_manager(64)
    scheduler = Scheduler(manager, overlap=overlap)
    requests = [Request(n, prompt_of(4, n), 3) for n in range(3)]
    for request in requests:
        scheduler.add(request)

    class Broken:
        """A runner that cannot start."""

        def launch(self, step):
            """Fail."""
            assert step.chunks
            raise Failure

    for _ in range(3):
        with pytest.raises(Failure):
            scheduler.step(Broken())
        assert list(scheduler.waiting) == requests
        assert scheduler.num_running == 0
    runner = FakeRunner(manager)
    while not scheduler.is_idle:
        scheduler.step(runner)
    assert [request.output.tolist() for request in requests] == [generate(each.prompt, 3) for each in requests]
    assert {request.num_retractions for request in requests} == {0}


def test_drop_gives_up_steps_that_were_planned_by_hand():
    """Two steps under way are dropped together; the request that ended in between gives back its memory."""
    manager = tiny_manager(64)
    scheduler = Scheduler(manager, overlap=True)
    first, second = Request(0, prompt_of(4), 5), Request(1, prompt_of(4, 1), 5)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.process(scheduler.schedule(), [1, 2])
    scheduler.schedule()
    scheduler.schedule()
    scheduler.abort(first)
    assert scheduler.num_running == 2
    scheduler.drop()
    manager.audit()
    assert (scheduler.num_running, list(scheduler.waiting)) == (0, [second])
    assert second.tokens.tolist() == [*second.prompt.tolist(), 2]
    scheduler.drop()
    step = scheduler.schedule()
    assert step.index == 2
    scheduler.process(step, [3])
    scheduler.abort(second)
    assert manager.flush()


def test_prompt_is_copied_when_it_is_added():
    """The caller may overwrite its array at once: what is computed and cached are the tokens that were added."""
    for dtype in (np.int64, np.int32):
        manager = tiny_manager(64, 4)
        scheduler = Scheduler(manager, chunk_tokens=4)
        buffer = np.arange(8, dtype=dtype) % 5
        request = Request(0, buffer, 2)
        scheduler.add(request)
        scheduler.step(FakeRunner(manager))
        buffer[:] = 4
        assert request.prompt.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
        while not scheduler.is_idle:
            scheduler.process(step := scheduler.schedule(), [1] * (step.rows.size + len(step.chunks)))
        assert request.tokens[:8].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"request_id": None}, "NoneType"),
        ({"request_id": 1.5}, "float"),
        ({"namespace": []}, "unhashable"),
        ({"keys": 5}, "not iterable"),
        ({"keys": ["image"]}, "'image' is no key of tokens"),
        ({"stop_tokens": 5}, "not iterable"),
        ({"stop_tokens": (1, "x")}, "a stop token is 'x'"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
        ({"max_new_tokens": None}, "max_new_tokens is None"),
        ({"max_new_tokens": 0}, "0 tokens"),
    ],
)
def test_request_that_would_break_later_is_refused_at_the_door(change, words):
    """An id, namespace, keys, stop tokens or length of a wrong kind: an error, and others are served."""
    scheduler = Scheduler(tiny_manager(64))
    request = Request(**({"request_id": 7, "prompt": prompt_of(3), "max_new_tokens": 2} | change))
    with pytest.raises(RequestError, match=words):
        scheduler.add(request)
    other = Request(8, prompt_of(3), 2)
    scheduler.add(other)
    scheduler.step(FakeRunner(scheduler.manager))
    assert other.status is Status.DECODE


def test_ids_and_lengths_of_any_integer_kind_are_served():
    """Strings, negative and numpy numbers as ids, numpy numbers as lengths and stop tokens."""
    manager = tiny_manager(64)
    scheduler = Scheduler(manager)
    ids = ["r-1", "", -5, np.int8(4), 2**40 + 3]
    requests = [Request(own, prompt_of(3, n), np.uint8(4), Namespace(), (np.int64(77),)) for n, own in enumerate(ids)]
    for request in requests:
        assert scheduler.add(request)
    scheduler.step(FakeRunner(manager))
    tags = manager.allocator.owners()
    assert sum(tags.values()) == 15
    assert len(tags) == len(ids)
    assert requests[0].max_length == 7
    assert requests[3].number == 4
    with pytest.raises(RequestError, match="'r-1' has no number"):
        _ = requests[0].number
