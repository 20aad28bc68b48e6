"""Linked pools against a dictionary, and what their audit finds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvstead.errors import AuditError, ForeignPage
from kvstead.kernels.host import PARKED
from kvstead.pages import FreeList, LinkedPool

EDGES = st.sampled_from([0, -1, -2, 2**63 - 1, -(2**63)])


def ints(*values):
    return np.array(values, dtype=np.int64)


class LinkedPoolMachine(RuleBasedStateMachine):
    """Pages of a first pool with and without linked pages, beside a dictionary of the links."""

    @initialize(num_pages=st.integers(0, 8), num_linked=st.integers(0, 10))
    def start(self, num_pages, num_linked):
        """Two pools; either may be the larger."""
        self.first = FreeList(num_pages)
        self.second = FreeList(num_linked)
        self.real = LinkedPool("window", self.second, self.first.table)
        self.array = self.real.linked
        self.links = {}  # live page -> its linked page, 0 for none

    def draw_live(self, data):
        """Live pages, in any order, some named twice."""
        return data.draw(st.lists(st.sampled_from(sorted(self.links)), max_size=8)) if self.links else []

    @rule(data=st.data())
    def take(self, data):
        """New pages, the last of which are linked."""
        pages = self.first.take(data.draw(st.integers(0, self.first.num_free)))
        linked = self.second.take(data.draw(st.integers(0, min(pages.size, self.second.num_free))))
        self.real.link(pages, linked)
        bare = pages.size - linked.size
        self.links |= dict(zip(pages.tolist(), [0] * bare + linked.tolist(), strict=True))

    @rule(data=st.data())
    def unlink(self, data):
        """Linked pages come out in the order of their pages, each once, and may be freed before their pages."""
        pages = self.draw_live(data)
        expected = [self.links[page] for page in dict.fromkeys(pages) if self.links[page]]
        linked = self.real.unlink(ints(*pages))
        assert linked.tolist() == expected
        self.second.leave(linked)
        self.links |= dict.fromkeys(pages, 0)

    @rule(data=st.data())
    def free(self, data):
        """Pages are freed together with what is linked to them."""
        pages = list(dict.fromkeys(self.draw_live(data)))
        self.second.leave(self.real.unlink(ints(*pages)))
        self.first.leave(ints(*pages))
        self.links = {page: linked for page, linked in self.links.items() if page not in pages}

    @rule(data=st.data())
    def unlink_a_foreign_page(self, data):
        """A page outside the first pool is refused by its number, and every link stays."""
        good = self.draw_live(data)
        wrong = data.draw(st.one_of(EDGES, st.just(self.first.num_pages + 1)))
        at = data.draw(st.integers(0, len(good)))
        before = self.real.linked.tolist()
        with pytest.raises(ForeignPage, match=f"page {wrong} "):
            self.real.unlink(ints(*good[:at], wrong, *good[at:]))
        assert self.real.linked.tolist() == before

    @rule()
    def clear(self):
        """All pages are free, and none is linked."""
        for part in (self.first, self.second, self.real):
            part.clear()
        self.links = {}

    @rule(data=st.data(), page_size=st.integers(1, 4))
    def slots(self, data, page_size):
        """A linked slot lies at the offset of its slot; 0 stands for none and -1 for -1; other slots are refused."""
        end = (self.first.num_pages + 1) * page_size
        slots = data.draw(st.lists(st.integers(-1, end - 1), max_size=8))
        expected = []
        for slot in slots:
            linked = self.links.get(slot // page_size, 0)
            expected.append(-1 if slot < 0 else linked * page_size + slot % page_size if linked else 0)
        assert self.real.slots(ints(*slots), page_size).tolist() == expected
        wrong = data.draw(st.sampled_from([-2, end, end + 7, 2**63 - 1, -(2**63)]))
        with pytest.raises(ForeignPage, match=f"slot {wrong} "):
            self.real.slots(ints(*slots, wrong), page_size)

    @invariant()
    def agrees(self):
        """The links are the dictionary's, in one array for ever, and the audit finds nothing."""
        if not hasattr(self, "real"):
            return
        expected = [self.links.get(page, 0) for page in range(self.first.num_pages + 1)]
        assert self.real.linked.tolist() == [*expected, -1]
        assert self.real.linked is self.array
        assert sorted(self.real.held().tolist()) == sorted(linked for linked in self.links.values() if linked)
        self.real.audit()


TestLinkedPoolMachine = LinkedPoolMachine.TestCase
TestLinkedPoolMachine.settings = settings(max_examples=60, stateful_step_count=30)


def small_pool(name="window"):
    """Pages 1 to 4 live, of six; 2, 3 and 4 are linked to pages 1, 2 and 3 of the second pool."""
    first, second = FreeList(6), FreeList(6)
    pages = first.take(4)
    pool = LinkedPool(name, second, first.table)
    pool.link(pages, second.take(3))
    return pool, first


def test_the_last_pages_are_linked():
    """Of more pages than linked ones the first stay without; one array holds the links, and -1 at its end."""
    pool, _ = small_pool()
    assert pool.linked.tolist() == [0, 0, 1, 2, 3, 0, 0, -1]
    assert pool.held().tolist() == [1, 2, 3]
    assert pool.unlink(ints(3, 1, 3, 2)).tolist() == [2, 1]
    assert pool.held().tolist() == [3]
    pool.clear()
    assert pool.linked.tolist() == [0] * 7 + [-1]


@given(st.integers(-(2**40), 2**40))
def test_pages_outside_the_first_pool_are_refused(page):
    """The number of the second pool's pages does not matter."""
    pool, _ = small_pool()
    if 1 <= page <= 6:
        pool.unlink(ints(page))
    else:
        with pytest.raises(ForeignPage, match=rf"page {page} .*\(1\.\.6\)"):
            pool.unlink(ints(page))


def link_twice(pool, _first):
    pool.linked[2] = pool.linked[3]


def lose_a_link(pool, _first):
    pool.linked[2] = 0


def link_a_free_page(pool, _first):
    pool.linked[1] = 5


def free_a_linked_page(pool, _first):
    pool.pool.leave(ints(1))


def park_a_linked_page(pool, _first):
    pool.pool.leave(ints(1), PARKED)


def free_its_page(_pool, first):
    first.leave(ints(2))


def park_its_page(_pool, first):
    first.leave(ints(2), PARKED)


def lose_the_end(pool, _first):
    pool.linked[-1] = 0


DAMAGE = {
    "two pages linked to one": (link_twice, "hot pages that are live are not the linked ones"),
    "a link lost": (lose_a_link, "hot pages that are live are not the linked ones"),
    "a link to a free page": (link_a_free_page, "hot pages that are live are not the linked ones"),
    "a linked page freed": (free_a_linked_page, "hot pages that are live are not the linked ones"),
    "a linked page parked": (park_a_linked_page, "hot pages that are live are not the linked ones"),
    "a page freed that is linked": (free_its_page, "not live has a hot page"),
    "a page parked that is linked": (park_its_page, "not live has a hot page"),
    "the last entry overwritten": (lose_the_end, "not live has a hot page"),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_audit_finds_damaged_links(damage, words):
    """Links that disagree with the states of either pool are found, and the second pool is named."""
    pool, first = small_pool("hot")
    pool.audit()
    damage(pool, first)
    with pytest.raises(AuditError, match=words):
        pool.audit()
