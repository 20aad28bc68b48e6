"""Where recurrent states are kept: what was computed once is reused, to the page, and read back as it was written."""

import numpy as np
import pytest
from fake_model import FakeRunner, LateRunner, generate
from hypothesis import given
from hypothesis import strategies as st
from scenario import prompt_of, run

from kvstead.engine import Request, Scheduler
from tiny_model import tiny_manager, tiny_state_layout

INTERVALS = st.sampled_from([None, 0, 3, 8, 64])
NEVER = 1 << 30  # a token that is never sampled


def scheduler_of(page_size, num_states=64, *, interval=0, chunk_tokens=64, overlap=False, span=0, **options):
    """A scheduler of a model with states, and windows where there is a span, and a runner that reads all back."""
    sizes = {"num_window_slots": 4096} if span else {}
    options = {"max_requests": 4, "max_length": 512, "state_interval": interval, **sizes, **options}
    manager = tiny_manager(4096, page_size, layout=tiny_state_layout(span), num_states=num_states, **options)
    return Scheduler(manager, chunk_tokens=chunk_tokens, overlap=overlap), (LateRunner if overlap else FakeRunner)(
        manager
    )


def serve(scheduler, runner, prompt, num_new, stops=()):
    """A request alone, computed right, and what it found in the cache."""
    request = Request(0, np.array(prompt), num_new, stop_tokens=frozenset(stops))
    assert scheduler.add(request)
    run(scheduler, runner)
    assert request.output.tolist() == generate(prompt, num_new)
    runner.check_cached()
    scheduler.manager.audit()
    return request


def whole(length, page_size):
    """The tokens of whole pages."""
    return length - length % page_size


@given(
    length=st.integers(1, 90),
    page_size=st.sampled_from([1, 2, 4, 16]),
    chunk_tokens=st.sampled_from([5, 16, 64]),
    interval=INTERVALS,
    span=st.sampled_from([0, 0, 5]),
    overlap=st.booleans(),
)
def test_prompt_that_comes_again_is_reused_to_its_last_page(length, page_size, chunk_tokens, interval, span, overlap):
    """Whatever the lengths of prompt, chunk, page and interval, all but the last token's page is there at once."""
    scheduler, runner = scheduler_of(
        page_size, interval=interval, chunk_tokens=chunk_tokens, span=span, overlap=overlap
    )
    found = [serve(scheduler, runner, prompt_of(length), 3).num_cached for _ in range(3)]
    assert found == [0] + 2 * [whole(length - 1, page_size)]


@given(
    turns=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=2, max_size=5),
    page_size=st.sampled_from([1, 2, 4, 16]),
    interval=INTERVALS,
    span=st.sampled_from([0, 0, 5]),
    overlap=st.booleans(),
    may_stop=st.booleans(),
)
def test_turn_of_a_chat_reuses_all_whole_pages_computed_before(turns, page_size, interval, span, overlap, may_stop):
    """Question by question, answers included, whether or not the scheduler knows where an answer ends."""
    scheduler, runner = scheduler_of(page_size, interval=interval, span=span, overlap=overlap)
    said, computed = [], 0
    for number, (num_asked, num_new) in enumerate(turns):
        said += prompt_of(num_asked, first=number).tolist()
        request = serve(scheduler, runner, said, num_new, {NEVER} if may_stop else ())
        assert request.num_cached == min(whole(computed, page_size), whole(len(said) - 1, page_size))
        said += request.output.tolist()
        computed = len(said) - 1


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_third_request_with_one_system_prompt_reuses_it(page_size):
    """The second parts from the first, and leaves a state there for all that follow."""
    scheduler, runner = scheduler_of(page_size)
    system = prompt_of(40).tolist()
    users = [[*system, *(prompt_of(9, first=7 + user) + 5)] for user in range(4)]
    found = [serve(scheduler, runner, user, 2).num_cached for user in users]
    assert found == [0, 0, whole(40, page_size), whole(40, page_size)]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("interval", [0, 8])
def test_two_chats_in_turn_keep_their_last_states(interval, overlap):
    """With room for two states beside the running one, each turn continues from the last one of its own chat."""
    scheduler, runner = scheduler_of(4, 3, interval=interval, overlap=overlap, max_requests=1)
    chats = [[], []]
    for turn in range(3):
        for number, said in enumerate(chats):
            before = whole(len(said) - 1, 4) if said else 0
            said.extend(prompt_of(10, first=number).tolist())
            request = serve(scheduler, runner, said, 7)
            assert request.num_cached == before, f"turn {turn} of chat {number}"
            said.extend(request.output.tolist())
    assert [scheduler.manager.peek([*said, 1]).num_cached for said in chats] == [whole(len(chats[0]) - 1, 4)] * 2


def test_answers_that_never_come_back_take_no_place_for_long():
    """Once states are evicted and 32 answers were of no use, their copies stop, but for one request in 16."""
    scheduler, runner = scheduler_of(4, 6)
    for number in range(200):
        serve(scheduler, runner, prompt_of(13, first=number), 9)
    made = scheduler.manager.num_state_copies
    for number in range(200, 232):
        serve(scheduler, runner, prompt_of(13, first=number), 9)
    assert 32 + 2 <= scheduler.manager.num_state_copies - made <= 32 + 3  # each prompt's, and two answers'


def test_tokens_whose_state_found_no_room_are_found_and_counted_as_lost():
    """A prompt whose state could not be kept is cached all the same; the same prompt finds it, and loses it."""
    scheduler, runner = scheduler_of(4, 2, max_requests=2)
    first, second = (Request(number, prompt_of(21, first=number), 30) for number in range(2))
    for request in (first, second):
        assert scheduler.add(request)
    run(scheduler, runner)
    seen = scheduler.manager.match(prompt_of(21))
    assert seen.num_cached + seen.num_dead == 20
    assert scheduler.manager.num_state_copies < 2 * 2


@given(page_size=st.sampled_from([1, 2, 4]), length=st.integers(1, 30), first=st.integers(0, 9), stop=st.integers(0, 4))
def test_answer_that_stops_while_a_step_is_under_way_is_reused_to_its_last_page(page_size, length, first, stop):
    """The step that computes the stop token was launched before the token was known; all that was computed counts."""
    scheduler, runner = scheduler_of(page_size, overlap=True)
    prompt = prompt_of(length, first=first)
    request = Request(0, prompt, 60, stop_tokens=frozenset({stop}))
    assert scheduler.add(request)
    run(scheduler, runner)
    runner.check_cached()
    said = [*prompt.tolist(), *request.output.tolist()]
    assert request.output.tolist() == generate(prompt, 60, stop_tokens={stop})
    assert scheduler.manager.peek([*said, NEVER]).num_cached >= whole(len(said) - 1, page_size)
    scheduler.manager.audit()
