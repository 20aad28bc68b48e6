"""Two ways that must come to the same, for every allocator whose pools share bytes."""

import itertools

import numpy as np
import pytest
from allocator_pair import ORDERS, snapshot
from unified_pair import one_pool, shared_bytes, stamped_pages

from kvstead.allocators import (
    PagedAllocator,
    SWAAllocator,
    TokenAllocator,
    UnifiedMambaAllocator,
    UnifiedMambaSWAAllocator,
    UnifiedSWAAllocator,
)
from kvstead.pools import Place

# Of each: an allocator of pages of `page_size` tokens, with room for fifty tokens or so.
ARENAS = {
    "one pool": lambda page_size, **keywords: one_pool(48, page_size, **keywords),
    "two sides": lambda page_size, **keywords: UnifiedSWAAllocator(
        300, page_size=page_size, full=5, window=3, **keywords
    ),
    "tokens and states": lambda page_size, **keywords: UnifiedMambaAllocator(
        400, page_size=page_size, full=5, state=23, **keywords
    ),
    "all three": lambda page_size, **keywords: UnifiedMambaSWAAllocator(
        500, page_size=page_size, full=5, window=3, state=23, **keywords
    ),
}
COUNTS = {
    "two sides by count": lambda page_size, **keywords: UnifiedSWAAllocator.over(
        shared_bytes(300, page_size, {"full": 5 * page_size, "window": 3 * page_size}), **keywords
    ),
    "all three by count": lambda page_size, **keywords: UnifiedMambaSWAAllocator.over(
        shared_bytes(500, page_size, {"full": 5 * page_size, "window": 3 * page_size, "state": 23}), **keywords
    ),
}
every_arena = pytest.mark.parametrize("make", ARENAS.values(), ids=ARENAS)
every_maker = pytest.mark.parametrize("make", (ARENAS | COUNTS).values(), ids=ARENAS | COUNTS)
with_windows = pytest.mark.parametrize(
    "make",
    [ARENAS["two sides"], ARENAS["all three"], *COUNTS.values()],
    ids=["two sides", "all three", *COUNTS],
)
every_order = pytest.mark.parametrize("order", ORDERS)
page_sizes = pytest.mark.parametrize("page_size", [1, 2, 4])
every_seed = pytest.mark.parametrize("seed", range(5))


def plain(slots):
    return None if slots is None else slots.tolist()


class Trace:
    """Random calls, the same for the same seed if the answers are the same; rows and states that are held."""

    def __init__(self, allocator, seed):
        self.allocator = allocator
        self.rng = np.random.default_rng(seed)
        self.rows, self.states, self.said = [], [], []

    def run(self, num_steps, after=lambda: None):
        """Grow, free, slide, park; what every call said."""
        steps = [self.grow, self.grow, self.decode, self.drop, self.slide, self.state, self.group]
        for _ in range(num_steps):
            steps[self.rng.integers(len(steps))]()
            after()
        self.allocator.free_group_end()
        after()
        return self.said

    def hear(self, slots):
        """Write an answer down: whether there was room."""
        self.said.append(plain(slots))
        return slots is not None

    def pick(self):
        """The index of a row that is held."""
        return int(self.rng.integers(len(self.rows)))

    def grow(self):
        """A new row, or a few pages more."""
        length = int(self.rng.integers(1, 4 * self.allocator.page_size + 2))
        slots = self.allocator.alloc_extend([0], [length], [-1])
        if self.hear(slots):
            self.rows.append(slots.tolist())

    def decode(self):
        """Some rows by a token each."""
        rows = [row for row in self.rows if self.rng.random() < 0.5]
        lengths, last = [len(row) + 1 for row in rows], [row[-1] for row in rows]
        slots = self.allocator.alloc_decode(lengths, last) if rows else None
        if self.hear(slots):
            for row, slot in zip(rows, slots.tolist(), strict=True):
                row.append(slot)

    def drop(self):
        """A row ends."""
        if self.rows:
            self.allocator.free(self.rows.pop(self.pick()))

    def slide(self):
        """A row's window moves on, up to its last page that is full."""
        if self.rows and isinstance(self.allocator, SWAAllocator):
            row, size = self.rows[self.pick()], self.allocator.page_size
            self.allocator.free_swa(row[: (len(row) - 1) // size * size])

    def state(self):
        """A state comes or goes."""
        states = self.allocator.states
        if states is not None and (not self.states or self.rng.random() < 0.6):
            slots = states.alloc(1)
            self.states += slots.tolist() if self.hear(slots) else []
        elif states is not None:
            states.free([self.states.pop()])

    def group(self):
        """The group opens, or closes."""
        if self.allocator.free_group is None:
            self.allocator.free_group_begin()
        else:
            self.allocator.free_group_end()


# Eager and lazy.


def stamped_run(allocator, seed):
    """A trace in which every page is stamped as soon as it is held: what was said and, once packed, is read."""
    written = {}

    def write():
        pages = stamped_pages(allocator)
        for key in written.keys() - pages.keys():
            del written[key]
        for key in pages.keys() - written.keys():
            written[key] = (7 * key[1] + len(key[0])) % 251 + 1
            pages[key].fill_(written[key])

    said = Trace(allocator, seed).run(60, write)
    allocator.chain.compact()
    allocator.audit()
    assert not any(pool.span.extent.num_holes for pool in allocator.chain.pools.values())
    read = {key: page.tolist() for key, page in stamped_pages(allocator).items()}
    assert read == {key: [stamp] * len(read[key]) for key, stamp in written.items()}
    return said, read


@every_arena
@page_sizes
def test_eager_and_lazy_arenas_hold_the_same_bytes_under_the_same_ids(make, page_size):
    """One trace with both: the same answers, and packed to the full each live id finds what was written to it."""
    refused = num_moves = 0
    for seed in range(6):
        made = [make(page_size, eager=eager) for eager in (False, True)]
        lazy, eager = (stamped_run(allocator, seed) for allocator in made)
        assert lazy == eager
        refused += lazy[0].count(None)
        num_moves += min(allocator.chain.num_moves for allocator in made)
    assert refused
    assert num_moves


# Without the others.


@every_order
@pytest.mark.parametrize("eager", [False, True])
def test_pages_of_one_token_are_a_token_allocator(order, eager):
    """One trace with an arena of one pool and with a token allocator: the same slots and refusals."""
    for seed in range(8):
        traces = [
            Trace(allocator, seed).run(80)
            for allocator in (TokenAllocator(24, order=order), one_pool(24, 1, order=order, eager=eager))
        ]
        assert None in traces[0]
        assert traces[0] == traces[1]


@every_maker
@every_order
def test_tokens_one_by_one_are_those_of_a_token_allocator(make, order):
    """At page size 1, while there is room for all, every allocator hands out the slots that a token allocator does."""
    allocator = make(1, order=order)
    tokens = TokenAllocator(allocator.size, order=order)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rows = []
        for _ in range(20):
            if len(rows) < 4:
                count = int(rng.integers(1, 6))
                slots = allocator.alloc(count)
                assert slots.tolist() == tokens.alloc(count).tolist()
                rows.append(slots)
            else:
                row = rows.pop(int(rng.integers(4)))
                allocator.free(row)
                tokens.free(row)
        for row in rows:
            allocator.free(row)
            tokens.free(row)


@every_order
@pytest.mark.parametrize("place", list(Place))
@page_sizes
def test_a_pool_alone_in_its_arena_is_a_static_one(page_size, place, order):
    """One trace with both: ids and refusals are the same wherever the pool grows, eager or not."""
    for seed, eager in itertools.product(range(3), (False, True)):
        arena = one_pool(30, page_size, order=order, place=place, eager=eager)
        static = PagedAllocator(30, page_size, order=order)
        said = [Trace(allocator, seed).run(80) for allocator in (static, arena)]
        assert None in said[0]
        assert said[0] == said[1]
        assert snapshot(arena) == snapshot(static)


# Groups.


@every_maker
@every_order
@pytest.mark.parametrize("cuts", [cuts for n in (0, 1, 2, 5) for cuts in itertools.combinations(range(1, 6), n)])
def test_frees_of_a_group_are_one_free_however_they_are_cut(make, order, cuts):
    """Pages and states freed together, or in parts within a group: the same ids come next; a second end is nothing."""
    ends = []
    for grouped in (False, True):
        allocator = make(2, order=order)
        row = allocator.alloc(12)
        states = allocator.states.alloc(2) if allocator.states else None
        allocator.alloc(2)
        if grouped:
            allocator.free_group_begin()
        bounds = itertools.pairwise((0, *cuts, 6)) if grouped else [(0, 6)]
        parts = [row[2 * start : 2 * end] for start, end in bounds]
        for part in reversed(parts) if order == "lifo" else parts:  # what is given back last is taken first
            allocator.free(part)
        if states is not None:
            allocator.states.free(states[:1])
            allocator.states.free(states[1:])
        allocator.free_group_end()
        kept = snapshot(allocator)
        allocator.free_group_end()
        assert snapshot(allocator) == kept
        allocator.audit()
        taken = allocator.alloc(12)
        ends.append((plain(taken), allocator.available_size(), allocator.states and plain(allocator.states.alloc(2))))
    assert ends[0] == ends[1]


@every_maker
@page_sizes
@every_seed
def test_a_pool_cleared_within_a_group_goes_on_as_a_new_one(make, page_size, seed):
    """Whatever came before, held or parked: after `clear`, and an end that is nothing, all goes as with a new pool."""
    used, new = make(page_size), make(page_size)
    trace = Trace(used, seed)
    trace.run(30)
    used.free_group_begin()
    if trace.rows:
        used.free(trace.rows[0])
    used.clear()
    used.free_group_end()
    used.audit()
    assert Trace(used, seed + 1).run(40) == Trace(new, seed + 1).run(40)
    assert snapshot(used)[-1] == snapshot(new)[-1]


# Forms of frees.


@every_maker
@every_order
@page_sizes
@pytest.mark.parametrize("grouped", [False, True], ids=["at once", "in a group"])
def test_a_stretch_of_a_row_is_freed_as_its_slots_are(make, order, page_size, grouped):
    """A row freed by slots, as one stretch, or as stretches that make it up: the same state afterwards."""
    ways = {
        "free": lambda allocator, row: allocator.free(row),
        "a stretch": lambda allocator, row: allocator.free_segment(row, start_pos=0),
        "stretches": lambda allocator, row: allocator.free_segments([(row, 0)]),
        "two stretches": lambda allocator, row: allocator.free_segments(
            [(row[cut:], cut), (row[:cut], 0)] if order == "lifo" else [(row[:cut], 0), (row[cut:], cut)]
        ),
    }
    cut = 2 * page_size
    ends = []
    for way in ways.values():
        allocator = make(page_size, order=order)
        row = allocator.alloc_extend([0], [5 * page_size - (page_size > 1)], [-1])
        allocator.alloc(page_size)
        if isinstance(allocator, SWAAllocator):
            allocator.free_swa(row[page_size : 2 * page_size])
        if grouped:
            with allocator.defer_frees():
                way(allocator, row)
        else:
            way(allocator, row)
        allocator.audit()
        pools = snapshot(allocator)
        ends.append((pools if order == "lowest" else pools[0], allocator.available_size()))
    assert ends == [ends[0]] * len(ways)


@with_windows
@page_sizes
@pytest.mark.parametrize("grouped", [False, True], ids=["at once", "in a group"])
def test_windows_freed_before_again_or_with_their_row_are_freed_once(make, page_size, grouped):
    """`free_swa` twice is once; `free` or `free_full` after it is `free`; every other order of calls ends the same."""

    def end_of(*calls):
        allocator = make(page_size, order="lowest")
        row, kept = allocator.alloc(3 * page_size), allocator.alloc(page_size)
        if grouped:
            allocator.free_group_begin()
        for call in calls:
            getattr(allocator, call)(row)
        if grouped:
            allocator.free_group_end()
        allocator.audit()
        assert allocator.physical_slots(kept).all()
        return snapshot(allocator), allocator.available_size()

    assert end_of("free_swa", "free_swa") == end_of("free_swa")
    assert end_of("free_swa") != end_of()
    freed = end_of("free")
    for calls in itertools.product(["free_swa", None], ["free_swa", None], ["free", "free_full"], ["free_swa", None]):
        assert end_of(*filter(None, calls)) == freed
