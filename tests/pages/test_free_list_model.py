from collections import Counter

import numpy as np
import pytest
from free_list_model import ORDERS, FreeListModel
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvstead.errors import DoubleFree, ForeignPage, InvalidSize, MisalignedSegment
from kvstead.pages import FreeList

PAGE_SIZES = st.sampled_from([1, 2, 3, 4, 16])
TAGS = st.one_of(st.integers(0, 3), st.sampled_from([-(2**31), 2**31 - 1]))
EDGES = st.sampled_from([-(2**63), -1, 0, 2**63 - 1])


def ints(values):
    return np.array(values, dtype=np.int64)


class FreeListMachine(RuleBasedStateMachine):
    """A free list and its model do the same calls; after each, all books agree."""

    @initialize(
        order=st.sampled_from(ORDERS),
        num_pages=st.sampled_from([8, 6, 0, 1, 5, 7, 64, 300]),
        share=st.integers(0, 4),
    )
    def start(self, order, num_pages, share):
        """One of the orders; pools of no page, of few, and of several bitmap levels; up to all of it taken."""
        self.real = FreeList(num_pages, order)
        self.model = FreeListModel(num_pages, order)
        self.parks = []  # (what `park` returned, the pages)
        self.real.take(num_pages - num_pages * share // 4)
        self.model.take(num_pages - num_pages * share // 4, 0)

    def some_live(self, data):
        """Some live pages, in any order; one at least."""
        return data.draw(st.lists(st.sampled_from(list(self.model.live)), unique=True, min_size=1, max_size=8))

    def books(self):
        """Everything that a refused call must leave as it is."""
        table = self.real.table
        counts = (table.num_free, table.num_live, table.num_parked)
        parks = [park.tolist() for park, _ in self.parks]
        return table.state.tobytes(), table.owner.tobytes(), counts, self.real.contents().tolist(), parks

    def refused(self, error, words, call):
        """The call raises the error, names what it is about and changes nothing."""
        before = self.books()
        with pytest.raises(error, match=words):
            call()
        assert self.books() == before

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
        """Live pages go back; the array may be overwritten at once."""
        pages = ints(self.some_live(data))
        self.model.give(pages.tolist())
        self.real.give(pages)
        pages[:] = 0

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def give_everything(self, data):
        """All live pages go back at once, around the ring."""
        pages = list(self.model.live)[:: data.draw(st.sampled_from([1, -1]))]
        self.model.give(pages)
        self.real.give(ints(pages))

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def park(self, data):
        """Live pages wait; what comes back is a copy."""
        given = ints(self.some_live(data))
        pages = given.tolist()
        park = self.real.park(given)
        given[:] = 0
        self.note_park(park, pages)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), page_size=PAGE_SIZES, parks=st.booleans(), whole=st.booleans())
    def leave_slots(self, data, page_size, parks, whole):
        """Any slots of pages, or all of them in order, give or park each page once, in the order first seen."""
        pages = self.some_live(data)
        offsets = st.integers(0, page_size - 1)
        slots = [page * page_size + data.draw(offsets) for page in [*pages, *pages[:2]]]
        if whole:
            slots = [page * page_size + offset for page in [*pages, *pages[:2]] for offset in range(page_size)]
        if parks:
            self.note_park(self.real.park_slots(ints(slots), page_size), pages)
        else:
            assert self.real.give_slots(ints(slots), page_size).tolist() == pages
            self.model.give(pages)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), page_size=PAGE_SIZES, parks=st.booleans())
    def leave_segment(self, data, page_size, parks):
        """A segment gives or parks its pages, the last one as a whole even when it is partial."""
        pages = self.some_live(data)
        slots = [page * page_size + offset for page in pages for offset in range(page_size)]
        slots = ints(slots[: len(slots) - data.draw(st.integers(0, page_size - 1))])
        if parks:
            self.note_park(self.real.park_segment(slots, page_size), pages)
        else:
            assert self.real.give_segment(slots, page_size).tolist() == pages
            self.model.give(pages)

    @precondition(lambda self: self.parks)
    @rule(data=st.data(), restores=st.booleans())
    def end_park(self, data, restores):
        """Parks come free or live again in any order."""
        park, pages = self.parks.pop(data.draw(st.integers(0, len(self.parks) - 1)))
        if restores:
            self.real.restore(park)
            self.model.restore(pages)
        else:
            self.real.unpark(park)
            self.model.unpark(pages)

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
        self.refused(error, words, lambda: self.real.give(ints(pages)))
        self.refused(error, words, lambda: self.real.park(ints(pages)))
        if abs(wrong) > 2**40:
            return
        slots = ints([page * page_size + offset for page in pages for offset in range(page_size)])
        self.refused(error, words, lambda: self.real.give_segment(slots, page_size))
        self.refused(error, words, lambda: self.real.park_segment(slots, page_size))
        if wrong not in good:
            self.refused(error, words, lambda: self.real.park_slots(slots, page_size))
            self.refused(error, words, lambda: self.real.give_slots(slots, page_size))

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), page_size=st.sampled_from([2, 3, 4, 16]))
    def leave_torn(self, data, page_size):
        """A segment with one slot moved is refused, whatever page it is in."""
        pages = self.some_live(data)
        slots = ints([page * page_size + offset for page in pages for offset in range(page_size)])
        at = data.draw(st.integers(0, slots.size - 1))
        slots[at] += data.draw(st.sampled_from([-page_size, -1, 1, page_size]))
        words = f"from entry {at // page_size * page_size} "
        self.refused(MisalignedSegment, words, lambda: self.real.give_segment(slots, page_size))
        self.refused(MisalignedSegment, words, lambda: self.real.park_segment(slots, page_size))

    @precondition(lambda self: len(self.parks) > 1)
    @rule()
    def clear(self):
        """All pages are free again, ascending, whoever held them; seldom, since little is left to see after that."""
        self.model.clear()
        self.real.clear()
        self.parks = []

    def note_park(self, park, pages):
        """The model parks them too."""
        assert park.tolist() == pages
        self.model.park(pages)
        self.parks.append((park, pages))

    @invariant()
    def books_agree(self):
        """States, order, counts, tags and parked ids are the model's, and the audit finds nothing."""
        if not hasattr(self, "real"):
            return
        real, model = self.real, self.model
        assert real.table.state.tolist() == model.states()
        assert real.contents().tolist() == model.free
        assert (real.num_free, real.num_parked) == (len(model.free), len(model.parked))
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
