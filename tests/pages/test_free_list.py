from collections import deque

import numpy as np
import pytest
from free_list_model import ORDERS
from hypothesis import given
from hypothesis import strategies as st

from kvstead.allocators.growth import segment_pages
from kvstead.errors import AuditError, DoubleFree, InvalidSize, MisalignedSegment
from kvstead.kernels import host
from kvstead.kernels.host import FREE, PARKED
from kvstead.pages import FreeList


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
def test_freed_pages_are_taken_in_the_order_of_the_list(order, then):
    """Freed pages come out first and in the order given (lifo), behind all others (fifo), or by their number."""
    free = FreeList(6, order)
    free.take(5)
    for pages in (ints(3, 4), ints(2), ints(5), ints(1)):
        free.leave(pages)
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
        free.leave(ints(*back))
        expected.extendleft(reversed(back)) if last_in_first_out else expected.extend(back)
        assert free.contents().tolist() == list(expected)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("after", [FREE, PARKED])
def test_a_call_with_more_pages_than_are_live_does_not_touch_the_list(order, after):
    """Pages are checked, and the first bad one is named, also where the ring has no room for all of them."""
    free = FreeList(4, order)
    free.take(4)
    free.leave(ints(3, 1))
    before = free.contents().tolist()
    for pages in (ints(2, 4, 4), ints(2, 4, 4, 2, 2)):
        for call in (free.leave, lambda slots, after: free.leave_slots(slots, 1, after)):
            with pytest.raises(DoubleFree, match=r"page 4 .* named twice"):
                call(pages, after)
    with pytest.raises(DoubleFree, match=r"page 2 .* named twice"):
        free.leave_segment(ints(2, 4, 2, 4, 2), 1, after)
    assert free.contents().tolist() == before
    free.leave(ints(4, 2))
    free.audit()


@pytest.mark.parametrize("order", ORDERS)
def test_an_empty_pool_answers_every_call(order):
    """A pool of no pages has none to take, and takes none back."""
    free = FreeList(0, order)
    assert free.take(0).tolist() == []
    assert free.take(1) is None
    for after in (FREE, PARKED):
        left = [free.leave(ints(), after)]
        left += [call(ints(), size, after) for call in (free.leave_slots, free.leave_segment) for size in (1, 4)]
        assert [pages.tolist() for pages in left] == [[]] * 5
    free.unpark(left)
    free.unpark([])
    free.clear()
    free.audit()
    assert free.contents().tolist() == []
    assert free.capacity() == free.num_pages == free.num_live == 0


def test_a_list_needs_a_count_and_a_known_order():
    """A negative count and an unknown order are refused; the message lists the orders."""
    with pytest.raises(InvalidSize, match=r"-1.*0 pages or more"):
        FreeList(-1)
    with pytest.raises(InvalidSize, match=r"'random'.*lifo, fifo, lowest"):
        FreeList(1, "random")


def test_give_is_leave():
    """The shorter name of the call that makes pages available at once."""
    assert FreeList.give is FreeList.leave


@pytest.mark.parametrize("order", ORDERS)
def test_parked_pages_keep_their_ids_when_other_calls_are_refused(order):
    """However often calls are refused while pages are parked, the arrays that were returned stay as they are."""
    free = FreeList(100, order)
    pages = free.take(100)
    parked = [free.leave(pages[:3], PARKED)]
    twice = pages[3:53].repeat(2)
    for after in (FREE, PARKED):
        with pytest.raises(DoubleFree):
            free.leave(twice, after)
        with pytest.raises(DoubleFree):
            free.leave_segment(twice, 1, after)
        with pytest.raises(DoubleFree):
            free.leave_slots(np.append(pages[3:53], pages[0]), 1, after)
        with pytest.raises(DoubleFree):
            free.leave_slots(np.append(pages[3:53], pages[0]) * 4, 4, after)
    parked += [free.leave(pages[i : i + 10], PARKED) for i in range(3, 93, 10)]
    assert np.concatenate(parked).tolist() == pages[:93].tolist()
    free.unpark(parked)
    assert free.leave(pages[93:], PARKED).tolist() == pages[93:].tolist()
    assert (free.num_free, free.num_live, free.num_parked) == (93, 0, 7)
    free.audit()


def test_a_parked_page_has_one_id_however_many_slots_name_it():
    """All slots of two pages a call park two ids a call."""
    free = FreeList(64)
    slots = (free.take(64)[:, None] * 16 + np.arange(16)).reshape(-1)
    parked = [free.leave_slots(part, 16, PARKED) for part in slots.reshape(-1, 32)]
    assert {pages.size for pages in parked} == {2}
    assert np.concatenate(parked).tolist() == list(range(1, 65))


@pytest.mark.parametrize("order", ORDERS)
def test_only_parked_pages_are_unparked(order):
    """Unparking live or free pages is our own mistake; it is caught and changes nothing."""
    free = FreeList(4, order)
    free.take(2)
    parked = free.leave(ints(2), PARKED)
    before = free.contents().tolist(), free.table.state.tolist()
    for pages in (ints(1), ints(2, 3), ints(2, 2), ints(0), ints(5)):
        with pytest.raises(AssertionError, match="left the parked state"):
            free.unpark([pages])
    free.audit()
    assert (free.contents().tolist(), free.table.state.tolist()) == before
    free.unpark([parked])
    assert free.num_free == 3


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
    free.leave(ints(2), PARKED)
    free.leave(ints(3, 1))
    free.audit()
    damage(free)
    return free


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("damage", TABLE_DAMAGE.values(), ids=TABLE_DAMAGE)
def test_audit_finds_damaged_states(order, damage):
    """A state or a count that other code wrote is found."""
    with pytest.raises(AuditError):
        damaged(order, damage).audit()


def write_ring(*pages):
    def corrupt(free):
        free._ring[(free._head + np.arange(len(pages))) % free._ring.size] = pages

    return corrupt


def shift_ring(name, by, *pages):
    """Change a number of a ring that holds these pages."""

    def corrupt(free):
        write_ring(*pages)(free)
        setattr(free, name, getattr(free, name) + by)

    return corrupt


# The ring lists pages 3 and 1; pages from 6 on are fresh.
RING_DAMAGE = {
    "a page listed twice": (write_ring(1, 1), r"\[3\]"),
    "a live page listed": (write_ring(4, 1), r"\[3, 4\]"),
    "the padding page listed": (write_ring(3, 0), r"\[0, 1\]"),
    "a page past the end": (write_ring(3, 201), r"\[1, 201\]"),
    "a head one too far": (shift_ring("_head", 1, 3, 1, 1), r"\[3\]"),
    "a lost page": (shift_ring("_num_listed", -1), r"\[1\].*lost"),
    "one entry too many": (shift_ring("_num_listed", 1, 3, 1, 3), "pages listed twice"),
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
        free._bitmap._words[word] ^= np.uint64(1 << page)

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
def test_each_page_costs_a_few_bytes(order, bytes_a_page):
    """A page costs a state, a tag and an entry in the ring, or a bit and its share of the summaries."""
    free = FreeList(100_000, order)
    queue = [free._bitmap._words] if order == "lowest" else [free._ring]
    num_bytes = sum(array.nbytes for array in (free.table.state, free.table.owner, *queue))
    assert num_bytes == pytest.approx(100_000 * bytes_a_page, rel=0.02)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("after", [FREE, PARKED])
@pytest.mark.parametrize(
    ("last", "error"), [(ints(8, 9), DoubleFree), (ints(13), MisalignedSegment), (ints(20), DoubleFree)]
)
def test_a_segment_leaves_as_a_whole(order, after, last, error):
    """Pages of two: a segment's pages come back as they were named; with one bad page all stay live."""
    free = FreeList(10, order)
    free.take(8)
    with pytest.raises(error):
        free.leave_segment(np.concatenate((ints(8, 9, 2, 3, 6, 7), last)), 2, after)
    assert free.table.state[1:9].tolist() == [host.LIVE] * 8
    assert (free.num_live, free.num_parked) == (8, 0)
    parked = [free.leave_segment(slots, 2, PARKED) for slots in (ints(8, 9, 2, 3), ints(6))]
    assert [pages.tolist() for pages in parked] == [[4, 1], [3]]
    assert (free.num_live, free.num_parked) == (5, 3)
    free.unpark(parked)
    free.audit()


@pytest.mark.parametrize("order", ORDERS)
@given(data=st.data())
def test_pages_are_unparked_as_if_they_had_been_freed_call_by_call(order, data):
    """Parked in any calls and unparked at once, pages are taken again as if each call had freed them."""
    parking, freeing = FreeList(9, order), FreeList(9, order)
    live = data.draw(st.permutations(parking.take(9).tolist()))
    freeing.take(9)
    parked = []
    while live and data.draw(st.booleans()):
        count = data.draw(st.integers(0, len(live)))
        pages, live = ints(*live[:count]), live[count:]
        parked.append(parking.leave(pages, PARKED))
        freeing.leave(pages)
    parking.unpark(iter(parked))
    assert parking.contents().tolist() == freeing.contents().tolist()
    assert parking.num_parked == 0
    parking.audit()


@given(st.lists(st.integers(0, 2**40), max_size=8), st.integers(1, 4), st.data())
def test_a_segment_names_its_pages(pages, page_size, data):
    """Consecutive slots from page starts name their pages in a new array, the last in part; else the entry is named."""
    slots = [page * page_size + offset for page in pages for offset in range(page_size)]
    slots = ints(*slots[: len(slots) - data.draw(st.integers(0, page_size - 1))])
    named = segment_pages(slots, page_size)
    assert named.tolist() == pages
    assert not np.shares_memory(named, slots)
    if page_size > 1 and slots.size > 1:
        at = data.draw(st.integers(0, slots.size - 1))
        is_alone = at % page_size == 0 and at + 1 == slots.size  # then a whole page further on is right, too
        slots[at] += 1 if is_alone else data.draw(st.sampled_from([-1, 1, page_size]))
        with pytest.raises(MisalignedSegment, match=f"from entry {at // page_size * page_size} "):
            segment_pages(slots, page_size)
