"""Admission where window pages come back from requests that go on running."""

import pytest
from fake_model import FakeRunner, generate
from scenario import prompt_of, run

from kvstead.engine import Request, Scheduler, Status
from tiny_model import tiny_manager, tiny_window_layout


@pytest.mark.parametrize("page_size", [1, 2, 4, 8])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("kind", [{}, {"chunked": True}, {"pure": True}], ids=str)
def test_request_waits_for_an_end_while_window_pages_come_back(kind, prefix_cache, overlap, page_size):
    """A long prompt takes the window side for its chunk only: the next request is admitted when it decodes."""
    sides = {"num_slots": 128} if kind.get("pure") else {"num_slots": 1024, "num_window_slots": 128}
    layout = tiny_window_layout(24, **kind)
    manager = tiny_manager(page_size=page_size, layout=layout, prefix_cache=prefix_cache, **sides)
    scheduler = Scheduler(manager, chunk_tokens=128, decode_headroom=8, overlap=overlap)
    runner = FakeRunner(manager)
    long, waits = Request(0, prompt_of(110, 0), 100), Request(1, prompt_of(30, 1), 5)
    scheduler.add(long)
    scheduler.add(waits)
    scheduler.step(runner)
    assert waits.status is Status.WAITING
    for _ in range(4):
        scheduler.step(runner)
    assert manager.window_room() * page_size >= 64
    assert waits.status is not Status.WAITING
    run(scheduler, runner)
    assert waits.output.tolist() == generate(waits.prompt, 5)
    assert long.output.tolist() == generate(long.prompt, 100)
    assert scheduler.num_retractions == 0


@pytest.mark.parametrize("overlap", [True, False])
def test_second_of_two_requests_comes_in_when_the_window_of_the_first_is_what_it_keeps(overlap):
    """Of five window pages the first prompt's chunk takes three and keeps two: then there are three for the second."""
    manager = tiny_manager(24, 4, layout=tiny_window_layout(4), num_window_slots=20, prefix_cache=False)
    scheduler = Scheduler(manager, decode_headroom=0, chunk_tokens=64, overlap=overlap)
    runner = FakeRunner(manager)
    for i in range(2):
        scheduler.add(Request(i, prompt_of(9, i), 4))
    most = 0
    while not scheduler.is_idle:
        scheduler.step(runner)
        most = max(most, scheduler.num_running)
    assert most == 2
    assert scheduler.num_retractions == 0


@pytest.mark.parametrize("overlap", [True, False])
def test_refusal_is_not_held_against_the_next_in_the_queue(overlap):
    """A request that was refused once and came in later leaves no refusal behind: a short one comes in at once."""
    layout = tiny_window_layout(3)
    manager = tiny_manager(2000, 1, layout=layout, num_window_slots=12 if overlap else 10, max_length=600)
    scheduler = Scheduler(manager, chunk_tokens=16, decode_headroom=2, overlap=overlap)
    runner = FakeRunner(manager)
    for i, length in enumerate((26, 36)):
        scheduler.add(Request(i, prompt_of(length, i), 500))
    short = Request(2, prompt_of(1, 2), 1)
    scheduler.add(short)
    for _ in range(60):
        scheduler.step(runner)
    assert short.status is Status.FINISHED
    assert scheduler.num_running == 2
