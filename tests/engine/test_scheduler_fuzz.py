"""Random traffic on small memories: no token is ever read wrong, and every output is the model's own."""

import numpy as np
import pytest
from fake_model import FakeRunner, LateRunner, generate
from hypothesis import given
from hypothesis import strategies as st

from kvstead.engine import Request, Scheduler, Status
from kvstead.prefix import Namespace
from tiny_model import tiny_manager

RUNNERS = [FakeRunner, LateRunner]
NAMESPACES = [Namespace(), Namespace(lora="a"), Namespace(salt="a")]


@st.composite
def traffic(draw):
    """A memory, scheduler limits, and requests with the step at which they come (and perhaps go)."""
    page_size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    num_pages = draw(st.integers(2, 12))
    options = {
        "chunk_tokens": draw(st.integers(1, 12)),
        "max_running": draw(st.integers(1, 6)),
        "decode_headroom": draw(st.sampled_from([0, 1, 5])),
        "overlap": draw(st.booleans()),
    }
    requests = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 1), min_size=1, max_size=14),  # prompt: two tokens, so that prefixes meet
                st.integers(1, 10),  # new tokens
                st.sampled_from(NAMESPACES),
                st.sampled_from([(), (0,), (1, 3)]),  # stop tokens
                st.integers(0, 12),  # arrives at step
                st.one_of(st.none(), st.integers(0, 20)),  # is aborted at step
            ),
            min_size=1,
            max_size=12,
        )
    )
    policy = draw(st.sampled_from(["lru", "lfu", "mru"]))
    return page_size, num_pages, options, requests, draw(st.booleans()), policy, draw(st.sampled_from(RUNNERS))


def play(page_size, num_pages, options, specs, prefix_cache, policy, make_runner):
    """Run the traffic to its end, auditing after every step; returns the requests and the scheduler."""
    manager = tiny_manager(num_pages * page_size, page_size, prefix_cache=prefix_cache, policy=policy)
    scheduler = Scheduler(manager, **options)
    runner = make_runner(manager)
    requests = [
        Request(i, np.array(prompt), new, namespace=space, stop_tokens=stop)
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


def check(page_size, num_pages, options, specs, prefix_cache, policy, make_runner):
    """What must hold when all is done."""
    requests, scheduler = play(page_size, num_pages, options, specs, prefix_cache, policy, make_runner)
    manager = scheduler.manager
    for request, (prompt, new, space, stop, _, aborted) in zip(requests, specs, strict=True):
        fits = -(-(len(prompt) + new - 1) // page_size) <= num_pages
        assert (request.status is Status.REJECTED) == (not fits)
        if not fits:
            assert request.reason
            continue
        expected = generate(prompt, new, space, stop)
        output = request.output.tolist()
        if request.status is Status.FINISHED:
            assert output == expected
        else:
            assert request.status is Status.ABORTED
            assert aborted is not None
            assert output == expected[: len(output)]
    assert manager.table.live_rows().size == 0
    assert manager.allocator.parked_size() == 0
    assert manager.room() == num_pages
    assert manager.flush()
    assert manager.allocator.available_size() == num_pages * page_size


@given(traffic())
def test_every_output_is_the_models_own(case):
    """Whatever is chunked, shared, evicted, retracted, aborted or overlapped, the output is as it should be."""
    check(*case)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(400))
def test_every_output_is_the_models_own_for_long(seed):
    """The same with many more requests at once."""
    rng = np.random.default_rng(seed)
    page_size = int(rng.choice([1, 2, 4, 16]))
    num_pages = int(rng.integers(4, 40))
    specs = [
        (
            rng.integers(0, 2, rng.integers(1, 60)).tolist(),
            int(rng.integers(1, 40)),
            NAMESPACES[rng.integers(3)],
            (),
            int(rng.integers(0, 60)),
            int(rng.integers(0, 100)) if rng.random() < 0.2 else None,
        )
        for _ in range(60)
    ]
    options = {"chunk_tokens": int(rng.integers(4, 64)), "max_running": 16, "overlap": bool(rng.integers(2))}
    runner = RUNNERS[rng.integers(2)]
    check(page_size, num_pages, options, specs, bool(rng.integers(2)), "lru", runner)
