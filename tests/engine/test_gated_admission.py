"""Admission to a memory whose pages may not move at times."""

import pytest
from fake_memory import Switch
from fake_model import FakeRunner
from scenario import prompt_of

from kvstead.engine import KVCacheManager, Request, Scheduler, Status
from tiny_model import tiny_state_layout


@pytest.mark.parametrize("overlap", [True, False])
def test_refusal_for_want_of_moves_ends_when_pages_may_move(overlap):
    """Who was refused because free bytes lay scattered is looked at again once pages may move, before anybody ends."""
    gate = Switch()
    manager = KVCacheManager(
        tiny_state_layout(state_rows=20),
        24 * 64 + 4 * 344,
        pool_layout="unified",
        page_size=4,
        prefix_cache=False,
        may_move=gate,
        storage=False,
    )
    scheduler = Scheduler(manager, decode_headroom=0, overlap=overlap)
    runner = FakeRunner(manager)
    for at, (length, new) in enumerate([(9, 24), (55, 1), (9, 24)]):  # the second leaves a hole between the others
        scheduler.add(Request(at, prompt_of(length, at), new))
    while scheduler.num_running != 2:
        scheduler.step(runner)
    gate.is_on = False
    late = [Request(at, prompt_of(4, at), 20) for at in (3, 4)]
    for request in late:
        scheduler.add(request)
    for _ in range(3):
        scheduler.step(runner)
    assert [request.status for request in late] == [Status.DECODE, Status.WAITING]
    gate.is_on = True
    scheduler.step(runner)
    assert late[1].status is not Status.WAITING
    assert scheduler.num_running == 4
    manager.audit()
