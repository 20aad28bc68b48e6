"""What a free list asks of the arena in which its pages lie."""

import numpy as np
import pytest

from kvstead.errors import AuditError, DoubleFree
from kvstead.kernels.host import PARKED
from kvstead.pages import FreeList


def ints(*values):
    return np.array(values, dtype=np.int64)


class NotedPlaces:
    """Room for `room` pages, at places that are multiples of ten. All calls are noted."""

    def __init__(self, room):
        self.room = room
        self.calls = []

    def place(self, num_pages):
        """The next places."""
        self.calls.append(("place", num_pages))
        if num_pages > self.room:
            return None
        self.room -= num_pages
        return ints(*range(10, 10 + 10 * num_pages, 10))

    def bind(self, pages, places):
        """Note the ids and their places."""
        self.calls.append(("bind", pages.tolist(), places.tolist()))

    def release(self, pages):
        """Note the ids, whose places are room again."""
        self.calls.append(("release", pages.tolist()))
        self.room += pages.size

    def capacity(self):
        """The room left."""
        return self.room

    def translate(self, slots, page_size, table):
        """Slots that can be told from those that came in."""
        self.calls.append(("translate", slots.tolist(), page_size, table.num_live))
        return slots + 1000

    def clear(self):
        """Note the call."""
        self.calls.append(("clear",))

    def audit(self, table):
        """Refuse tables in which pages are parked."""
        if table.num_parked:
            raise AuditError(f"{table.num_parked} are parked")

    def heard(self):
        """The calls since the last time."""
        calls, self.calls = self.calls, []
        return calls


ORDERS = ["lifo", "fifo", "lowest"]


@pytest.mark.parametrize("order", ORDERS)
def test_pages_are_placed_when_taken_and_released_when_free(order):
    """A take binds its ids to the places that it got; these come back when pages are free, not when they are parked."""
    places = NotedPlaces(5)
    free = FreeList(8, order, places)
    assert free.places is places
    assert free.take(4).tolist() == [1, 2, 3, 4]
    assert places.heard() == [("place", 4), ("bind", [1, 2, 3, 4], [10, 20, 30, 40])]
    free.leave(ints(3, 1))
    assert places.heard() == [("release", [3, 1])]
    parked = [free.leave(ints(2), PARKED), free.leave_segment(ints(8, 9), 2, PARKED)]
    assert places.heard() == []
    free.unpark(parked)
    assert places.heard() == [("release", [2]), ("release", [4])]
    pages = free.take(3)
    places.heard()
    free.leave_slots(pages[:2] * 2, 2)
    free.leave_segment(ints(*range(pages[2] * 3, pages[2] * 3 + 3)), 3)
    assert places.heard() == [("release", pages[:2].tolist()), ("release", pages[2:].tolist())]
    free.audit()


@pytest.mark.parametrize("order", ORDERS)
def test_a_take_without_room_changes_nothing(order):
    """Ids alone are not enough: without places nothing is taken, and without ids no place is asked for."""
    places = NotedPlaces(3)
    free = FreeList(6, order, places)
    before = free.contents().tolist(), free.table.state.tolist()
    assert free.capacity() == 3
    assert free.take(4) is None
    assert places.heard() == [("place", 4)]
    assert (free.contents().tolist(), free.table.state.tolist()) == before
    assert free.take(7) is None
    assert places.heard() == []
    free.take(3)
    places.room = 9
    assert free.capacity() == free.num_free == 3


@pytest.mark.parametrize("order", ORDERS)
def test_a_refused_call_releases_no_place(order):
    """With one bad page all pages stay where they are."""
    places = NotedPlaces(6)
    free = FreeList(6, order, places)
    free.take(3)
    places.heard()
    for call in (free.leave, lambda pages: free.leave_slots(pages * 2, 2), lambda pages: free.leave_segment(pages, 1)):
        with pytest.raises(DoubleFree, match="page 5 "):
            call(ints(1, 5, 2))
    assert places.heard() == []


def test_slots_clears_and_audits_go_on_to_the_places():
    """The places translate slots by the states of the ids, give up everything at a clear, and are audited."""
    places = NotedPlaces(6)
    free = FreeList(6, "lifo", places)
    free.take(2)
    assert free.translate(ints(3, 4), 2).tolist() == [1003, 1004]
    assert places.heard()[-1] == ("translate", [3, 4], 2, 2)
    free.leave(ints(1), PARKED)
    with pytest.raises(AuditError, match="1 are parked"):
        free.audit()
    free.clear()
    assert places.heard() == [("clear",)]
    assert (free.num_free, free.num_live, free.num_parked) == (6, 0, 0)
    free.audit()
