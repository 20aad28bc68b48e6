"""Faults that users of serving engines reported, each as the smallest scenario with the right answer."""

import numpy as np
import pytest
from fake_model import FakeRunner, LateRunner, generate
from scenario import PAGE, decode, open_row, peeked, prompt_of, run

from eviction_in_tokens import evict
from kvstead.engine import Request, Scheduler, Status
from kvstead.errors import LockUnderflow, StaleRow
from tiny_model import tiny_manager

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 2, 3, 4, 16])
RUNNERS = pytest.mark.parametrize("make_runner", [FakeRunner, LateRunner])


def cache_pages(manager, num_pages):
    """Fill pages with prefixes of a page each, which any allocation may evict."""
    for page in range(num_pages):
        manager.finish(open_row(manager, prompt_of(manager.page_size, 100 + page)))


def free_pages(manager):
    return manager.allocator.available_size() // manager.page_size


def assert_balanced(manager):
    """Without a running request everything is free or evictable, and nothing is locked."""
    assert manager.allocator.available_size() + manager.tree.evictable_tokens == manager.num_slots
    assert manager.tree.protected_tokens == 0
    manager.audit()


@PAGE_SIZES
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_retraction_counts_pages_not_tokens(page_size, prefix_cache):
    """Three rows cross a page with one page free: one is retracted, no more, and the others decode."""
    manager = tiny_manager(7 * page_size, page_size, prefix_cache=prefix_cache)
    scheduler = Scheduler(manager, decode_headroom=0)
    runner = FakeRunner(manager)
    requests = [Request(i, prompt_of(2 * page_size, i), 3) for i in range(3)]
    for request in requests:
        scheduler.add(request)
    scheduler.step(runner)
    assert free_pages(manager) == 1
    scheduler.step(runner)
    assert scheduler.num_retractions == 1
    assert [request.status for request in requests] == [Status.DECODE, Status.DECODE, Status.WAITING]
    assert manager.capacity.most(PAGE) == 1
    assert requests[2].output.tolist() == generate(requests[2].prompt, 1)
    run(scheduler, runner)
    assert [request.output.tolist() for request in requests] == [generate(r.prompt, 3) for r in requests]
    assert scheduler.num_retractions == 1 + (page_size == 1)  # with pages of one token the next step is short again
    assert_balanced(manager)


@PAGE_SIZES
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("how", ["finish", "abort", "retract"])
@pytest.mark.parametrize("committed", [4, 5, 7, 8, 11, 12, 15, 16, 17])
def test_slot_of_the_step_ahead_is_freed_exactly_once(page_size, prefix_cache, how, committed):
    """A row ends with one slot more than is computed: whole computed pages stay, all else comes back, once."""
    manager = tiny_manager(48, page_size, prefix_cache=prefix_cache)
    row = open_row(manager, prompt_of(4))
    for _ in range(committed - 4):
        decode(manager, row)
    manager.decode([row])
    assert manager.table.lengths[row] == committed + 1
    getattr(manager, how)(row)
    kept = committed // page_size * page_size if prefix_cache and how != "abort" else 0
    assert (manager.tree.evictable_tokens, manager.tree.protected_tokens) == (kept, 0)
    assert manager.allocator.available_size() == 48 - kept
    with pytest.raises(StaleRow):
        getattr(manager, how)(row)
    assert manager.allocator.available_size() == 48 - kept
    assert_balanced(manager)


@PAGE_SIZES
@RUNNERS
@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 15, 16])
def test_stop_token_comes_while_the_next_step_is_under_way(page_size, make_runner, length):
    """With overlap a request that stops has a slot too many; it comes back with the step that computed it."""
    manager = tiny_manager(64, page_size)
    scheduler = Scheduler(manager, overlap=True)
    prompt = prompt_of(length)
    said = generate(prompt, 12)
    request = Request(0, prompt, 12, stop_tokens=(said[3],))
    scheduler.add(request)
    run(scheduler, make_runner(manager))
    stop = said.index(said[3])
    assert request.status is Status.FINISHED
    assert request.output.tolist() == said[: stop + 1]
    assert manager.tree.evictable_tokens == (length + stop) // page_size * page_size
    assert_balanced(manager)


@PAGE_SIZES
@pytest.mark.parametrize("tail", [0, 1, 2])
def test_running_request_reads_the_slots_of_the_tree(page_size, tail):
    """Of two requests that computed one prompt in one batch the second reads the first's pages from then on."""
    manager = tiny_manager(40 * page_size, page_size)
    tail %= page_size
    whole = 8 * page_size
    prompt = prompt_of(whole + tail)
    rows = [manager.match(prompt).row for _ in range(2)]
    manager.extend(rows, [prompt.size] * 2)
    manager.commit(rows, [prompt.size] * 2, [1, 1])
    first, second = (manager.table.read(row).copy() for row in rows)
    assert not set(first) & set(second)
    for row in rows:
        manager.cache(row)
    assert manager.table.read(rows[0]).tolist() == first.tolist()
    assert manager.table.read(rows[1]).tolist() == [*first[:whole], *second[whole:]]
    assert manager.lock_of(rows[0]) is manager.lock_of(rows[1])
    assert manager.lock_of(rows[1]).locks == 2
    assert (manager.tree.protected_tokens, manager.tree.evictable_tokens) == (whole, 0)
    assert free_pages(manager) == 40 - 8 - 2 * (tail > 0)
    new = manager.decode([rows[1]]).tolist()
    assert manager.table.read(rows[1]).tolist() == [*first[:whole], *second[whole:], *new]
    manager.audit()
    for row in rows:
        manager.finish(row)
    assert_balanced(manager)


@PAGE_SIZES
def test_matched_prefix_is_kept_from_eviction_for_its_own_suffix(page_size):
    """A request that needs pages beside its oldest prefix gets that of another one."""
    manager = tiny_manager(12 * page_size, page_size)
    own, other = prompt_of(8 * page_size), prompt_of(4 * page_size, 1)
    manager.finish(open_row(manager, own))
    manager.finish(open_row(manager, other))
    assert free_pages(manager) == 0
    longer = np.concatenate([own, prompt_of(4 * page_size, 2)])
    before = manager.tree.slots(manager.tree.match(own)).tolist()
    manager.tree.match(other)  # now the own prefix is the oldest
    lease = manager.match(longer)
    assert lease.num_cached == 8 * page_size
    assert manager.extend([lease.row], [longer.size]) is not None
    assert manager.table.read(lease.row, 0, own.size).tolist() == before
    assert manager.tree.evictable_tokens == 0
    manager.audit()


@PAGE_SIZES
def test_only_the_own_prefix_could_make_room(page_size):
    """Then nothing fits; the prefix stays, and with the request's end its lock goes."""
    manager = tiny_manager(8 * page_size, page_size)
    own = prompt_of(8 * page_size)
    manager.finish(open_row(manager, own))
    longer = np.concatenate([own, [3]])
    assert peeked(manager, longer) == (own.size, 0, 0)
    row = manager.match(longer).row
    assert manager.extend([row], [longer.size]) is None
    assert manager.decode([row]) is None
    assert (manager.tree.protected_tokens, manager.tree.evictable_tokens) == (own.size, 0)
    node = manager.lock_of(row)
    manager.abort(row)
    assert node.pins == 0
    assert_balanced(manager)
    assert manager.match(longer).num_cached == own.size


@pytest.mark.parametrize(
    ("page_size", "committed", "reserve", "finish_at", "kept", "pages_back"),
    [(64, 100, 20, 101, 64, 1), (64, 126, 20, 126, 64, 2), (64, 127, 1, 128, 128, 0), (1, 5, 3, 6, 6, 2)],
)
def test_speculative_reserve_frees_the_tail(page_size, committed, reserve, finish_at, kept, pages_back):
    """What was reserved for drafts and not accepted comes back, to the whole last page."""
    manager = tiny_manager(4 * page_size if page_size > 1 else 16, page_size)
    row = open_row(manager, prompt_of(committed))
    before = manager.allocator.available_size()
    manager.extend([row], [committed + reserve])
    taken = -(-(committed + reserve) // page_size) + -committed // page_size
    assert manager.allocator.available_size() == before - taken * page_size
    if finish_at > committed:
        manager.append(row, [1] * (finish_at - committed - 1))
        manager.commit([row], [finish_at], [2])
    held = manager.table.lengths[row]
    manager.finish(row)
    assert manager.tree.evictable_tokens == kept
    assert -(-held // page_size) - kept // page_size == pages_back
    assert_balanced(manager)


@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_speculative_cycles_free_what_they_took(page_size):
    """Drafts of random length, some accepted, request after request: what is reserved is not taken again."""
    rng = np.random.default_rng(page_size)
    manager = tiny_manager(256, page_size)
    for cycle in range(120):
        tokens = prompt_of(int(rng.integers(1, 100)), cycle)
        row = open_row(manager, tokens)
        for _ in range(4):
            computed, held = int(manager.computed[row]), int(manager.table.lengths[row])
            wanted = computed + int(rng.integers(1, 9))
            free = manager.capacity.most(PAGE)
            if wanted > held:
                new = manager.extend([row], [wanted])
                assert new.numel() == wanted - held
            assert free - manager.capacity.most(PAGE) == max(0, -(-wanted // page_size) - -(-held // page_size))
            accepted = int(rng.integers(1, wanted - computed + 1))
            manager.append(row, rng.integers(0, 5, accepted - 1))
            manager.commit([row], [computed + accepted], [1])
        (manager.finish if rng.integers(4) else manager.abort)(row)
        assert manager.allocator.available_size() + manager.tree.evictable_tokens == manager.num_slots
    assert_balanced(manager)


@PAGE_SIZES
@RUNNERS
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
def test_chunked_prompt_restarts_when_nothing_is_cached(page_size, make_runner, prefix_cache, overlap):
    """A prompt of 40 tokens takes three chunks and the pages of 40 tokens, with a prefix cache or without."""
    manager = tiny_manager(64 * page_size, page_size, prefix_cache=prefix_cache, max_length=1024)
    scheduler = Scheduler(manager, chunk_tokens=16 * page_size, overlap=overlap)
    runner = make_runner(manager)
    scheduler.add(Request(0, prompt_of(40 * page_size), 1))
    chunks = []
    while (planned := scheduler.schedule()) is not None:
        chunks += [(chunk.start // page_size, chunk.end // page_size) for chunk in planned.chunks]
        assert free_pages(manager) == 64 - chunks[-1][1]
        scheduler.process(planned, runner.launch(planned).tokens())
    assert chunks == [(0, 16), (16, 32), (32, 40)]
    assert free_pages(manager) == 64 - 40 * prefix_cache
    assert_balanced(manager)


@PAGE_SIZES
@pytest.mark.parametrize("how", ["abort", "retract"])
def test_chunk_in_the_tree_stays_when_its_request_goes(page_size, how):
    """A request that ends in its second chunk gives back that chunk; the first is the tree's, for the next one."""
    manager = tiny_manager(8 * page_size, page_size)
    prompt = prompt_of(4 * page_size)
    row = open_row(manager, prompt, 2 * page_size)
    manager.cache(row)
    first = manager.table.read(row).tolist()
    manager.extend([row], [4 * page_size])
    assert (manager.tree.protected_tokens, free_pages(manager)) == (2 * page_size, 4)
    getattr(manager, how)(row)
    assert (manager.tree.evictable_tokens, free_pages(manager)) == (2 * page_size, 6)
    assert_balanced(manager)
    lease = manager.match(prompt)
    assert lease.num_cached == 2 * page_size
    assert manager.table.read(lease.row).tolist() == first


@PAGE_SIZES
@RUNNERS
def test_abort_between_chunks_keeps_the_owner(page_size, make_runner):
    """An abort with a chunk under way gives that chunk back when its results come, and the row with it."""
    manager = tiny_manager(64 * page_size, page_size, max_length=1024)
    scheduler = Scheduler(manager, chunk_tokens=16 * page_size, overlap=True)
    runner = make_runner(manager)
    request, waits = Request(0, prompt_of(40 * page_size), 4), Request(1, prompt_of(40 * page_size), 4)
    for each in (request, waits):
        scheduler.add(each)
    scheduler.step(runner)
    scheduler.step(runner)  # chunk 1 is processed, chunk 2 under way
    for _ in range(2):
        scheduler.abort(request)
        scheduler.abort(waits)
        assert (request.status, waits.status) == (Status.ABORTED, Status.ABORTED)
        assert (free_pages(manager), manager.table.num_free) == (32, 15)
        manager.audit()
    scheduler.step(runner)
    assert (free_pages(manager), manager.tree.evictable_tokens) == (48, 16 * page_size)
    assert manager.table.num_free == 16
    assert scheduler.is_idle
    scheduler.abort(request)
    assert request.output.size == 0
    assert_balanced(manager)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("num_prompt", [1, 48, 60, 63, 64])
def test_request_that_can_never_fit_is_rejected(page_size, overlap, num_prompt):
    """One token more than the memory holds is refused at once; one less is served alone, and so are all others."""
    manager = tiny_manager(64, page_size)
    scheduler = Scheduler(manager, overlap=overlap, decode_headroom=4)
    longest = 65 - num_prompt  # the last token is sampled, but never cached
    never, just, small = (
        Request(i, prompt_of(length, i), new)
        for i, (length, new) in enumerate([(num_prompt, longest + 1), (num_prompt, longest), (5, 5)])
    )
    assert [scheduler.add(request) for request in (never, just, small)] == [False, True, True]
    assert never.status is Status.REJECTED
    assert f"the memory has {64 // page_size}" in never.reason
    steps = run(scheduler, FakeRunner(manager))
    assert steps < 3 * (longest + 5)
    assert just.output.tolist() == generate(just.prompt, longest)
    assert small.output.tolist() == generate(small.prompt, 5)
    assert just.num_retractions == 0
    assert_balanced(manager)


def test_request_longer_than_a_row_is_refused():
    """The widest row bounds a request even where there is memory for more."""
    manager = tiny_manager(64, 4, max_length=16)
    scheduler = Scheduler(manager)
    fits, too_long = Request(0, prompt_of(10), 6), Request(1, prompt_of(10), 7)
    assert scheduler.add(fits)
    assert not scheduler.add(too_long)
    assert "the longest row of 16" in too_long.reason
    run(scheduler, FakeRunner(manager))
    assert fits.output.tolist() == generate(fits.prompt, 6)


@PAGE_SIZES
@pytest.mark.parametrize("headroom", [0, 1, 8])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_retracted_request_waits_until_it_fits(page_size, headroom, prefix_cache):
    """The younger of two is retracted once at most, and comes back only when all that it computes anew fits."""
    manager = tiny_manager(10 * page_size, page_size, prefix_cache=prefix_cache)
    scheduler = Scheduler(manager, decode_headroom=headroom * page_size)
    runner = FakeRunner(manager)
    older = Request(0, prompt_of(6 * page_size, 0), 3 * page_size + 1)
    younger = Request(1, prompt_of(4 * page_size, 1), 3 * page_size + 1)
    for request in (older, younger):
        scheduler.add(request)
    steps = 0
    while older.status is not Status.FINISHED:
        scheduler.step(runner)
        steps += 1
        manager.audit()
    assert steps == 3 * page_size + 1
    assert older.num_retractions == 0
    assert younger.num_retractions == (1 if headroom == 0 else 0)
    run(scheduler, runner)
    assert younger.num_retractions <= 1
    for request in (older, younger):
        assert request.output.tolist() == generate(request.prompt, request.max_new_tokens)
    assert_balanced(manager)


@PAGE_SIZES
def test_every_step_makes_progress(page_size):
    """Ten requests on a memory for two: each step computes something, and the tokens computed twice stay few."""
    manager = tiny_manager(12 * page_size, page_size)
    scheduler = Scheduler(manager, decode_headroom=2 * page_size, chunk_tokens=5 * page_size)
    runner = FakeRunner(manager)
    requests = [Request(i, prompt_of(4 * page_size, i), 4 * page_size) for i in range(10)]
    for request in requests:
        scheduler.add(request)
    computed = 0
    while not scheduler.is_idle:
        step = scheduler.schedule()
        assert step is not None
        assert step.num_tokens > 0
        computed += step.num_tokens
        scheduler.process(step, runner.launch(step).tokens())
    least = sum(request.max_length - 1 for request in requests)
    assert least <= computed <= 2 * least
    assert all(request.num_retractions <= 2 for request in requests)
    assert_balanced(manager)


@PAGE_SIZES
def test_row_of_a_chunk_under_way_stays_with_its_request(page_size):
    """A request in the middle of its prompt keeps its row while a new one is admitted beside it."""
    manager = tiny_manager(32 * page_size, page_size, max_requests=2)
    scheduler = Scheduler(manager, chunk_tokens=6 * page_size, overlap=True)
    long, short = Request(0, prompt_of(8 * page_size, 0), 2), Request(1, prompt_of(2 * page_size, 1), 2)
    scheduler.add(long)
    first = scheduler.schedule()
    scheduler.add(short)
    second = scheduler.schedule()
    assert [chunk.request for chunk in second.chunks] == [long, short]
    assert first.chunks[0].row == second.chunks[0].row == long.row
    assert {long.row, short.row} == {1, 2}
    manager.audit()


@PAGE_SIZES
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_row_is_reused_only_after_its_last_step(page_size, prefix_cache):
    """What ended with step n, but is also in step n + 1, gives row and pages back only after that one."""
    manager = tiny_manager(16 * page_size, page_size, max_requests=1, prefix_cache=prefix_cache)
    scheduler = Scheduler(manager, overlap=True)
    request, waits = Request(0, prompt_of(4 * page_size), 9, stop_tokens=(3,)), Request(1, prompt_of(3, 1), 1)
    scheduler.add(request)
    scheduler.add(waits)
    first, second = scheduler.schedule(), scheduler.schedule()
    held = free_pages(manager), manager.table.lengths[1]
    outcome = scheduler.process(first, [3])
    assert outcome.ended == [request]
    assert request.output.tolist() == [3]
    assert (free_pages(manager), manager.table.lengths[1]) == held
    assert scheduler.num_running == 1
    assert scheduler.schedule() is None  # no row for the one that waits
    assert not manager.flush()
    scheduler.process(second, [4])
    assert manager.table.num_free == 1
    assert manager.capacity.most(PAGE) == 16
    assert request.output.tolist() == [3]
    third = scheduler.schedule()
    assert third.chunks[0].request is waits


@pytest.mark.parametrize("page_size", [1, 2, 4, 128])
@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize("num_pages", [1, 2])
def test_whole_prompt_cached_leaves_nothing_to_compute(page_size, over, num_pages):
    """At least the last token is computed, and written to a page of the request's own."""
    length = num_pages * page_size + over
    if length == 0:
        return
    manager = tiny_manager(6 * page_size, page_size)
    prompt = prompt_of(length)
    manager.finish(open_row(manager, prompt))
    lease = manager.match(prompt)
    assert lease.num_cached == (length - 1) // page_size * page_size
    cached = set(manager.tree.held_pages().tolist())
    new = manager.extend([lease.row], [length])
    assert new.numel() == length - lease.num_cached
    assert not cached & set((new // page_size).tolist())
    manager.audit()


@pytest.mark.parametrize("page_size", [1, 4, 256])
def test_preempted_request_counts_once(page_size):
    """One token behind a whole page, retracted and resumed: the page is found, two are held, the length grows by 1."""
    manager = tiny_manager(4 * page_size, page_size)
    row = open_row(manager, prompt_of(page_size))
    decode(manager, row)
    known = manager.retract(row)
    assert known.size == page_size + 2
    lease = manager.match(known)
    assert lease.num_cached == (page_size + 1) // page_size * page_size
    manager.extend([lease.row], [known.size])
    held = -(-known.size // page_size)
    assert manager.table.lengths[lease.row] == page_size + 2
    assert free_pages(manager) == 4 - held
    manager.audit()


@PAGE_SIZES
def test_flush_is_refused_while_something_is_alive(page_size):
    """A flush is refused, and changes nothing, for a running request, one that ended under way, and an open group."""
    manager = tiny_manager(8 * page_size, page_size)
    manager.finish(open_row(manager, prompt_of(2 * page_size, 1)))
    scheduler = Scheduler(manager, overlap=True)
    request = Request(0, prompt_of(2 * page_size), 5, stop_tokens=(0, 1, 2, 3, 4))
    waits = Request(1, prompt_of(3 * page_size, 1), 1)
    scheduler.add(waits)
    assert manager.flush()  # a request that waits holds nothing
    scheduler.abort(waits)
    manager.finish(open_row(manager, prompt_of(2 * page_size, 1)))
    scheduler.add(request)
    first = scheduler.schedule()
    before = manager.stats()
    assert not manager.flush()
    assert manager.stats() == before
    second = scheduler.schedule()
    scheduler.process(first, [2])
    assert request.status is Status.FINISHED
    assert not manager.flush()
    scheduler.process(second, [2])
    with manager.defer_frees():
        assert not manager.flush()
    assert manager.tree.evictable_tokens == 4 * page_size
    assert manager.flush()
    assert (manager.allocator.available_size(), manager.tree.evictable_tokens) == (manager.num_slots, 0)
    manager.audit()


@pytest.mark.parametrize("page_size", [1, 2, 3, 8])
@pytest.mark.parametrize("num_rows", [1, 2, 3])
def test_decode_evicts_only_for_rows_that_open_a_page(page_size, num_rows):
    """Eviction gives what the step opens, not a page for each of its rows."""
    lengths = [2 * page_size - 1, 2 * page_size, 3 * page_size][:num_rows]
    manager = tiny_manager(16 * page_size, page_size)
    rows = [open_row(manager, prompt_of(max(length, 1), i)) for i, length in enumerate(lengths)]
    cache_pages(manager, free_pages(manager))
    assert free_pages(manager) == 0
    opened = sum(length % page_size == 0 for length in map(len, map(manager.table.read, rows)))
    before = manager.tree.evictable_tokens
    assert manager.decode(rows) is not None
    assert before - manager.tree.evictable_tokens == opened * page_size
    assert free_pages(manager) == 0
    manager.audit()


@pytest.mark.parametrize("page_size", [1, 3, 4])
@pytest.mark.parametrize("free", [0, 1, 2])
def test_extend_evicts_only_for_new_pages(page_size, free):
    """Steps inside a held page evict nothing, others what their pages need beyond those that are free."""
    for start in range(1, 2 * page_size + 1):
        for growth in range(3 * page_size):
            manager = tiny_manager(10 * page_size, page_size)
            row = open_row(manager, prompt_of(start))
            cache_pages(manager, free_pages(manager) - free)
            before = manager.tree.evictable_tokens
            assert manager.extend([row], [start + growth]).numel() == growth
            opened = -(-(start + growth) // page_size) + -start // page_size
            assert before - manager.tree.evictable_tokens == max(0, opened - free) * page_size
            assert free_pages(manager) == max(0, free - opened)


@PAGE_SIZES
def test_extension_that_fails_evicts_nothing(page_size):
    """When all unused prefixes together free too little, none of them goes."""
    manager = tiny_manager(6 * page_size, page_size)
    row = open_row(manager, prompt_of(page_size))
    cache_pages(manager, 4)
    before = manager.stats(), free_pages(manager)
    assert manager.extend([row], [7 * page_size]) is None
    assert (manager.stats(), free_pages(manager)) == before
    assert manager.extend([row], [6 * page_size]) is not None
    manager.audit()


@pytest.mark.parametrize("page_size", [2, 3, 4, 16])
def test_partly_filled_page_is_not_keyed(page_size):
    """A pause leaves the partial page out of the tree; filled after the resumption it is its parent's one child."""
    manager = tiny_manager(8 * page_size, page_size)
    tokens = prompt_of(2 * page_size)
    paused = manager.retract(open_row(manager, tokens, page_size + 1))
    assert paused.tolist() == tokens.tolist()
    assert manager.tree.evictable_tokens == page_size
    manager.finish(open_row(manager, tokens))
    upper, lower = manager.tree.root.below()
    assert (upper.end, lower.end) == (page_size, 2 * page_size)
    assert list(upper.children.values()) == [lower]
    assert evict(manager.tree, 1).num_tokens == page_size
    assert upper.children == {}
    assert_balanced(manager)


@PAGE_SIZES
@pytest.mark.parametrize("first_out", [0, 1])
def test_pins_of_a_lookup_are_balanced(page_size, first_out):
    """A look pins nothing, two requests on one prefix let go in either order, and neither lets go twice."""
    manager = tiny_manager(8 * page_size, page_size)
    tokens = prompt_of(2 * page_size + 1)
    manager.finish(open_row(manager, tokens[:-1]))
    assert peeked(manager, tokens) == (2 * page_size, 6, 0)
    assert manager.tree.protected_tokens == 0
    rows = [manager.match(tokens).row for _ in range(2)]
    node = manager.lock_of(rows[0])
    assert node.pins == 2
    manager.abort(rows[first_out])
    assert (node.pins, evict(manager.tree, 1).num_tokens) == (1, 0)
    with pytest.raises(StaleRow):
        manager.abort(rows[first_out])
    assert node.pins == 1
    manager.abort(rows[1 - first_out])
    with pytest.raises(LockUnderflow):
        manager.tree.unlock(node)
    assert node.pins == 0
    assert_balanced(manager)
