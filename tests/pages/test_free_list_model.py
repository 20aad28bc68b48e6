from collections import Counter

import numpy as np
import pytest
from free_list_model import ORDERS, FreeListModel
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvstead.errors import DoubleFree, ForeignPage, InvalidSize, MisalignedSegment
from kvstead.kernels.host import FREE, PARKED
from kvstead.pages import FreeList

AFTER = st.sampled_from([FREE, PARKED])
PAGE_SIZES = st.sampled_from([1, 2, 3, 4, 16])
TAGS = st.one_of(st.integers(0, 3), st.sampled_from([-(2**31), 2**31 - 1]))
EDGES = st.sampled_from([-(2**63), -1, 0, 2**63 - 1])


def ints(values):
    return np.array(values, dtype=np.int64)


class FreeListMachine(RuleBasedStateMachine):
    """A free list and its model do the same calls and agree after each."""

    @initialize(
        order=st.sampled_from(ORDERS),
        num_pages=st.sampled_from([8, 6, 0, 1, 5, 7, 64, 300]),
        share=st.integers(0, 4),
    )
    def start(self, order, num_pages, share):
        """One of the orders; pools of no page, of few, and of several bitmap levels; up to all of it taken."""
        self.real = FreeList(num_pages, order)
        self.model = FreeListModel(num_pages, order)
        self.parks = []  # (what `leave` returned, the pages)
        self.real.take(num_pages - num_pages * share // 4)
        self.model.take(num_pages - num_pages * share // 4, 0)

    def some_live(self, data):
        """Some live pages, in any order; one at least."""
        return data.draw(st.lists(st.sampled_from(list(self.model.live)), unique=True, min_size=1, max_size=8))

    def snapshot(self):
        """Everything that a refused call must leave as it is."""
        table = self.real.table
        counts = (table.num_free, table.num_live, table.num_parked)
        parks = [park.tolist() for park, _ in self.parks]
        return table.state.tobytes(), table.owner.tobytes(), counts, self.real.contents().tolist(), parks

    def refused(self, error, words, call):
        """The call raises the error, names what it is about and changes nothing."""
        before = self.snapshot()
        with pytest.raises(error, match=words):
            call()
        assert self.snapshot() == before

    @rule(data=st.data(), owner=TAGS)
    def take(self, data, owner):
        """Pages come out in the model's order, or None with one page too many."""
        num_free = self.real.num_free
        num_pages = data.draw(st.sampled_from([1, 2, 3, 5, num_free // 2, num_free, num_free + 1, 0]))
        expected = self.model.take(num_pages, owner)
        pages = self.real.take(num_pages, owner)
        assert expected == (None if pages is None else pages.tolist())
        if pages is not None:
            pages[:] = -1  # the caller's own array

    @rule(num_pages=st.integers(-3, -1))
    def take_less_than_nothing(self, num_pages):
        """A negative count is refused."""
        self.refused(InvalidSize, f"num_pages is {num_pages}", lambda: self.real.take(num_pages))

    @rule(owner=st.sampled_from([2**31, -(2**31) - 1]))
    def take_with_a_wide_tag(self, owner):
        """A tag that an int32 does not hold is refused, also when nothing is asked for."""
        for num_pages in (0, 1):
            self.refused(InvalidSize, str(owner), lambda count=num_pages: self.real.take(count, owner))

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def give(self, data):
        """Live pages go back, under either name of the call; the array may be overwritten at once."""
        pages = ints(self.some_live(data))
        self.model.leave(pages.tolist(), FREE)
        left = data.draw(st.sampled_from([self.real.give, self.real.leave]))(pages)
        assert left.tolist() == pages.tolist()
        pages[:] = 0

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def give_everything(self, data):
        """All live pages go back at once, around the ring."""
        pages = list(self.model.live)[:: data.draw(st.sampled_from([1, -1]))]
        self.model.leave(pages, FREE)
        self.real.leave(ints(pages))

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def park(self, data):
        """Live pages wait; a copy of their ids comes back."""
        given = ints(self.some_live(data))
        pages = given.tolist()
        park = self.real.leave(given, PARKED)
        given[:] = 0
        self.note_left(park, pages, PARKED)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), page_size=PAGE_SIZES, after=AFTER, whole=st.booleans())
    def leave_slots(self, data, page_size, after, whole):
        """Any slots of pages, or all of them in order, free or park each page once, in the order first seen."""
        pages = self.some_live(data)
        seen = pages if page_size == 1 else [*pages, *pages[:2]]  # a slot that is a page may be named once
        offsets = st.integers(0, page_size - 1)
        slots = [page * page_size + data.draw(offsets) for page in seen]
        if whole:
            slots = [page * page_size + offset for page in seen for offset in range(page_size)]
        self.note_left(self.real.leave_slots(ints(slots), page_size, after), pages, after)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), page_size=PAGE_SIZES, after=AFTER)
    def leave_segment(self, data, page_size, after):
        """A segment frees or parks its pages, the last one as a whole even when it is partial."""
        pages = self.some_live(data)
        slots = [page * page_size + offset for page in pages for offset in range(page_size)]
        slots = ints(slots[: len(slots) - data.draw(st.integers(0, page_size - 1))])
        self.note_left(self.real.leave_segment(slots, page_size, after), pages, after)

    @precondition(lambda self: self.parks)
    @rule(data=st.data())
    def unpark(self, data):
        """Parked pages come free in any order, of one call or of several at once, in the order named."""
        chosen = [self.parks.pop(data.draw(st.integers(0, len(self.parks) - 1)))]
        while self.parks and data.draw(st.booleans()):
            chosen.append(self.parks.pop(data.draw(st.integers(0, len(self.parks) - 1))))
        self.real.unpark(park for park, _ in chosen)
        self.model.unpark(pages for _, pages in chosen)

    @rule(data=st.data(), page_size=PAGE_SIZES)
    def leave_badly(self, data, page_size):
        """One page that may not leave stops the call, wherever it stands: the first such page is named."""
        good = self.some_live(data) if self.model.live else []
        not_live = [*list(self.model.parked)[:3], *self.model.free[:3]]
        wrong = data.draw(st.one_of(EDGES, st.just(self.model.num_pages + 1), st.sampled_from([*not_live, *good, 0])))
        at = data.draw(st.integers(good.index(wrong) + 1 if wrong in good else 0, len(good)))
        pages = [*good[:at], wrong, *good[at:]]
        if data.draw(st.booleans()):
            pages += pages  # more pages than are live
        error = DoubleFree if 1 <= wrong <= self.model.num_pages else ForeignPage
        words = f"page {wrong} "
        for after in (FREE, PARKED):
            self.refused(error, words, lambda after=after: self.real.leave(ints(pages), after))
        if abs(wrong) > 2**40:
            return
        slots = ints([page * page_size + offset for page in pages for offset in range(page_size)])
        for after in (FREE, PARKED):
            self.refused(error, words, lambda after=after: self.real.leave_segment(slots, page_size, after))
            if wrong not in good or page_size == 1:
                self.refused(error, words, lambda after=after: self.real.leave_slots(slots, page_size, after))

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), page_size=st.sampled_from([2, 3, 4, 16]))
    def leave_torn(self, data, page_size):
        """A segment with one slot moved is refused, in whichever page it is."""
        pages = self.some_live(data)
        slots = ints([page * page_size + offset for page in pages for offset in range(page_size)])
        at = data.draw(st.integers(0, slots.size - 1))
        slots[at] += data.draw(st.sampled_from([-page_size, -1, 1, page_size]))
        words = f"from entry {at // page_size * page_size} "
        for after in (FREE, PARKED):
            self.refused(MisalignedSegment, words, lambda after=after: self.real.leave_segment(slots, page_size, after))

    @precondition(lambda self: len(self.parks) > 1)
    @rule()
    def clear(self):
        """All pages are free again, ascending; seldom, since a cleared list has little to show."""
        self.model.clear()
        self.real.clear()
        self.parks = []

    def note_left(self, left, pages, after):
        """The ids that came back are the pages that leave; the model does the same."""
        assert left.tolist() == pages
        self.model.leave(pages, after)
        if after == PARKED:
            self.parks.append((left, pages))

    @invariant()
    def agrees(self):
        """States, order, counts, tags and parked ids are the model's, and the audit finds nothing."""
        if not hasattr(self, "real"):
            return
        real, model = self.real, self.model
        assert real.table.state.tolist() == model.states()
        assert real.contents().tolist() == model.free
        assert (real.num_free, real.capacity()) == (len(model.free), len(model.free))
        assert (real.num_live, real.num_parked) == (len(model.live), len(model.parked))
        assert real.table.owners() == Counter(model.live.values())
        assert all(park.tolist() == pages for park, pages in self.parks)
        real.audit()


class TestFreeListMachine(FreeListMachine.TestCase):
    """Random scripts of calls end in the model's state."""

    settings = settings(max_examples=150, stateful_step_count=40)


@pytest.mark.soak
class TestFreeListMachineForLong(FreeListMachine.TestCase):
    """The same for many and longer scripts."""

    settings = settings(max_examples=3000, stateful_step_count=60)
