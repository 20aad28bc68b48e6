"""Faults of window memory that users reported, each as the smallest scenario with the right answer."""

import numpy as np
import pytest
from fake_model import FakeRunner, LateRunner, generate
from scenario import PAGE, compute, decode, open_row, prompt_of, run

from eviction_in_tokens import Gone, in_tokens
from kvstead.engine import Request, Scheduler, Status
from tiny_model import tiny_manager, tiny_window_layout

SPANS = pytest.mark.parametrize("span", range(1, 10))
PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 2, 4, 8])
KINDS = pytest.mark.parametrize("kind", [{}, {"chunked": True}, {"pure": True}], ids=str)
RUNNERS = pytest.mark.parametrize("make_runner", [FakeRunner, LateRunner])
OTHER = 99  # a token that no prompt has


def windowed(num_slots, num_window_slots, page_size, span, *, kind=None, **options):
    """A manager of a model with windows; if all its layers have one, with as many names as it takes."""
    layout = tiny_window_layout(span, **(kind or {}))
    options = {"layout": layout, "max_requests": 6, "max_length": 128, **options}
    if kind and kind.get("pure"):
        return tiny_manager(num_window_slots, page_size, **options)
    return tiny_manager(num_slots, page_size, num_window_slots=num_window_slots, **options)


def floor(position, page_size):
    return position // page_size * page_size


def needed_from(manager, length):
    """The first position of the first page of windows that a sequence needs to go on behind `length` tokens."""
    span = manager.layout.window
    needed = max(0, length - span) if manager.layout.window_kind == "sliding" else length // span * span
    return floor(needed, manager.page_size)


def restorable(manager, live, length):
    """The longest prefix of `length` tokens, in whole pages, all of whose needed positions are in `live`."""
    page_size = manager.page_size
    ends = range(floor(length, page_size), 0, -page_size)
    return next((end for end in ends if live.issuperset(range(needed_from(manager, end), end))), 0)


def found(manager, tokens):
    """How many leading tokens a request that goes on behind `tokens` finds."""
    return manager.peek([*tokens, OTHER]).num_cached


def free_slots(manager):
    return manager.allocator.full_available_size(), manager.allocator.swa_available_size()


def used_slots(manager):
    full, window = free_slots(manager)
    return manager.num_slots - full, manager.num_window_slots - window


def let_go(manager):
    """Ask for what the window side has: before that says anything rows give back what they need no more."""
    manager.window_room()


def assert_all_comes_back(manager, *, is_audited=True):
    """Without a running request both sides are free or evictable; once flushed, free."""
    if is_audited:
        manager.audit()
    assert manager.table.live_rows().size == 0
    assert manager.tree.protected_tokens == manager.tree.window_protected_tokens == 0
    assert manager.flush()
    assert free_slots(manager) == (manager.num_slots, manager.num_window_slots)


# The frontier of what a row has given back, and the boundary of what it caches


@KINDS
@PAGE_SIZES
@SPANS
def test_frontier_of_freed_windows_reaches_the_end_of_what_is_cached(span, page_size, kind):
    """A row keeps the window of its last whole page, however short the window: what it caches can be continued."""
    manager = windowed(64, 64, page_size, span, kind=kind)
    for length in range(1, 41):
        tokens = prompt_of(length)
        boundary = floor(length, page_size)
        frontier = needed_from(manager, boundary)
        for is_short in (False, True) if length % 8 == 1 else (True,):
            row = open_row(manager, tokens)
            if is_short:
                let_go(manager)
            assert manager.window_start[row] == (frontier if is_short else 0)
            kept = boundary - manager.window_start[row]
            manager.finish(row)
            assert (manager.tree.evictable_tokens, manager.tree.window_evictable_tokens) == (boundary, kept)
            assert manager.tree.num_tombstone_tokens == boundary - kept
            assert found(manager, tokens) == boundary
            assert used_slots(manager) == (boundary, kept)
            assert_all_comes_back(manager, is_audited=length % 8 == 1)


@KINDS
@PAGE_SIZES
@SPANS
def test_frontier_passes_the_boundary_while_a_row_decodes(span, page_size, kind):
    """At every length that a row reaches token by token its cached part can be continued, and nothing else is kept.

    A token is computed while it is the last that is known: the boundary is that of one token less than is known.
    """
    manager = windowed(64, 64, page_size, span, kind=kind)
    row = open_row(manager, prompt_of(1))
    for length in range(2, 41):
        decode(manager, row)
        manager.cache(row)
        let_go(manager)
        boundary = floor(length, page_size)
        frontier = needed_from(manager, boundary)
        assert manager.window_start[row] == frontier
        assert manager.known_tokens(row).size == length + 1
        assert found(manager, manager.known_tokens(row)[:-1]) == boundary
        assert manager.tree.window_protected_tokens == boundary - frontier
        held = -(-length // page_size) * page_size - boundary  # what is not shared yet
        assert used_slots(manager)[1] == held + boundary - manager.tree.num_tombstone_tokens
    manager.audit()
    manager.finish(row)
    assert_all_comes_back(manager)


@pytest.mark.parametrize(("length", "boundary", "frontier"), [(1024, 1024, 896), (1023, 960, 832)])
def test_frontier_of_tokens_bounds_keys_that_are_one_shorter(length, boundary, frontier):
    """Where one token less is cached than known, what is kept is the window of the shorter one, and it is found."""
    manager = windowed(2048, 2048, 64, 127, max_length=2048)
    row = open_row(manager, prompt_of(1024), length)
    let_go(manager)
    assert manager.window_start[row] == frontier
    manager.finish(row)
    assert manager.tree.window_evictable_tokens == boundary - frontier
    lease = manager.match(prompt_of(1025))
    assert lease == (lease.row, boundary, 0)


# A model of which every layer slides


@PAGE_SIZES
@SPANS
@pytest.mark.parametrize("chunked", [False, True])
def test_slots_freed_by_the_window_are_cached_where_every_layer_slides(span, page_size, chunked):
    """After decoding past the window only what is live is found again, and all comes back once."""
    manager = windowed(64, 64, page_size, span, kind={"pure": True, "chunked": chunked})
    for length in range(4, 41, 3):
        for how in ("finish", "abort"):
            row = open_row(manager, prompt_of(4))
            while manager.computed[row] < length:
                decode(manager, row)
            let_go(manager)
            tokens = manager.known_tokens(row)[:length]
            start, page_end = int(manager.window_start[row]), -(-length // page_size) * page_size
            assert start == needed_from(manager, floor(length, page_size))
            assert used_slots(manager)[1] == page_end - start
            getattr(manager, how)(row)
            boundary = floor(length, page_size) if how == "finish" else 0
            live = set(range(start, boundary))
            assert used_slots(manager)[1] == len(live)
            for end in range(1, length + 1):
                assert found(manager, tokens[:end]) == restorable(manager, live, min(end, boundary))
            assert_all_comes_back(manager, is_audited=length % 4 == 0)


@RUNNERS
@PAGE_SIZES
@pytest.mark.parametrize("span", [1, 3, 4, 9])
@pytest.mark.parametrize("overlap", [True, False])
def test_prompt_is_repeated_where_every_layer_slides(span, page_size, overlap, make_runner):
    """Requests that follow one another on one prompt read live slots only, and say what the model says."""
    manager = windowed(64, 32, page_size, span, kind={"pure": True})
    scheduler = Scheduler(manager, chunk_tokens=8, overlap=overlap)
    runner = make_runner(manager)
    requests = [Request(i, prompt_of(12), 12 - i) for i in range(6)]
    for request in requests:
        scheduler.add(request)
        run(scheduler, runner)
        assert request.output.tolist() == generate(request.prompt, request.max_new_tokens)
    assert_all_comes_back(manager)


# Window pages are short while full pages are not


def path_of_live_nodes(manager, num_nodes, node_tokens):
    """A cached path whose every node has been computed and cached on its own, so that all its windows are live."""
    tokens = prompt_of(num_nodes * node_tokens)
    row = open_row(manager, tokens, node_tokens)
    manager.cache(row)
    for node in range(1, num_nodes):
        compute(manager, row, (node + 1) * node_tokens)
        manager.cache(row)
    manager.finish(row)
    return tokens


@PAGE_SIZES
@SPANS
def test_windows_run_out_while_the_full_side_has_room(span, page_size):
    """The windows nearest the root go, alone; the full side keeps every token, and the path is still found."""
    node = -(-span // page_size) * page_size
    manager = windowed(16 * node, 4 * node, page_size, span)
    tokens = path_of_live_nodes(manager, 3, node)
    assert manager.tree.window_evictable_tokens == 3 * node
    row = open_row(manager, prompt_of(node, 1))
    assert free_slots(manager) == (12 * node, 0)
    assert manager.capacity.most(PAGE) * page_size == 15 * node
    assert manager.window_room() * page_size == 3 * node
    assert manager.extend([row], [2 * node]) is not None
    assert free_slots(manager) == (11 * node, 0)
    assert (manager.tree.evictable_tokens, manager.tree.window_evictable_tokens) == (3 * node, 2 * node)
    assert manager.tree.num_tombstone_tokens == node
    assert in_tokens(manager.evicted, manager.page_size) == Gone(0, 0, node, node)
    assert found(manager, tokens) == 3 * node
    assert found(manager, tokens[:node]) == 0
    manager.audit()
    manager.abort(row)
    assert_all_comes_back(manager)


@PAGE_SIZES
@SPANS
def test_windows_that_are_needed_do_not_count_as_capacity(span, page_size):
    """With every window page in use nothing is evicted, of either side, and an extension returns None."""
    node = -(-span // page_size) * page_size
    manager = windowed(16 * node, 3 * node, page_size, span)
    tokens = path_of_live_nodes(manager, 3, node)
    lease = manager.match([*tokens, OTHER])
    row = manager.match(prompt_of(1, 1)).row
    assert manager.extend([row], [2 * node + page_size]) is None
    assert manager.tree.num_tombstone_tokens == 0
    assert manager.extend([row], [2 * node]) is not None  # what the matched one does not read
    assert manager.extend([row], [2 * node + 1]) is None
    assert manager.decode([row]) is None
    assert (manager.capacity.most(PAGE) * page_size, manager.window_room()) == (11 * node, 0)
    assert manager.tree.evictable_tokens == 0
    assert manager.tree.window_protected_tokens == node
    manager.audit()
    manager.abort(row)
    manager.abort(lease.row)
    assert found(manager, tokens) == 3 * node
    assert_all_comes_back(manager)


# Which windows are dead decides what is found


@pytest.mark.parametrize(
    ("stops", "asked", "expected"),
    [
        ((4, 8, 16), 16, 16),  # 8 live, 4 dead, 4 live
        ((4, 8, 16), 15, 8),  # three live ones behind the dead are no window
        ((4, 8, 16), 12, 8),
        ((16,), 16, 16),  # 12 dead, 4 live
        ((16,), 15, 0),
        ((3,), 3, 3),  # shorter than a window
    ],
)
def test_prefix_is_found_behind_dead_windows(stops, asked, expected):
    """What is found ends where a whole window of live tokens does, or where all tokens from the first one are live."""
    manager = windowed(32, 32, 1, 4)
    tokens = prompt_of(16)
    row = manager.match(tokens[: stops[-1]]).row
    for stop in stops:
        compute(manager, row, stop)
        let_go(manager)
        manager.cache(row)
    manager.finish(row)
    assert found(manager, tokens[:asked]) == expected


@KINDS
@PAGE_SIZES
@SPANS
def test_any_pattern_of_dead_windows_gives_the_longest_prefix(span, page_size, kind):
    """Whatever stretches are live, each prefix of a cached path is found as far as a brute-force search finds it."""
    rng = np.random.default_rng([span, page_size, len(kind)])
    manager = windowed(64, 64, page_size, span, kind=kind)
    tokens = prompt_of(40)
    for _ in range(3):
        live, row = set(), manager.match(tokens).row
        for stop in np.unique(rng.integers(1, 41, 6)).tolist():
            compute(manager, row, stop)
            let_go(manager)
            manager.cache(row)
            boundary = floor(stop, page_size)
            live.update(range(needed_from(manager, boundary), boundary))
        manager.finish(row)
        for end in range(1, 41):
            cached = min(end, boundary)
            assert found(manager, tokens[:end]) == restorable(manager, live, cached)
            lease = manager.match([*tokens[:end], OTHER])
            assert lease.num_dead == floor(cached, page_size) - lease.num_cached
            assert (manager.window_slots(manager.table.read(lease.row)[manager.window_start[lease.row] :]) > 0).all()
            manager.abort(lease.row)
        assert_all_comes_back(manager)


@PAGE_SIZES
@pytest.mark.parametrize("span", [1, 4, 9])
def test_what_dead_windows_cost_is_told_once(span, page_size):
    """A request says what it found and what it had to compute again though it was cached; the next one finds it all."""
    manager = windowed(512, 128, page_size, span)
    scheduler, runner = Scheduler(manager), FakeRunner(manager)
    prompt = prompt_of(64)
    for request in (Request(0, prompt, 1), Request(1, prompt_of(104, 1), 1)):  # the second takes windows of the first
        scheduler.add(request)
        run(scheduler, runner)
    for expected in ((0, 32), (32, 0)):
        request = Request(2, np.append(prompt[:32], OTHER), 4)
        scheduler.add(request)
        run(scheduler, runner)
        assert (request.num_cached, request.num_dead) == expected


# Admission, chunks and the budget of window pages


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
@pytest.mark.parametrize("prefix", range(16))
@pytest.mark.parametrize("overlap", [True, False])
def test_admitted_chunk_fits_wherever_it_begins_in_a_page(page_size, prefix, overlap):
    """Wherever in a page a chunk begins, and with a chunk as large as the window side, what is admitted fits."""
    manager = windowed(256, 64, page_size, 8)
    scheduler = Scheduler(manager, overlap=overlap)
    runner = FakeRunner(manager)
    request = Request(0, prompt_of(prefix + 70), 3)
    scheduler.add(request)
    if prefix:
        scheduler.chunk_tokens = prefix
        scheduler.step(runner)
    scheduler.chunk_tokens = 64
    assert run(scheduler, runner) < 12
    assert request.output.tolist() == generate(request.prompt, 3)
    assert_all_comes_back(manager)


@pytest.mark.parametrize("page_size", [1, 4, 8])
@pytest.mark.parametrize("overlap", [True, False])
def test_prompt_waits_while_every_window_page_is_held(page_size, overlap):
    """While others hold every window page a prompt waits; it goes on when they have ended."""
    manager = windowed(512, 64, page_size, 32, prefix_cache=False)
    scheduler = Scheduler(manager, chunk_tokens=64, decode_headroom=0, overlap=overlap)
    runner = FakeRunner(manager)
    first, second = Request(0, prompt_of(64, 0), 4), Request(1, prompt_of(64, 1), 4)
    held = manager.match(prompt_of(1, 7)).row
    assert manager.extend([held], [64]) is not None
    scheduler.add(first)
    scheduler.add(second)
    for _ in range(3):
        assert scheduler.step(runner) is None
    assert scheduler.num_running <= 1
    manager.abort(held)
    scheduler.admission.forget_refusal()  # the row was none of the scheduler's
    run(scheduler, runner)
    for request in (first, second):
        assert request.output.tolist() == generate(request.prompt, 4)
    assert_all_comes_back(manager)


@RUNNERS
@pytest.mark.parametrize("page_size", [1, 2, 4, 8])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("window_slots", [48, 64, 128, 256])
def test_long_prompt_is_charged_only_its_window(window_slots, page_size, overlap, make_runner):
    """A prompt of many windows runs in a few: at once, in chunks as large as the window side allows, never waiting."""
    manager = windowed(1024, window_slots, page_size, 32, max_length=1024)
    scheduler = Scheduler(manager, chunk_tokens=64, overlap=overlap)
    runner = make_runner(manager)
    request = Request(0, prompt_of(512), 4)
    assert scheduler.add(request)
    steps, peak, had_result = 0, 0, not overlap
    while not scheduler.is_idle:
        outcome = scheduler.step(runner)
        assert outcome is not None or (overlap and (had_result or not steps)), "no two steps go by without a result"
        had_result = outcome is not None
        manager.audit()
        runner.poison_free_slots()
        peak = max(peak, manager.window_live_tokens())
        steps += 1
        assert steps < 200
    assert request.output.tolist() == generate(request.prompt, 4)
    assert request.num_retractions == 0
    if not overlap and window_slots >= 128:
        assert steps == 512 // 64 + 3
        assert peak <= 32 + 64 + 2 * page_size
    assert_all_comes_back(manager)


@PAGE_SIZES
@SPANS
@pytest.mark.parametrize("overlap", [True, False])
def test_window_side_of_one_sequence_always_goes_on(span, page_size, overlap):
    """The least window side that a sequence can run on serves prompts of any length, one page less refuses them."""
    least = -(-span // page_size) + 2
    for num_pages in (least, least - 1):
        manager = windowed(96, num_pages * page_size, page_size, span)
        scheduler = Scheduler(manager, chunk_tokens=16, overlap=overlap)
        runner = FakeRunner(manager)
        small, long, again = (Request(i, prompt_of(length, i % 2), 6) for i, length in enumerate((1, 40, 41)))
        added = [scheduler.add(request) for request in (small, long, again)]
        fits = num_pages == least
        assert added == [min(-(-6 // page_size), least) <= num_pages, fits, fits]
        assert fits or "window" in long.reason
        run(scheduler, runner)
        for request, is_in in zip((small, long, again), added, strict=True):
            assert request.status is (Status.FINISHED if is_in else Status.REJECTED)
            assert not is_in or request.output.tolist() == generate(request.prompt, 6)
        assert_all_comes_back(manager)


# Steps under way


@PAGE_SIZES
@pytest.mark.parametrize("span", [1, 2, 4, 9])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_window_pages_are_reused_only_after_the_step_that_reads_them(span, page_size, prefix_cache):
    """What ended with step n, but is also in step n + 1, gives both sides back only after that one."""
    manager = windowed(256, 128, page_size, span, max_requests=1, prefix_cache=prefix_cache)
    scheduler = Scheduler(manager, overlap=True)
    request = Request(0, prompt_of(20), 9, stop_tokens=(3,))
    scheduler.add(request)
    first, second = scheduler.schedule(), scheduler.schedule()
    held = manager.window_slots(manager.table.read(1)[20:])
    assert (held >= page_size).all()
    outcome = scheduler.process(first, [3])
    assert outcome.ended == [request]
    assert manager.window_slots(manager.table.read(1)[20:]).tolist() == held.tolist()
    manager.audit()
    scheduler.process(second, [4])
    assert manager.table.num_free == 1
    assert_all_comes_back(manager)


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("span", [1, 2, 3, 4, 6, 9])
@KINDS
def test_window_that_falls_behind_is_handed_on_while_it_is_read(span, page_size, kind):
    """With a step under way on a slow device, tight windows go from row to row only when no step reads them."""
    num_pages = 3 * (-(-span // page_size) + 2)
    manager = windowed(512, num_pages * page_size, page_size, span, kind=kind)
    scheduler = Scheduler(manager, chunk_tokens=5, decode_headroom=1, overlap=True)
    runner = LateRunner(manager)
    requests = [Request(i, prompt_of(7 + 3 * i, i), 24) for i in range(5)]
    for request in requests:
        scheduler.add(request)
    run(scheduler, runner)
    for request in requests:
        assert request.output.tolist() == generate(request.prompt, 24)
    assert_all_comes_back(manager)


# A tombstone that is computed again


@KINDS
@PAGE_SIZES
@SPANS
def test_tombstone_takes_over_the_windows_of_an_insertion(span, page_size, kind):
    """The dead pages take over the windows of a second computation; one full copy is freed, window counts stay."""
    manager = windowed(128, 96, page_size, span, kind=kind)
    length = -(-span // page_size) * page_size + 2 * page_size
    tokens = prompt_of(length + 40)
    row = open_row(manager, tokens)
    let_go(manager)
    manager.finish(row)
    boundary = floor(tokens.size, page_size)
    pages = manager.tree.slots(manager.tree.match(tokens)).tolist()
    assert manager.tree.num_tombstone_tokens == needed_from(manager, boundary)
    live = set(range(needed_from(manager, boundary), boundary))
    head = tokens[:length]
    for _ in range(8):
        lease = manager.match([*head, OTHER])
        cached = restorable(manager, live, length)
        assert lease == (lease.row, cached, length - cached)
        assert manager.extend([lease.row], [length]) is not None
        manager.commit([lease.row], [length], [1])
        let_go(manager)
        manager.cache(lease.row)
        assert manager.table.read(lease.row).tolist() == pages[:length]
        live.update(range(needed_from(manager, length), length))
        assert used_slots(manager) == (boundary, len(live))
        manager.audit()
        manager.finish(lease.row)
        assert manager.tree.window_evictable_tokens == len(live)
        assert found(manager, head) == length
        assert found(manager, tokens) == boundary
    assert_all_comes_back(manager)


@PAGE_SIZES
@SPANS
def test_tombstones_come_and_go_a_thousand_times(span, page_size):
    """Windows that are taken away and computed again, over and over: what is used stays the same on both sides."""
    length = -(-span // page_size) * page_size
    manager = windowed(8 * length, 2 * length, page_size, span)
    tokens = prompt_of(length)
    for _ in range(50):
        lease = manager.match([*tokens, OTHER])
        assert lease.num_cached == 0
        assert manager.extend([lease.row], [length]) is not None
        manager.commit([lease.row], [length], [1])
        manager.finish(lease.row)
        assert free_slots(manager) == (7 * length, length)
        assert found(manager, tokens) == length
        filler = manager.match([OTHER]).row
        assert manager.extend([filler], [2 * length]) is not None
        assert (manager.tree.evictable_tokens, manager.tree.window_evictable_tokens) == (length, 0)
        assert free_slots(manager) == (5 * length, 0)
        manager.audit()
        manager.abort(filler)
    assert_all_comes_back(manager)


# Retracted requests come back


@pytest.mark.parametrize(
    ("window_slots", "overlap", "together"),
    [(24, False, 2), (16, False, 2), (12, False, 1), (24, True, 2), (20, True, 2), (16, True, 1), (12, True, 1)],
)
def test_second_of_two_resumed_requests_is_counted_against_what_was_before(window_slots, overlap, together):
    """Two requests that need two pages of windows each, three with a step under way: both run, or one waits."""
    manager = windowed(24, window_slots, 4, 4, prefix_cache=False)
    scheduler = Scheduler(manager, decode_headroom=0, chunk_tokens=64, overlap=overlap)
    runner = FakeRunner(manager)
    requests = [Request(i, prompt_of(9, i), 4) for i in range(2)]
    for request in requests:
        scheduler.add(request)
    most = 0
    for _ in range(60):
        if scheduler.is_idle:
            break
        scheduler.step(runner)
        manager.audit()
        runner.poison_free_slots()
        most = max(most, scheduler.num_running)
    assert scheduler.is_idle
    assert most == together
    for request in requests:
        assert request.output.tolist() == generate(request.prompt, 4)
        assert request.num_retractions == 0
    assert_all_comes_back(manager)
