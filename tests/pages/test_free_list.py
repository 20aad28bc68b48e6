from collections import deque

import numpy as np
import pytest
from free_list_model import ORDERS
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import AuditError, DoubleFree, InvalidSize, MisalignedSegment
from kvstead.kernels import host
from kvstead.pages import FreeList
from kvstead.pages.queues import PageRing


def ints(*values):
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("order", ORDERS)
def test_a_new_list_hands_pages_out_from_one_upward(order):
    """The first page of a new pool is 1, the last is the number of pages, and then there is none."""
    free = FreeList(5, order)
    assert free.take(3).tolist() == [1, 2, 3]
    assert free.take(2).tolist() == [4, 5]
    assert free.take(1) is None
    assert free.take(0).tolist() == []


@pytest.mark.parametrize(
    ("order", "then"), [("lifo", [1, 5, 2, 3, 4, 6]), ("fifo", [6, 3, 4, 2, 5, 1]), ("lowest", [1, 2, 3, 4, 5, 6])]
)
def test_what_each_order_means(order, then):
    """Freed pages come out first and in the order given (lifo), behind all others (fifo), or by their number."""
    free = FreeList(6, order)
    free.take(5)
    for pages in (ints(3, 4), ints(2), ints(5), ints(1)):
        free.give(pages)
    assert free.contents().tolist() == then
    assert free.take(6).tolist() == then


@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40), st.booleans())
def test_rings_wrap_around(num_pages, rounds, last_in_first_out):
    """However often head and tail go round, the ring is a double-ended queue."""
    free = FreeList(num_pages, "lifo" if last_in_first_out else "fifo")
    expected, live = deque(range(1, num_pages + 1)), deque()
    for num_taken, num_given in rounds:
        pages = free.take(min(num_taken, len(expected)))
        assert pages.tolist() == [expected.popleft() for _ in range(pages.size)]
        live.extend(pages.tolist())
        back = [live.popleft() for _ in range(min(num_given, len(live)))]
        free.give(ints(*back))
        expected.extendleft(reversed(back)) if last_in_first_out else expected.extend(back)
        assert free.contents().tolist() == list(expected)


@pytest.mark.parametrize("order", ORDERS)
def test_a_call_with_more_pages_than_are_live_does_not_touch_the_list(order):
    """With no room for all of them in the ring, the pages are still checked and the first bad one is named."""
    free = FreeList(4, order)
    free.take(4)
    free.give(ints(3, 1))
    before = free.contents().tolist()
    for call in (free.give, free.park):
        for pages in (ints(2, 4, 4), ints(2, 4, 4, 2, 2)):
            with pytest.raises(DoubleFree, match=r"page 4 .* named twice"):
                call(pages)
    with pytest.raises(DoubleFree, match=r"page 2 .* named twice"):
        free.give_segment(ints(2, 4, 2, 4, 2), 1)
    assert free.contents().tolist() == before
    free.give(ints(4, 2))
    free.audit()


@pytest.mark.parametrize("order", ORDERS)
def test_an_empty_pool_is_given_nothing(order):
    """A pool of no pages answers every call with nothing."""
    free = FreeList(0, order)
    assert free.take(0).tolist() == []
    assert free.take(1) is None
    for park in (free.park(ints()), free.park_slots(ints(), 4), free.park_segment(ints(), 4)):
        free.unpark(park)
        free.restore(park)
    free.give(ints())
    free.give_segment(ints(), 4)
    free.clear()
    free.audit()
    assert free.contents().tolist() == []


def test_a_list_needs_a_count_and_a_known_order():
    """A negative count and an order that nobody knows are refused; the message lists the orders."""
    with pytest.raises(InvalidSize, match=r"-1.*0 pages or more"):
        FreeList(-1)
    with pytest.raises(InvalidSize, match=r"'random'.*lifo, fifo, lowest"):
        FreeList(1, "random")


@pytest.mark.parametrize("order", ORDERS)
def test_a_park_that_was_refused_leaves_the_others_their_ids(order):
    """Room for parked ids is reused once none is parked; an open park keeps its ids through growth and refusals."""
    free = FreeList(100, order)
    pages = free.take(100)
    parks = [free.park(pages[:3])]
    with pytest.raises(DoubleFree):
        free.park(pages[3:10].repeat(2))
    parks += [free.park(pages[i : i + 10]) for i in range(3, 93, 10)]
    assert np.concatenate(parks).tolist() == pages[:93].tolist()
    for park in parks:
        free.unpark(park)
    assert free.park(pages[93:]).tolist() == pages[93:].tolist()


@pytest.mark.parametrize("order", ORDERS)
def test_only_parked_pages_end_a_park(order):
    """Ending a park whose pages are live or free is our own mistake; it is caught and changes nothing."""
    free = FreeList(4, order)
    free.take(2)
    park = free.park(ints(2))
    for pages in (ints(1), ints(2, 3)):
        for call in (free.unpark, free.restore):
            with pytest.raises(AssertionError, match="left the parked state"):
                call(pages)
    free.audit()
    free.unpark(park)
    assert free.num_free == 3


def test_pages_are_listed_only_where_room_was_made():
    """A ring refuses a buffer that is not its own."""
    ring = PageRing(4, last_in_first_out=True)
    with pytest.raises(AssertionError, match="where `room` said"):
        ring.listed(ints(1), 1)


def set_state(page, state):
    def corrupt(free):
        free.table.state[page] = state

    return corrupt


def shift(name, by):
    def corrupt(free):
        setattr(free.table, name, getattr(free.table, name) + by)

    return corrupt


def count_as_live(free):
    free.table.num_live += 1
    free.table.num_free -= 1


def swap_free_and_live(free):
    page = free.contents()[0]
    free.table.state[page], free.table.state[5] = host.LIVE, host.FREE


# Pages 1 (free), 2 (parked), 3 (free), 4 and 5 (live), then free ones. What goes wrong in states and counts.
TABLE_DAMAGE = {
    "a live page marked free": set_state(4, host.FREE),
    "a free page marked live": set_state(1, host.LIVE),
    "a parked page marked free": set_state(2, host.FREE),
    "a page left claimed": set_state(4, host.CLAIMED),
    "an unknown state": set_state(4, 200),
    "padding handed out": set_state(0, host.LIVE),
    "a second padding page": set_state(4, host.PADDING),
    "one free too many": shift("num_free", 1),
    "one live too few": shift("num_live", -1),
    "one parked too many": shift("num_parked", 1),
    "counts that trade": count_as_live,
    "states that trade": swap_free_and_live,
}


def damaged(order, damage):
    free = FreeList(200, order)
    free.take(5)
    free.park(ints(2))
    free.give(ints(3, 1))
    free.audit()
    damage(free)
    return free


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("damage", TABLE_DAMAGE.values(), ids=TABLE_DAMAGE)
def test_audit_finds_damaged_states(order, damage):
    """A state or a count that somebody else wrote is found."""
    with pytest.raises(AuditError):
        damaged(order, damage).audit()


def write_ring(index, page):
    def corrupt(free):
        queue = free._queue
        queue._ring[(queue._head + index) % queue._ring.size] = page

    return corrupt


def shift_ring(name, by):
    def corrupt(free):
        setattr(free._queue, name, getattr(free._queue, name) + by)

    return corrupt


RING_DAMAGE = {
    "a page listed twice": (write_ring(0, 1), r"\[3\]"),
    "a live page listed": (write_ring(0, 4), r"\[3, 4\]"),
    "the padding page listed": (write_ring(1, 0), r"\[0, 1\]"),
    "a page past the end": (write_ring(1, 201), r"\[1, 201\]"),
    "a lost page": (shift_ring("_count", -1), "lost"),
    "one entry too many": (lambda free: (write_ring(2, 3)(free), shift_ring("_count", 1)(free)), "listed twice"),
    "a fresh page lost": (shift_ring("_fresh", 1), r"\[6\]"),
    "a live page fresh again": (shift_ring("_fresh", -1), r"\[5\]"),
}


@pytest.mark.parametrize("order", ["lifo", "fifo"])
@pytest.mark.parametrize(("damage", "words"), RING_DAMAGE.values(), ids=RING_DAMAGE)
def test_audit_finds_a_damaged_ring(order, damage, words):
    """A page that is lost, listed twice or listed though not free is named."""
    with pytest.raises(AuditError, match=words):
        damaged(order, damage).audit()


def flip(word, page):
    def corrupt(free):
        free._queue._words[word] ^= np.uint64(1 << page)

    return corrupt


# 200 pages: words 0 to 3 hold a bit for each, word 4 a bit for each of those words.
BITMAP_DAMAGE = {
    "a lost page": (flip(0, 3), r"\[3\]"),
    "a live page": (flip(0, 4), r"\[4\]"),
    "the padding page": (flip(0, 0), r"\[0\]"),
    "a page past the end": (flip(3, 201 - 192), r"\[201\]"),
    "a summary that hides pages": (flip(4, 2), "stale"),
}


@pytest.mark.parametrize(("damage", "words"), BITMAP_DAMAGE.values(), ids=BITMAP_DAMAGE)
def test_audit_finds_a_damaged_bitmap(damage, words):
    """A wrong bit is named by its page; a summary level that does not follow from the one below is stale."""
    with pytest.raises(AuditError, match=words):
        damaged("lowest", damage).audit()


@pytest.mark.parametrize(("order", "bytes_a_page"), [("lifo", 13), ("fifo", 13), ("lowest", 5.2)])
def test_bytes_a_page(order, bytes_a_page):
    """A page costs a state, a tag and an entry in the ring, or a bit and its share of the summaries."""
    free = FreeList(100_000, order)
    queue = [free._queue._words] if order == "lowest" else [free._queue._ring]
    num_bytes = sum(array.nbytes for array in (free.table.state, free.table.owner, *queue))
    assert num_bytes == pytest.approx(100_000 * bytes_a_page, rel=0.02)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("last", "error"), [(ints(8, 9), DoubleFree), (ints(13), MisalignedSegment), (ints(20), DoubleFree)]
)
def test_segments_are_parked_all_or_none(order, last, error):
    """Pages of two: each segment's pages come back as they were named; with one bad segment all stay live."""
    free = FreeList(10, order)
    free.take(8)
    with pytest.raises(error):
        free.park_segments([ints(8, 9, 2, 3), ints(6, 7), last], 2)
    assert free.table.state[1:9].tolist() == [host.LIVE] * 8
    assert (free.table.num_live, free.num_parked) == (8, 0)
    parked = free.park_segments([ints(8, 9, 2, 3), ints(6)], 2)
    assert [pages.tolist() for pages in parked] == [[4, 1], [3]]
    assert (free.table.num_live, free.num_parked) == (5, 3)
    for pages in parked:
        free.unpark(pages)
    free.audit()
    assert free.num_free == 5
