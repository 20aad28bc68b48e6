"""The scheduler call by call."""

import numpy as np
import pytest
from fake_model import FakeRunner, generate
from scenario import PAGE, prompt_of

from kvstead.engine import Request, Scheduler, Status
from kvstead.errors import InvalidSize, RequestError
from kvstead.prefix import TokenKey
from tiny_model import tiny_manager


@pytest.mark.parametrize(
    ("options", "num_rows"),
    [({"chunk_tokens": 0}, 4), ({"max_running": 0}, 4), ({"decode_headroom": -1}, 4), ({}, 0)],
)
def test_limits_below_one_are_refused(options, num_rows):
    """A scheduler that could never run anything is not built."""
    with pytest.raises(InvalidSize, match="1 or more"):
        Scheduler(tiny_manager(8, max_requests=num_rows), **options)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: Request(0, np.empty(0, dtype=np.int64), 1),
        lambda: Request(0, np.array([1, -1]), 1),
        lambda: Request(0, np.array([2**31]), 1),
        lambda: Request(0, np.array([1]), 0),
        lambda: Request(0, np.array([1]), -3),
    ],
)
def test_requests_that_are_none_are_refused(request_of):
    """No prompt, no token ids or nothing to generate: an error, and nothing waits."""
    scheduler = Scheduler(tiny_manager(8))
    request = request_of()
    with pytest.raises(RequestError):
        scheduler.add(request)
    assert scheduler.is_idle
    assert request.status is Status.WAITING


@pytest.mark.parametrize("when", ["waiting", "running", "finished", "aborted", "rejected"])
def test_request_can_be_added_once(when):
    """Whatever became of it the first time."""
    manager = tiny_manager(8)
    scheduler = Scheduler(manager)
    request = Request(0, prompt_of(3), 99 if when == "rejected" else 2)
    scheduler.add(request)
    runner = FakeRunner(manager)
    for _ in range({"running": 1, "finished": 2}.get(when, 0)):
        scheduler.step(runner)
    if when == "aborted":
        scheduler.abort(request)
    status = request.status
    with pytest.raises(RequestError, match="new request"):
        scheduler.add(request)
    assert request.status is status
    assert len(scheduler.waiting) == (when == "waiting")


def test_abort_of_a_request_never_added_forgets_it():
    """It is marked, holds nothing, and cannot be added afterwards."""
    scheduler = Scheduler(tiny_manager(8))
    request = Request(0, prompt_of(3), 2)
    scheduler.abort(request)
    assert request.status is Status.ABORTED
    with pytest.raises(RequestError):
        scheduler.add(request)
    assert scheduler.is_idle


@pytest.mark.parametrize("overlap", [True, False])
def test_abort_of_the_first_in_the_queue_unblocks_the_next(overlap):
    """The one that did not fit was the obstacle; without it the next is admitted in the next step."""
    manager = tiny_manager(10)
    scheduler = Scheduler(manager, decode_headroom=0, overlap=overlap)
    runner = FakeRunner(manager)
    runs, blocks, small = (Request(i, prompt_of(length, i), 3) for i, length in enumerate((5, 8, 2)))
    for request in (runs, blocks, small):
        scheduler.add(request)
    scheduler.step(runner)
    assert [r.status for r in (runs, blocks, small)] == [Status.DECODE, Status.WAITING, Status.WAITING]
    scheduler.abort(blocks)
    scheduler.step(runner)
    assert small.status is Status.DECODE
    while not scheduler.is_idle:
        scheduler.step(runner)
    assert (runs.output.tolist(), small.output.tolist()) == (generate(runs.prompt, 3), generate(small.prompt, 3))


def test_steps_are_processed_in_order_with_a_token_each():
    """A step that comes twice or too early, or with other than its tokens, changes nothing."""
    manager = tiny_manager(32, 4)
    scheduler = Scheduler(manager, overlap=True)
    for i in range(2):
        scheduler.add(Request(i, prompt_of(4, i), 5))
    first, second = scheduler.schedule(), scheduler.schedule()
    for step, tokens in ((second, [1, 1]), (first, [1]), (first, [1, 1, 1]), (first, [])):
        before = manager.stats(), manager.num_tokens.tolist()
        with pytest.raises(RequestError):
            scheduler.process(step, tokens)
        assert (manager.stats(), manager.num_tokens.tolist()) == before
    assert [r.request_id for r in scheduler.process(first, [1, 2]).started] == [0, 1]
    with pytest.raises(RequestError, match="in order"):
        scheduler.process(first, [1, 2])
    assert scheduler.process(second, [1, 2]).started == []
    manager.audit()


@pytest.mark.parametrize("chunk_tokens", [1, 3, 8, 100])
@pytest.mark.parametrize("max_running", [1, 2, 9])
@pytest.mark.parametrize("overlap", [True, False])
def test_steps_keep_the_limits(chunk_tokens, max_running, overlap):
    """Prompts never get more tokens of a step than decoding leaves, nor more requests the memory than may run."""
    manager = tiny_manager(256, 4, max_requests=8)
    scheduler = Scheduler(manager, chunk_tokens=chunk_tokens, max_running=max_running, overlap=overlap)
    runner = FakeRunner(manager)
    requests = [Request(i, prompt_of(7, i), 6) for i in range(6)]
    for request in requests:
        scheduler.add(request)
    order = []
    while not scheduler.is_idle:
        outcome = scheduler.step(runner)
        assert scheduler.num_running <= min(max_running, 8)
        if outcome is not None:
            step = outcome.step
            chunks = sum(chunk.end - chunk.start for chunk in step.chunks)
            assert chunks <= max(0, chunk_tokens - step.rows.size)
            order += [request.request_id for request in outcome.started]
    assert order == list(range(6))
    assert [request.output.tolist() for request in requests] == [generate(r.prompt, 6) for r in requests]


def test_what_the_cache_held_is_told_once():
    """`num_cached` is that of the first admission, also when a retracted request finds its own prefix again."""
    manager = tiny_manager(16, 2)
    scheduler = Scheduler(manager, decode_headroom=0)
    runner = FakeRunner(manager)
    first = Request(0, prompt_of(6), 1)
    scheduler.add(first)
    scheduler.step(runner)
    again = [Request(1 + i, np.concatenate([prompt_of(6), [i, i]]), 5) for i in range(3)]
    for request in again:
        scheduler.add(request)
    while not scheduler.is_idle:
        scheduler.step(runner)
        manager.audit()
    assert scheduler.num_retractions > 0
    assert (first.num_cached, [request.num_cached for request in again]) == (0, [6, 6, 6])
    for request in again:
        assert request.output.tolist() == generate(request.prompt, 5)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("chunk_tokens", [2, 100])
def test_no_token_is_computed_that_nobody_asked_for(overlap, chunk_tokens):
    """Without stop tokens a request computes each token but its last, once, also when steps overlap."""
    manager = tiny_manager(64, 4)
    scheduler = Scheduler(manager, chunk_tokens=chunk_tokens, overlap=overlap)
    runner = FakeRunner(manager)
    lengths = [(3, 1), (4, 2), (6, 7)]
    for i, (prompt, new) in enumerate(lengths):
        scheduler.add(Request(i, prompt_of(prompt, i), new))
    computed = 0
    while not scheduler.is_idle:
        outcome = scheduler.step(runner)
        computed += outcome.step.num_tokens if outcome else 0
    assert computed == sum(prompt + new - 1 for prompt, new in lengths)


def test_retracted_request_is_the_next_to_come_back():
    """It stands in front of those that have waited all the time."""
    manager = tiny_manager(12)
    scheduler = Scheduler(manager, decode_headroom=0)
    runner = FakeRunner(manager)
    requests = [Request(i, prompt_of(4, i), 5) for i in range(4)]
    for request in requests:
        scheduler.add(request)
    started, ended = [], []
    while not scheduler.is_idle:
        outcome = scheduler.step(runner)
        started += outcome.started
        ended += outcome.ended
        if requests[2].num_retractions and requests[2].status is Status.WAITING:
            assert scheduler.waiting[-1] is requests[3]
    assert requests[2].num_retractions > 0
    assert started == ended == requests


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("overlap", [True, False])
def test_what_an_aborted_request_generated_is_not_cached(page_size, overlap):
    """Its prompt stays, since others may have found it; nothing is added at its end."""
    manager = tiny_manager(64, page_size)
    scheduler = Scheduler(manager, overlap=overlap)
    runner = FakeRunner(manager)
    request = Request(0, prompt_of(8), 40)
    scheduler.add(request)
    for _ in range(12):
        scheduler.step(runner)
    scheduler.abort(request)
    scheduler.step(runner)
    assert scheduler.is_idle
    assert request.output.size >= 10
    assert manager.tree.evictable_tokens == 8
    manager.audit()


@pytest.mark.parametrize("page_size", [2, 4])
def test_prompt_goes_on_in_its_last_page_without_room(page_size):
    """Where no page can be had, a chunk still fills the page that its request holds."""
    manager = tiny_manager(6 * page_size, page_size)
    scheduler = Scheduler(manager, chunk_tokens=page_size + 1)
    runner = FakeRunner(manager)
    scheduler.add(Request(0, prompt_of(3 * page_size), 1))
    scheduler.step(runner)
    other = manager.match(prompt_of(1, 9)).row
    manager.extend([other], [4 * page_size])
    assert manager.capacity.most(PAGE) == 0
    chunk = scheduler.schedule().chunks[0]
    assert (chunk.start, chunk.end) == (page_size + 1, 2 * page_size)


def test_frees_wait_for_the_end_of_a_step(monkeypatch):
    """While results are processed what comes back is parked, and free when all are."""
    manager = tiny_manager(8, prefix_cache=False)
    scheduler = Scheduler(manager)
    for i in range(2):
        scheduler.add(Request(i, prompt_of(3, i), 1))
    step = scheduler.schedule()
    seen, finish = [], manager.finish

    def watched(row):
        finish(row)
        seen.append((manager.allocator.available_size(), manager.allocator.parked_size()))

    monkeypatch.setattr(manager, "finish", watched)
    scheduler.process(step, [1, 1])
    assert seen == [(2, 3), (2, 6)]
    assert manager.allocator.available_size() == 8


@pytest.mark.parametrize("where", ["row", "chunk"])
def test_step_with_an_impossible_token_can_be_processed_again(where):
    """A sampled id that is no token refuses the whole step and changes nothing: right ids are taken afterwards."""
    manager = tiny_manager(64, 4)
    scheduler = Scheduler(manager, chunk_tokens=16)
    first, second = (Request(i, np.arange(5) + i, 3) for i in range(2))
    scheduler.add(first)
    scheduler.process(scheduler.schedule(), [1])
    scheduler.add(second)
    step = scheduler.schedule()
    assert (step.rows.size, len(step.chunks)) == (1, 1)
    with pytest.raises(RequestError):
        scheduler.process(step, [-1, 2] if where == "row" else [2, -1])
    manager.audit()
    outcome = scheduler.process(step, [2, 2])
    assert outcome.started == [second]
    manager.audit()


def test_requests_with_different_images_share_what_lies_before_them():
    """Of three requests with an image each, the later ones find the pages in front, and all of their own image."""
    scheduler = Scheduler(tiny_manager(64, page_size=4))
    runner = FakeRunner(scheduler.manager)
    found = []
    for number, image in enumerate(["one", "two", "one"]):
        request = Request(number, np.arange(17) % 5, 2, keys=[TokenKey(9, 12, image)])
        scheduler.add(request)
        while not scheduler.is_idle:
            scheduler.step(runner)
        assert request.output.tolist() == generate(request.prompt, 2, keys=request.keys)
        found.append(request.num_cached)
    assert found == [0, 8, 16]


def test_keys_of_a_refused_match_change_nothing():
    """What is no key raises, and the manager has all its rows."""
    manager = tiny_manager(64, prefix_cache=False)
    with pytest.raises(RequestError, match="no key of tokens"):
        manager.match(np.arange(4), keys=["image"])
    assert manager.table.num_free == manager.table.num_rows
