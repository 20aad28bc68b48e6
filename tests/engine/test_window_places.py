"""Where windows are kept for others, and chunks that end before they would take those of others."""

import numpy as np
import pytest
from fake_model import FakeRunner, LateRunner, generate
from hypothesis import given
from hypothesis import strategies as st
from scenario import compute, prompt_of, run

from kvstead.engine import Request, Scheduler
from kvstead.engine.copy_record import CopyKind
from tiny_model import tiny_manager, tiny_window_layout

LEAST = 512  # tokens of a chunk that is not shortened


def manager_of(num_window_slots, page_size=4, span=8, **options):
    """A roomy full side, and a window side of so many slots."""
    options = {"max_requests": 4, "max_length": 8192, "storage": False, **options}
    layout = tiny_window_layout(span)
    return tiny_manager(1 << 15, page_size, layout=layout, num_window_slots=num_window_slots, **options)


def leave(manager, tokens):
    """A request computes just these tokens and leaves them in the cache."""
    row = manager.match(tokens).row
    compute(manager, row, len(tokens))
    manager.finish(row)


def test_chunk_ends_before_it_takes_the_last_windows_of_others():
    """Windows inside prompts are there to be taken, those at prompts' ends are not, while a chunk of 512 goes on."""
    manager = manager_of(3000)
    for first in range(5):
        leave(manager, prompt_of(200, first=first))
    row = manager.match(prompt_of(6000, first=9)).row
    end = manager.chunk_end(row, 6000)
    needed = 5 * (8 + 4)  # at most: a window and what fills its last page
    assert 3000 - needed - 4 <= end < 3000
    compute(manager, row, end)
    for first in range(5):
        assert manager.peek(prompt_of(200, first=first)).num_cached == 196
    manager.abort(row)


@given(
    num_window_slots=st.integers(700, 4000),
    rest=st.integers(1, 4000),
    others=st.lists(st.integers(9, 900), max_size=4),
    page_size=st.sampled_from([1, 4, 16]),
)
def test_shortened_chunk_goes_on_and_is_whole_pages(num_window_slots, rest, others, page_size):
    """It ends at the page that fits or at the least chunk, never beyond what was asked; one of 512 is left as it is."""
    manager = manager_of(num_window_slots, page_size)
    for first, length in enumerate(others):
        if manager.window_room() * page_size >= length:
            leave(manager, prompt_of(length, first=first))
    row = manager.match(prompt_of(rest + 1, first=9)).row
    end = manager.chunk_end(row, rest)
    assert min(rest, LEAST) <= end <= rest
    assert end in {rest, LEAST} or end % page_size == 0
    assert manager.protected[row] == manager.table.lengths[row] == 0, "asking changes nothing of the row"
    manager.abort(row)
    manager.audit()


@pytest.mark.parametrize("overlap", [False, True])
def test_long_prompt_beside_chats_is_computed_right_and_their_turns_are_reused(overlap):
    """A prompt of many chunks comes between the turns of chats on a small window side; no turn computes old tokens."""
    num_window_slots = 1800 if overlap else 1000  # two chunks are under way with overlap
    manager = manager_of(num_window_slots, span=16, storage=True, max_requests=2)
    scheduler = Scheduler(manager, chunk_tokens=1024, overlap=overlap)
    runner = (LateRunner if overlap else FakeRunner)(manager)
    chats = [prompt_of(60, first=first).tolist() for first in range(4)]
    for turn in range(3):
        for said in chats:
            request = Request(0, np.array(said), 5)
            scheduler.add(request)
            run(scheduler, runner)
            assert (turn, request.num_cached) == (turn, (len(said) - 8 - 1) // 4 * 4 if turn else 0)
            assert request.output.tolist() == generate(said, 5)
            said.extend([*request.output.tolist(), *prompt_of(8, first=turn).tolist()])
        scheduler.add(Request(1, prompt_of(3000, first=20 + turn), 2))
        run(scheduler, runner)
    runner.check_cached()
    manager.audit()


def test_window_is_kept_where_prompts_part():
    """Two prompts share 400 tokens whose windows inside are gone: the second leaves a window there for the third."""
    manager = manager_of(600)
    leave(manager, prompt_of(500))
    leave(manager, prompt_of(590, first=8))  # takes the windows inside the first prompt
    parting = [np.concatenate((prompt_of(400), np.full(60, 6 + user))) for user in range(3)]
    second = manager.match(parting[0])
    assert (second.num_cached, second.num_dead) == (0, 400)
    compute(manager, second.row, 460)
    manager.finish(second.row)
    leave(manager, prompt_of(560, first=9))
    third = manager.match(parting[1])
    assert (third.num_cached, third.num_dead) == (400, 0)
    assert manager.row_windows.record.num_used[CopyKind.BRANCH] == 1
    manager.abort(third.row)


def test_ends_that_no_request_continues_from_give_way():
    """Of prompts' ends and intervals none is used: once windows were evicted a prompt keeps one of the two, in turn."""
    manager = manager_of(64, state_interval=8)
    for first in range(160):
        leave(manager, prompt_of(30, first=first))
    record = manager.row_windows.record
    ends, intervals = (record.num_made[kind] for kind in (CopyKind.PROMPT, CopyKind.INTERVAL))
    assert abs(ends - intervals) <= 2
    assert 160 <= ends + intervals <= 160 + 160 // 16 + 2 * 4  # and both for one request in 16
