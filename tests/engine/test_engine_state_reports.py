"""Faults of states and of shared memory that users reported, each as the smallest scenario with the right answer.

One state a request and copies for others, so numbers are those of the scenario in that form.
"""

import numpy as np
import pytest
from fake_memory import Fence
from fake_model import FakeRunner, LateRunner, generate
from scenario import compute, decode, open_row, prompt_of, run

from eviction_in_tokens import evict, in_tokens
from kvstead.engine import KVCacheManager, Request, Scheduler, Status
from kvstead.engine.row_states import ONE_STATE
from kvstead.pages.amounts import Amounts
from tiny_model import tiny_manager, tiny_state_layout, tiny_window_layout

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 2, 4])
OVERLAP = pytest.mark.parametrize("overlap", [False, True])
RUNNERS = pytest.mark.parametrize("make_runner", [FakeRunner, LateRunner])
SPANS = pytest.mark.parametrize("span", [0, 3])
POOL_LAYOUTS = pytest.mark.parametrize("pool_layout", ["static", "unified"])
OTHER = 4  # a token that no prompt has behind its whole pages


def with_states(num_states, page_size=1, *, span=0, num_slots=64, **options):
    """A manager of a static memory with so many states, and tensors."""
    windows = {"num_window_slots": num_slots} if span else {}
    options = {"max_requests": 8, "max_length": 128, "storage": True, **windows, **options}
    return tiny_manager(num_slots, page_size, layout=tiny_state_layout(span), num_states=num_states, **options)


def shared(num_slots, num_states, page_size=1, *, layout=None, **options):
    """A manager whose bytes are those of so many slots (on each side) and states, to share as they come."""
    layout = layout or tiny_state_layout()
    tokens = layout.full_bytes_per_token + layout.window_bytes_per_token
    sink = max(layout.full_bytes_per_token * page_size, layout.window_bytes_per_token * page_size, layout.state_bytes)
    options = {"max_requests": 8, "max_length": 128, "page_size": page_size, "pool_layout": "unified", **options}
    return KVCacheManager(layout, sink + tokens * num_slots + layout.state_bytes * num_states, **options)


def free_states(manager):
    return manager.allocator.states.available_size()


def assert_all_comes_back(manager):
    """No request runs: nothing is live, and once flushed nothing is cached."""
    manager.audit()
    assert manager.live_states() == manager.live_tokens() == manager.tree.held_states == 0
    assert manager.flush()
    assert manager.stats().live == manager.stats().cached == manager.stats().parked == 0
    assert manager.allocator.states is None or manager.allocator.states.live_size() == 0


def leave(manager, tokens):
    """A request computes just these tokens and leaves them, and the state behind them, in the cache."""
    row = open_row(manager, tokens)
    manager.finish(row)


# Ends at any moment


@RUNNERS
@OVERLAP
@POOL_LAYOUTS
@SPANS
def test_abort_between_chunks_loses_neither_chunk_nor_state(span, pool_layout, overlap, make_runner):
    """Aborted after any step, with a chunk under way or not, the row, its tokens, state and copy come back once."""
    for step in range(8):
        fence = Fence()
        if pool_layout == "static":
            manager = with_states(6, 4, span=span, state_interval=4, fence=fence)
        else:
            manager = shared(64, 6, 4, layout=tiny_state_layout(span), state_interval=4, fence=fence)
        scheduler, runner = Scheduler(manager, chunk_tokens=16, overlap=overlap), make_runner(manager)
        fence.wait = getattr(runner, "drain", fence.wait)
        request, waiting = Request(0, prompt_of(40), 3), Request(1, prompt_of(40), 3)
        scheduler.add(request)
        for _ in range(step):
            scheduler.step(runner)
        scheduler.add(waiting)
        scheduler.abort(waiting)
        for _ in range(2):
            scheduler.abort(request)
            manager.audit()
        run(scheduler, runner)
        assert waiting.status is Status.ABORTED
        assert manager.tree.num_states <= 40 // 4
        runner.check_cached()
        assert_all_comes_back(manager)


@OVERLAP
def test_released_request_comes_back_with_a_state_of_its_own(overlap):
    """What was retracted takes a fresh slot when it resumes, never the one it had, which may be another's by then."""
    manager = with_states(3, 1, num_slots=20, state_interval=64)
    scheduler, runner = Scheduler(manager, decode_headroom=0, overlap=overlap), FakeRunner(manager)
    requests = [Request(i, prompt_of(4, first=i), 14) for i in range(3)]
    for request in requests:
        scheduler.add(request)
    run(scheduler, runner)
    assert scheduler.num_retractions > 0
    for request in requests:
        assert request.output.tolist() == generate(request.prompt, 14)
    assert not manager.row_states.slot.any()
    assert_all_comes_back(manager)


def test_closed_row_keeps_no_reference_to_its_state():
    """After every kind of end the row names no slot, and ending it again frees nothing."""
    for how in ("finish", "retract", "abort"):
        manager = with_states(6, 4, state_interval=4)
        row = open_row(manager, prompt_of(9))
        manager.checkpoint(np.array([row]))
        getattr(manager, how)(row)
        states = manager.row_states
        assert (states.slot[row], states.kept[row]) == (0, 0)
        free = free_states(manager)
        with pytest.raises(Exception, match="row"):
            getattr(manager, how)(row)
        assert free_states(manager) == free
        assert_all_comes_back(manager)


# Taking a state


@PAGE_SIZES
def test_refused_match_takes_no_state_however_often_it_is_tried(page_size):
    """The copy of a cached state needs a slot; without one, a hundred tries leave counters, holds, locks as before."""
    manager = with_states(3, page_size, state_interval=page_size)
    cached = prompt_of(4 * page_size)
    leave(manager, cached)
    rows = [open_row(manager, prompt_of(3, first=first)) for first in (2, 3)]
    before = manager.stats(), free_states(manager), manager.tree.evictable_states
    for _ in range(100):
        assert manager.match([*cached, OTHER]) is None
        manager.audit()
    assert (manager.stats(), free_states(manager), manager.tree.evictable_states) == before
    manager.abort(rows[0])
    lease = manager.match([*cached, OTHER])
    assert lease.num_cached == 4 * page_size
    for row in (lease.row, rows[1]):
        manager.abort(row)
    assert free_states(manager) + manager.tree.evictable_states == 3
    assert_all_comes_back(manager)


@POOL_LAYOUTS
def test_match_is_all_or_nothing(pool_layout):
    """With rows but no states, or states but no rows, nothing is taken; what is there is taken down to the last."""
    for num_rows, num_states in ((4, 3), (3, 4), (3, 3)):
        options = {"max_requests": num_rows, "storage": False}
        manager = with_states(num_states, **options) if pool_layout == "static" else shared(0, num_states, **options)
        most = min(num_rows, manager.capacity.most(ONE_STATE))
        rows = [manager.match([first]).row for first in range(most)]
        before = manager.stats(), manager.table.num_free, free_states(manager)
        assert manager.match([OTHER]) is None
        assert (manager.stats(), manager.table.num_free, free_states(manager)) == before
        assert pool_layout == "unified" or most == min(num_rows, num_states)
        for row in rows:
            manager.abort(row)
        assert_all_comes_back(manager)


@SPANS
@OVERLAP
def test_checkpoint_without_room_is_left_out(overlap, span):
    """With every state running or in use, requests go on; only the copy is missing, and no counter moves for it."""
    manager = with_states(2, span=span, state_interval=4)
    rows = [open_row(manager, prompt_of(8, first=first)) for first in (1, 2)]
    before = manager.stats()
    manager.checkpoint(np.array(rows))
    assert manager.stats() == before
    assert manager.num_state_copies == manager.tree.num_states == 0
    for row in rows:
        manager.cache(row)
        decode(manager, row)
        manager.finish(row)
    scheduler, runner = Scheduler(manager, overlap=overlap), FakeRunner(manager)
    requests = [Request(i, prompt_of(9, first=3 + i), 12) for i in range(2)]  # of the first two nothing was written
    for request in requests:
        scheduler.add(request)
    run(scheduler, runner)
    assert [request.output.tolist() for request in requests] == [generate(r.prompt, 12) for r in requests]
    assert_all_comes_back(manager)


@OVERLAP
@RUNNERS
@pytest.mark.parametrize("interval", [1, 4])
def test_single_request_is_admitted_beside_any_cache(interval, make_runner, overlap):
    """A memory of one state, or for one request only, serves any that fits, also one whose prefix is cached."""
    memories = [lambda fence: with_states(1, 2, num_slots=24, state_interval=interval, fence=fence)]
    memories += [
        lambda fence, spare=spare: shared(24 + spare, 1, 2, state_interval=interval, fence=fence) for spare in range(12)
    ]
    num_served = 0
    for make in memories:
        fence = Fence()
        manager = make(fence)
        if num_served == 3 or not manager.capacity.holds(Amounts(full=12, state=1)):
            continue
        num_served += 1
        scheduler, runner = Scheduler(manager, chunk_tokens=7, overlap=overlap), make_runner(manager)
        fence.wait = getattr(runner, "drain", fence.wait)
        said = prompt_of(5).tolist()
        for turn in range(4):
            request = Request(turn, np.array(said), 4)
            assert scheduler.add(request)
            run(scheduler, runner)
            assert request.output.tolist() == generate(said, 4)
            said += [*request.output.tolist(), turn]
        assert_all_comes_back(manager)
    assert num_served == 3


@OVERLAP
def test_copies_do_not_keep_requests_waiting(overlap):
    """As many requests run as there are states, though those that run would like to leave copies."""
    for num_states in (1, 2, 3):
        for length in (5, 8):
            manager = with_states(num_states, num_slots=256, state_interval=4, storage=False)
            scheduler, runner = Scheduler(manager, overlap=overlap, decode_headroom=0), FakeRunner(manager)
            for number in range(num_states):
                scheduler.add(Request(number, prompt_of(length, first=number), 20))
                scheduler.step(runner)
                assert scheduler.num_running == number + 1
            run(scheduler, runner)


def test_states_and_not_a_ratio_say_how_many_run():
    """40 states: 40 requests at once, cached prefixes or not; with fewer rows, as many as there are rows."""
    for prefix_cache in (False, True):
        for num_rows in (40, 50, 10):
            options = {"max_requests": num_rows, "prefix_cache": prefix_cache, "storage": False}
            manager = with_states(40, 1, num_slots=400, state_interval=2, **options)
            scheduler, runner = Scheduler(manager, decode_headroom=0), FakeRunner(manager)
            for number in range(50):
                scheduler.add(Request(number, prompt_of(3, first=number), 4))
            scheduler.step(runner)
            assert scheduler.num_running == min(40, num_rows)
            run(scheduler, runner)


# Going on from a state


@PAGE_SIZES
@pytest.mark.parametrize("interval", [3, 8, 64])
def test_reuse_behind_a_divergence_returns_with_the_next_copy(interval, page_size):
    """With its only state behind the divergence a prefix is no hit, and says so; where they part, one is made."""
    manager = with_states(8, page_size, num_slots=256, state_interval=1000)
    common, length = 6 * page_size, 10 * page_size
    leave(manager, prompt_of(length))
    second = np.concatenate((prompt_of(common), np.full(length - common + 1, OTHER)))
    seen = manager.match(second)
    assert (seen.num_cached, seen.num_dead) == (0, common)
    assert manager.chunk_end(seen.row, length) == common
    compute(manager, seen.row, common)
    manager.checkpoint(np.array([seen.row]))
    manager.finish(seen.row)
    third = np.concatenate((prompt_of(common), np.full(3, 2)))
    assert manager.peek(third).num_cached == common
    assert_all_comes_back(manager)

    manager = with_states(8, page_size, num_slots=256, state_interval=interval)  # and on the grid of its interval
    grid = -(-interval // page_size) * page_size
    row = manager.match(prompt_of(length)).row
    while (at := int(manager.table.lengths[row])) < length:
        compute(manager, row, min(manager.chunk_end(row, min(at + interval, length)), length))
        manager.checkpoint(np.array([row]))
    assert manager.peek(second).num_cached == common // grid * grid
    manager.abort(row)
    assert_all_comes_back(manager)


def test_hit_refreshes_only_the_state_that_it_uses():
    """Of four states, those on the way to the one that was used are older than the last leaf, and go before it."""
    manager = with_states(5, 1, state_interval=1000)
    for length in (4, 8, 12):
        leave(manager, prompt_of(length))
    leave(manager, prompt_of(4, first=3))
    row = manager.match([*prompt_of(12), OTHER]).row
    manager.abort(row)
    left = [(4, 0), (8, 0), (4, 3), (12, 0)]  # where each ends, and its sequence's first token
    while left:
        found = set()
        above = [(child, child.tokens[0]) for child in manager.tree.root.children.values()]
        while above:
            node, first = above.pop()
            found |= {(node.end, int(first))} if node.state is not None else set()
            above += [(child, first) for child in node.children.values()]
        assert found == set(left)
        evict(manager.tree, 0, 0, 1)
        left.pop(0)
    assert manager.tree.num_states == 0


# Memory that is shared


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("state_rows", [1, 4, 9])
def test_state_gets_the_bytes_that_only_cached_tokens_hold(state_rows, eager):
    """A match without a free byte evicts cached tokens for its state, wherever they lie, and no more than it needs."""
    layout = tiny_state_layout(state_rows=state_rows)
    least = -(-layout.state_bytes // layout.full_bytes_per_token)
    for order in (0, 1):
        manager = shared(90, 2, layout=layout, storage=False, eager=eager)
        names = [0, 1, 2, 3]
        rows = [open_row(manager, prompt_of(10, first=first)) for first in names[:2]]
        stays, goes = rows[order], rows[1 - order]
        manager.finish(goes)
        for first in range(2, 40):
            if manager.capacity.most(ONE_STATE) == 0 or not manager.chain.fits({"state": 1}):
                break
            leave(manager, prompt_of(7, first=first))
        compute(manager, stays, 10 + manager.growth(stays, 0))
        while manager.chain.fits({"full": 1}):
            assert manager.extend([stays], [int(manager.table.lengths[stays]) + 1]) is not None
        assert manager.tree.evictable_tokens > least
        evicted = in_tokens(manager.evicted, manager.page_size).num_tokens
        row = manager.match([OTHER]).row
        assert 0 < in_tokens(manager.evicted, manager.page_size).num_tokens - evicted <= least + 10
        assert manager.table.lengths[stays] >= 10
        manager.audit()
        for at in (stays, row):
            manager.abort(at)
        assert_all_comes_back(manager)


def test_nothing_is_evicted_for_a_state_that_may_not_be_placed():
    """While pages may not move, a refused match leaves the cache as it was; once they may, it comes."""
    moves = []
    manager = shared(40, 2, storage=False, may_move=lambda: not moves)
    rows = [open_row(manager, prompt_of(3, first=first)) for first in range(2)]
    while manager.capacity.most(Amounts(full=1)):
        if manager.extend([rows[0]], [int(manager.table.lengths[rows[0]]) + 1]) is None:
            break
    moves.append(1)
    before = in_tokens(manager.evicted, manager.page_size), manager.stats()
    assert manager.match([OTHER]) is None
    assert (in_tokens(manager.evicted, manager.page_size), manager.stats()) == before
    manager.audit()


@PAGE_SIZES
def test_borrowed_bytes_are_positive_and_promised_once(page_size):
    """What could be had of each side is never below 0, shrinks by what another side takes, and can be had."""
    manager = shared(64, 0, page_size, layout=tiny_window_layout(6), storage=False)
    row = manager.match(prompt_of(3)).row
    page = Amounts(full=1, window=1)
    most = manager.capacity.most(page)
    while manager.extend([row], [int(manager.table.lengths[row]) + page_size]) is not None:
        now = manager.capacity.most(page)
        assert 0 <= now <= most
        assert manager.capacity.has(page.times(now))
        assert not manager.capacity.has(page.times(now + 1))
        assert min(manager.capacity.most(Amounts(full=1)), manager.window_room()) >= now
        most = now
        manager.commit([row], [min(3, int(manager.table.lengths[row]))], [1])
    assert most == 0
    manager.abort(row)
    assert_all_comes_back(manager)


def test_insertion_that_evicts_keeps_its_own_path():
    """A copy that evicts for its slot, again and again, never takes the nodes of the row that it is made for."""
    manager = with_states(3, 1, state_interval=2)
    leave(manager, prompt_of(6))
    row = open_row(manager, np.concatenate((prompt_of(6), [OTHER])))
    for _ in range(20):
        decode(manager, row)
        manager.checkpoint(np.array([row]))
        manager.audit()
        assert manager.lock_of(row).end == manager.protected[row]
        assert min(manager.stats().by_state.values()) >= 0
    assert manager.num_state_copies > 5
    manager.abort(row)
    assert_all_comes_back(manager)


# How states and pages are measured


def test_short_prompt_holds_a_page_and_a_state_and_no_more():
    """Twelve tokens cost a page and a slot where sides keep their own sizes, and far more in pages of one size."""
    layout = tiny_state_layout(state_rows=400)
    held = {}
    for pool_layout in ("padded", "unified", "ideal"):
        manager = KVCacheManager(layout, 200_000, pool_layout=pool_layout, page_size=16, storage=False, max_length=2048)
        row = manager.match(prompt_of(12)).row
        compute(manager, row, 12)
        stats = manager.stats()
        held[pool_layout] = stats.live
        if pool_layout == "padded":
            assert manager.page_size * layout.full_bytes_per_token >= layout.state_bytes
        manager.abort(row)
        assert_all_comes_back(manager)
    assert held["unified"] == held["ideal"] == 16 * layout.full_bytes_per_token + layout.state_bytes
    assert held["padded"] >= 2 * layout.state_bytes


def test_states_are_named_by_state_and_not_by_page():
    """A row that goes on from a long prefix has slot ids of states, whatever the size of pages and of the prefix."""
    for page_size in (1, 4, 16):
        manager = with_states(4, page_size, num_slots=64, state_interval=16)
        leave(manager, prompt_of(48))
        lease = manager.match([*prompt_of(48), OTHER])
        assert lease.num_cached == 48
        assert 1 <= manager.row_states.slot[lease.row] <= 4
        assert manager.state_slots([lease.row]).tolist() == [manager.row_states.slot[lease.row]]
        manager.abort(lease.row)
        assert_all_comes_back(manager)


@pytest.mark.parametrize("span", [0, 2, 5])
@PAGE_SIZES
def test_page_of_another_side_is_blank_when_it_is_handed_out(page_size, span):
    """Bytes that were another side's and spoilt since are zeros in every page that tokens are given."""
    fence = Fence()
    manager = shared(24, 4, page_size, layout=tiny_state_layout(span), state_interval=page_size, fence=fence)
    scheduler, runner = Scheduler(manager, chunk_tokens=5), FakeRunner(manager)
    for number in range(6):
        scheduler.add(Request(number, prompt_of(3 + number % 6, first=number % 3), 5))
    run(scheduler, runner)  # its runner checks every page before it writes, and spoils what is free after every step
    assert runner.memory.zeroes_pages >= {"full"}
    assert fence.num_calls > 0
    assert_all_comes_back(manager)
