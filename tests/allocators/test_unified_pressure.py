"""Arenas that are nearly full all the time: room is exact, data follows its page, whatever came before."""

import itertools

import numpy as np
import pytest
from unified_pair import UnifiedPair, UnpairedPair, stamped_pages

from kvstead.allocators import UnifiedMambaAllocator, UnifiedMambaSWAAllocator, UnifiedSWAAllocator

SIZES = [(3, 2, None), (5, 3, 7), (2, 3, 11), (1, 4, 5), (4, 1, None)]
lazy_or_eager = pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager"])
every_seed = pytest.mark.parametrize("seed", range(6))


def pages_of(pair, slots):
    """Slots in rows of a page each."""
    return np.array(slots).reshape(-1, pair.real.page_size)


def fill(pair, rows, states, rng):
    """Take all but a page or so, a state now and then, and see that there is not a page more."""
    size = pair.real.page_size
    while (room := pair.real.available_size() // size) > rng.integers(0, 2):
        assert pair.alloc((room + 1) * size) is None
        if pair.real.states and rng.random() < 0.4:
            states.extend(pair.alloc_states(int(rng.integers(1, 3))) or [])
            continue
        slots = pair.alloc(int(rng.integers(1, room + 1)) * size, int(rng.integers(9)))
        rows.append(pages_of(pair, slots))


def let_go(pair, rows, states, rng):
    """Free something: a request, the first pages of one, windows that have moved on, or states."""
    what = rng.random()
    if states and what < 0.3:
        count = int(rng.integers(1, len(states) + 1))
        freed = [states.pop(int(rng.integers(len(states)))) for _ in range(count)]
        pair.free_states(freed)
    elif rows and what < 0.6 and hasattr(pair, "free_swa"):
        row = rows[int(rng.integers(len(rows)))]
        pair.free_swa(row[rng.random(len(row)) < 0.6].flatten().tolist())
    elif rows:
        row = rows.pop(int(rng.integers(len(rows))))
        keep = rng.random(len(row)) < 0.4
        pair.free(row[~keep].flatten().tolist())
        if keep.any():
            rows.append(row[keep])


def churn(pair, rng, num_steps=25):
    """Fill, let something go, fill again; every call is held against the model and audited."""
    rows, states = [], []
    for _ in range(num_steps):
        fill(pair, rows, states, rng)
        grouped = rng.random() < 0.3
        if grouped:
            pair.begin()
        for _ in range(int(rng.integers(1, 4))):
            let_go(pair, rows, states, rng)
        if grouped:
            pair.end()


@lazy_or_eager
@pytest.mark.parametrize(("full", "window", "state"), SIZES)
def test_a_nearly_full_arena_has_exactly_the_room_it_promises(full, window, state, eager):
    """Two and three pools at the brim: `available_size` is what can be taken, a page more is None, no byte is lost."""
    num_moves = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        page_size = int(rng.integers(1, 4))
        total = int(rng.integers(12, 30)) * max(full * page_size, window * page_size, state or 1)
        pair = UnifiedPair(total, page_size, full, window, state, eager=eager)
        churn(pair, rng)
        num_moves += pair.real.chain.num_moves
    assert num_moves


@lazy_or_eager
def test_tokens_and_states_that_share_a_full_arena_have_all_of_it(eager):
    """The same for tokens without windows beside states."""
    num_moves = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        page_size = int(rng.integers(1, 4))
        pair = UnpairedPair(int(rng.integers(60, 150)) * page_size, page_size, 2, 9 * page_size, eager=eager)
        churn(pair, rng)
        num_moves += pair.real.chain.num_moves
    assert num_moves


def script(allocator, rng, num_steps=60):
    """Any calls that do not depend on what the arena looks like inside; what they returned."""
    size, rows, states, said = allocator.page_size, [], [], []
    for _ in range(num_steps):
        what = rng.random()
        if what < 0.5:
            slots = allocator.alloc(int(rng.integers(1, 6)) * size)
            said.append(None if slots is None else slots.tolist())
            rows += [] if slots is None else [slots]
        elif what < 0.7:
            slots = allocator.states.alloc(int(rng.integers(1, 3)))
            said.append(None if slots is None else slots.tolist())
            states += [] if slots is None else [slots]
        elif what < 0.8 and states:
            allocator.states.free(states.pop(int(rng.integers(len(states)))))
        elif what < 0.9 and rows and isinstance(allocator, UnifiedSWAAllocator):
            allocator.free_swa(rows[int(rng.integers(len(rows)))][: 2 * size])
        elif rows:
            allocator.free_segment(rows.pop(int(rng.integers(len(rows)))), start_pos=0)
        said.append(allocator.available_size())
    return said


@every_seed
@pytest.mark.parametrize("make", [UnifiedMambaAllocator, UnifiedMambaSWAAllocator])
def test_eager_and_lazy_give_the_same_answers(make, seed):
    """Whether holes are closed at once or when needed, ids, refusals and sizes are the same."""
    window = {"window": 3} if make is UnifiedMambaSWAAllocator else {}
    made = [make(400, page_size=2, full=5, state=17, **window, eager=eager) for eager in (False, True)]
    lazy, eager = (script(allocator, np.random.default_rng(seed)) for allocator in made)
    assert lazy == eager
    for allocator in made:
        before = allocator.available_size()
        allocator.chain.compact()
        assert allocator.available_size() == before
        allocator.audit()
    assert stamped_pages(made[0]).keys() == stamped_pages(made[1]).keys()


@every_seed
def test_what_fits_can_be_taken_and_what_does_not_cannot(seed):
    """Tokens, windows for a part of them, and states, wanted at once: `fits` says what taking them does."""
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(40):
        pair = UnifiedPair(250, 2, 5, 3, 17)
        rows, states = [], []
        fill(pair, rows, states, rng)
        let_go(pair, rows, states, rng)
        let_go(pair, rows, states, rng)
        pages, windows, num_states = (int(rng.integers(0, high)) for high in (9, 9, 4))
        windows = min(windows, pages)
        counts = pair.model.counts()
        wanted = {"full": pages, "window": windows, "state": num_states}
        expected = pair.model.books.fit({name: counts[name] + wanted[name] for name in wanted})
        assert pair.real.fits(2 * pages, num_window_tokens=2 * windows, num_states=num_states) == expected
        refused += not expected
        if expected:
            assert pair.tail([0], [2 * pages], [-1], 2 * windows) is not None
            assert pair.alloc_states(num_states) is not None
        elif pair.alloc_states(num_states) is not None:
            assert pair.tail([0], [2 * pages], [-1], 2 * windows) is None
    assert 0 < refused < 40


@pytest.mark.parametrize("parts", [cuts for n in (0, 1, 3) for cuts in itertools.combinations(range(1, 6), n)])
@lazy_or_eager
def test_frees_in_any_groups_end_as_one_free(parts, eager):
    """The pages of a request freed in one call, or in parts of one group, leave the same state and capacity."""
    ends = []
    for cuts in ((), parts):
        allocator = UnifiedSWAAllocator(300, page_size=2, full=5, window=3, eager=eager, order="lowest")
        row = allocator.alloc(12)
        allocator.alloc(allocator.available_size())
        with allocator.defer_frees():
            for start, end in itertools.pairwise((0, *cuts, 6)):
                allocator.free(row[2 * start : 2 * end])
        allocator.free_group_end()
        allocator.audit()
        kept = allocator.window_pages.tolist(), allocator.page_states().tolist(), allocator.available_size()
        ends.append((kept, allocator.alloc(12).tolist()))
    assert ends[0] == ends[1]
