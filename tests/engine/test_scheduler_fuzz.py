"""Random traffic on small memories: no token is ever read wrong, and every output is the model's own."""

from typing import NamedTuple

import numpy as np
import pytest
from fake_model import SPACES, FakeRunner, LateRunner, generate
from hypothesis import given
from hypothesis import strategies as st
from scenario import PAGE

from kvstead.engine import Request, Scheduler, Status
from tiny_model import tiny_manager, tiny_window_layout

RUNNERS = [FakeRunner, LateRunner]
WINDOWS = {  # keywords of the layout
    "sliding": {},
    "chunked": {"chunked": True},
    "only sliding": {"pure": True},
    "only chunked": {"chunked": True, "pure": True},
}


class Memory(NamedTuple):
    """Sizes of a memory in pages; a model without windows has no span, one of windows alone no full pages."""

    page_size: int
    num_pages: int
    kind: str = ""
    span: int = 0
    num_window_pages: int = 0

    def manager(self, **options):
        """The manager of such a memory."""
        num_slots = self.num_pages * self.page_size
        if not self.span:
            return tiny_manager(num_slots, self.page_size, **options)
        options["layout"] = tiny_window_layout(self.span, **WINDOWS[self.kind])
        num_window_slots = self.num_window_pages * self.page_size
        if not self.num_pages:
            return tiny_manager(num_window_slots, self.page_size, **options)
        return tiny_manager(num_slots, self.page_size, num_window_slots=num_window_slots, **options)

    def holds(self, num_tokens):
        """Whether one sequence can be computed up to `num_tokens` cached tokens when it has the memory to itself."""
        pages = -(-num_tokens // self.page_size)
        if self.num_pages and pages > self.num_pages:
            return False
        return not self.span or min(pages, window_need(self.span, self.page_size)) <= self.num_window_pages


def window_need(span, page_size):
    """Pages that one sequence may need at once: its window wherever it lies in its pages, and a page to grow in."""
    return -(-span // page_size) + 2


@st.composite
def memories(draw, kind):
    """A memory without windows, or one with windows of some kind: too few pages of them, just enough or plenty."""
    page_size, num_pages = draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.integers(2, 12))
    if not kind:
        return Memory(page_size, num_pages)
    if WINDOWS[kind].get("pure"):
        num_pages = 0
    span = draw(st.integers(1, 9))
    spare = draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 10, -1, -2]))
    return Memory(page_size, num_pages, kind, span, max(1, window_need(span, page_size) + spare))


@st.composite
def traffic(draw, kind=""):
    """A memory, scheduler limits, and requests with the step at which they come (and perhaps go)."""
    memory = draw(memories(kind))
    options = {
        "chunk_tokens": draw(st.integers(1, 12)),
        "max_running": draw(st.integers(1, 6)),
        "decode_headroom": draw(st.sampled_from([0, 1, 5, 10])),
        "overlap": draw(st.booleans()),
    }
    requests = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 1), min_size=1, max_size=14),  # prompt: two tokens, so that prefixes meet
                st.integers(1, 10),  # new tokens
                st.sampled_from(SPACES),
                st.sampled_from([(), (0,), (1, 3)]),  # stop tokens
                st.integers(0, 12),  # arrives at step
                st.one_of(st.none(), st.integers(0, 20)),  # is aborted at step
            ),
            min_size=1,
            max_size=12,
        )
    )
    policy = draw(st.sampled_from(["lru", "lfu", "mru"]))
    return memory, options, requests, draw(st.booleans()), policy, draw(st.sampled_from(RUNNERS))


def play(memory, options, specs, prefix_cache, policy, make_runner):
    """Run the traffic to its end, auditing after every step; returns the requests and the scheduler."""
    manager = memory.manager(prefix_cache=prefix_cache, policy=policy)
    scheduler = Scheduler(manager, **options)
    runner = make_runner(manager)
    requests = [
        Request(i, np.array(prompt), new, namespace=space[0], stop_tokens=stop, keys=space[1])
        for i, (prompt, new, space, stop, _, _) in enumerate(specs)
    ]
    started: list[Request] = []
    ended: list[Request] = []
    last = max(arrives for *_, arrives, _ in specs)
    for step in range(3000):
        for request, (*_, arrives, aborted) in zip(requests, specs, strict=True):
            if arrives == step:
                scheduler.add(request)
            if aborted == step and arrives <= step:
                scheduler.abort(request)
                scheduler.abort(request)  # twice is the same as once
        outcome = scheduler.step(runner)
        started += [] if outcome is None else outcome.started
        ended += [] if outcome is None else outcome.ended
        manager.audit()
        runner.poison_free_slots()
        if step >= last and scheduler.is_idle:
            assert len(set(started)) == len(started), "a first token comes once, retracted or not"
            assert set(ended) == {request for request in requests if request.status is Status.FINISHED}
            assert set(ended) <= set(started)
            return requests, scheduler
    pytest.fail("the scheduler does not come to an end")


def check(memory, options, specs, prefix_cache, policy, make_runner):
    """What must hold when all is done."""
    requests, scheduler = play(memory, options, specs, prefix_cache, policy, make_runner)
    if scheduler.admission.decode_headroom >= max(new for _, new, *_ in specs):
        assert scheduler.num_retractions == 0, "with all growth in reserve no request is retracted"
    for request, (prompt, new, space, stop, _, aborted) in zip(requests, specs, strict=True):
        fits = memory.holds(len(prompt) + new - 1)
        assert (request.status is Status.REJECTED) == (not fits)
        if not fits:
            assert request.reason
            continue
        expected = generate(prompt, new, space[0], stop, space[1])
        output = request.output.tolist()
        if request.status is Status.FINISHED:
            assert output == expected
        else:
            assert request.status is Status.ABORTED
            assert aborted is not None
            assert output == expected[: len(output)]
    check_all_is_back(memory, scheduler.manager)


def check_all_is_back(memory, manager):
    """Nothing is held or parked; all of both sides can be had, and is free once the prefixes are dropped."""
    allocator = manager.allocator
    assert manager.table.live_rows().size == 0
    assert allocator.parked_size() == 0
    assert manager.capacity.most(PAGE) == manager.num_slots // memory.page_size
    assert memory.num_pages in {0, manager.capacity.most(PAGE)}
    if memory.span:
        assert allocator.swa_parked_size() == 0
        assert manager.window_room() == memory.num_window_pages
    assert manager.flush()
    manager.audit()
    if not memory.span:
        assert allocator.available_size() == manager.num_slots
        return
    assert allocator.full_available_size() == manager.num_slots
    assert allocator.swa_available_size() == memory.num_window_pages * memory.page_size
    assert not allocator.window_pages[:-1].any()


@given(traffic())
def test_every_output_is_the_models_own(case):
    """Whatever is chunked, shared, evicted, retracted, aborted or overlapped, the output is as it should be."""
    check(*case)


@pytest.mark.parametrize("kind", WINDOWS)
@given(st.data())
def test_every_output_is_the_models_own_with_windows(kind, data):
    """The same where some or all layers keep only a window or chunk, on a window side from just enough to plenty."""
    check(*data.draw(traffic(kind)))


def soak_traffic(rng, memory):
    """Many requests at once, for a long time."""
    specs = [
        (
            rng.integers(0, 2, rng.integers(1, 60)).tolist(),
            int(rng.integers(1, 40)),
            SPACES[rng.integers(len(SPACES))],
            (),
            int(rng.integers(0, 60)),
            int(rng.integers(0, 100)) if rng.random() < 0.2 else None,
        )
        for _ in range(60)
    ]
    options = {"chunk_tokens": int(rng.integers(4, 64)), "max_running": 16, "overlap": bool(rng.integers(2))}
    runner = RUNNERS[rng.integers(2)]
    return memory, options, specs, bool(rng.integers(2)), "lru", runner


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(400))
def test_every_output_is_the_models_own_for_long(seed):
    """The same with many more requests at once."""
    rng = np.random.default_rng(seed)
    memory = Memory(int(rng.choice([1, 2, 4, 16])), int(rng.integers(4, 40)))
    check(*soak_traffic(rng, memory))


@pytest.mark.soak
@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("seed", range(200))
def test_every_output_is_the_models_own_with_windows_for_long(kind, seed):
    """The same with many more requests at once, and windows from shorter than a page to longer than most prompts."""
    rng = np.random.default_rng(seed)
    page_size, num_pages = int(rng.choice([1, 2, 3, 4, 8, 16])), int(rng.integers(4, 40))
    span = int(rng.integers(1, rng.choice([4, 12, 64])))
    if WINDOWS[kind].get("pure"):
        num_pages = 0
    num_window_pages = window_need(span, page_size) + int(rng.choice([0, 0, 1, 2, 5, 20, 100]))
    check(*soak_traffic(rng, Memory(page_size, num_pages, kind, span, num_window_pages)))
