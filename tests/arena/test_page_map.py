"""The two page tables against dictionaries."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvstead.arena import PageMap
from kvstead.errors import AuditError, DoubleFree, ForeignPage


def ints(*values):
    return np.array(values, dtype=np.int64)


WILD = st.sampled_from([0, -1, -2, 2**63 - 1, -(2**63)])


class MapMachine(RuleBasedStateMachine):
    """A map and two dictionaries do the same; calls with something wrong in them change nothing."""

    @initialize(num_virtual=st.integers(1, 9), num_physical=st.integers(2, 12))
    def start(self, num_virtual, num_physical):
        """Tables of different lengths, either may be the longer."""
        self.real = PageMap(num_virtual, num_physical)
        self.live, self.parked = {}, {}
        self.sizes = num_virtual, num_physical

    def books(self):
        """Everything that a refused call must leave as it is."""
        return self.real.v2p.tolist(), self.real.p2v.tolist(), self.real._changes

    def refused(self, error, words, call, *args):
        """The call raises, says what about, and changes nothing."""
        before = self.books()
        with pytest.raises(error, match=words):
            call(*args)
        assert self.books() == before

    def draw(self, data, items):
        """Some of them, in any order."""
        items = sorted(items)
        return data.draw(st.lists(st.sampled_from(items), unique=True, max_size=6)) if items else []

    def spoil(self, data, pages, outsiders):
        """The pages with a wrong one among them, and that one."""
        odd = data.draw(st.one_of(WILD, st.just(self.sizes[0] + 1), *map(st.just, [*outsiders, *pages])))
        at = data.draw(st.integers(0, len(pages)))
        if odd in pages:
            at = len(pages)  # the second time is the wrong one
        return [*pages[:at], odd, *pages[at:]], odd

    @rule(data=st.data())
    def bind(self, data):
        """Free ids get free pages."""
        v_pages = self.draw(data, set(range(1, self.sizes[0] + 1)) - self.live.keys() - self.parked.keys())
        used = {*self.live.values(), *self.parked.values()}
        pages = data.draw(st.permutations(sorted(set(range(1, self.sizes[1])) - used)))[: len(v_pages)]
        v_pages = v_pages[: len(pages)]
        self.real.require_free(ints(*v_pages))
        self.real.bind(ints(*v_pages), ints(*pages))
        self.live |= dict(zip(v_pages, pages, strict=True))

    @rule(data=st.data())
    def require_free(self, data):
        """Bound ids are not free, nor are those out of range, nor any twice."""
        free = self.draw(data, set(range(1, self.sizes[0] + 1)) - self.live.keys() - self.parked.keys())
        wrong, odd = self.spoil(data, free, [*self.live, *self.parked])
        inside = 0 < odd <= self.sizes[0]
        error = (AssertionError, f"page {odd} has a page") if inside else (ForeignPage, f"page {odd} is")
        self.refused(*error, self.real.require_free, ints(*wrong))

    @rule(data=st.data(), kind=st.sampled_from(["unbind", "park"]))
    def free(self, data, kind):
        """Live ids lose their page or are parked."""
        v_pages = self.draw(data, self.live)
        dead = set(range(1, self.sizes[0] + 1)) - self.live.keys()
        wrong, odd = self.spoil(data, v_pages, dead)
        error = DoubleFree if 0 < odd <= self.sizes[0] else ForeignPage
        how = {odd in self.parked: "parked", odd in self.live: "named twice", odd == 0: "the sink"}.get(True, "")
        self.refused(error, f"page {odd} is.*{how}", getattr(self.real, kind), ints(*wrong))
        pages = getattr(self.real, kind)(ints(*v_pages))
        expected = [self.live.pop(v) for v in v_pages]
        if kind == "park":
            self.parked |= dict(zip(v_pages, expected, strict=True))
        else:
            assert pages.tolist() == expected

    @rule(data=st.data(), kind=st.sampled_from(["unbind_parked", "restore"]))
    def end_park(self, data, kind):
        """Parked ids lose their page or are live again."""
        v_pages = self.draw(data, self.parked)
        unparked = set(range(1, self.sizes[0] + 1)) - self.parked.keys()
        wrong, odd = self.spoil(data, v_pages, unparked)
        self.refused(AssertionError, f"page {odd} left the parked state", getattr(self.real, kind), ints(*wrong))
        pages = getattr(self.real, kind)(ints(*v_pages))
        expected = [self.parked.pop(v) for v in v_pages]
        if kind == "restore":
            self.live |= dict(zip(v_pages, expected, strict=True))
        else:
            assert pages.tolist() == expected

    @rule(data=st.data())
    def rebind(self, data):
        """Pages move; who is live stays live, who is parked stays parked."""
        where = {**self.live, **self.parked}
        src = self.draw(data, where.values())
        dst = data.draw(st.permutations(sorted(set(range(1, self.sizes[1])) - set(where.values()))))[: len(src)]
        src = src[: len(dst)]
        self.real.rebind(ints(*src), ints(*dst))
        moved = dict(zip(src, dst, strict=True))
        for owners in (self.live, self.parked):
            owners.update({v: moved.get(page, page) for v, page in owners.items()})

    @rule()
    def clear(self):
        """Nobody has anything."""
        self.real.clear()
        self.live, self.parked = {}, {}

    @invariant()
    def agrees(self):
        """Both tables say what the dictionaries do; padding and sentinel rows stay; the mirror is the table."""
        if not hasattr(self, "real"):
            return
        v2p, p2v = [0, *[-1] * (self.sizes[0] + 1)], [0, *[-1] * self.sizes[1]]
        for v, page in self.live.items():
            v2p[v], p2v[page] = page, v
        for v, page in self.parked.items():
            v2p[v], p2v[page] = ~page, ~v
        assert self.real.v2p.tolist() == v2p
        assert self.real.p2v.tolist() == p2v
        assert self.real.mirror("cpu").tolist() == v2p
        self.real.audit()


TestMapMachine = MapMachine.TestCase
TestMapMachine.settings = settings(max_examples=60, stateful_step_count=30)


def small_map():
    """Ids 1 to 4: 1 on page 7, 2 on page 3, 3 parked on page 5, 4 free."""
    small = PageMap(4, 9)
    small.bind(ints(1, 2, 3), ints(7, 3, 5))
    small.park(ints(3))
    return small


@pytest.mark.parametrize("page_size", [1, 3])
def test_slots_are_translated(page_size):
    """A slot of a live page keeps its offset; padding, -1, parked and free pages go to slot 0."""
    small = small_map()
    slots = np.arange(-1, 5 * page_size)
    page = {1: 7, 2: 3}
    expected = [
        page[slot // page_size] * page_size + slot % page_size if slot // page_size in page else 0
        for slot in slots.tolist()
    ]
    assert small.translate(slots, page_size).tolist() == expected
    out = np.full(slots.size, -9)
    assert small.translate(slots, page_size, out) is out
    assert out.tolist() == expected
    assert small.translate(slots, page_size, slots) is slots  # in place
    assert slots.tolist() == expected
    assert small.translate(ints(), page_size).size == 0


@pytest.mark.parametrize("page_size", [1, 3])
@pytest.mark.parametrize("wild", [-2, None, 2**62, -(2**63)])
def test_foreign_slots_are_not_translated(page_size, wild):
    """A slot below -1 or past the table is refused, and what is written to stays as it was."""
    wild = 5 * page_size if wild is None else wild
    slots = ints(1, wild)
    with pytest.raises(ForeignPage, match=f"slot {wild} .*below {5 * page_size}"):
        small_map().translate(slots, page_size, slots)
    assert slots.tolist() == [1, wild]


def test_the_cpu_mirror_is_the_table():
    """No copy: what is bound later is seen, and it is the table's memory."""
    small = small_map()
    mirror = small.mirror(torch.device("cpu"))
    assert mirror.data_ptr() == small.v2p.ctypes.data
    small.bind(ints(4), ints(8))
    assert mirror.tolist() == [0, 7, 3, ~5, 8, -1]


def test_a_device_mirror_follows_when_it_is_asked_for(monkeypatch):
    """One tensor for ever, copied to once for every change that somebody asked after, and never read."""
    copies = []
    copy = torch.Tensor.copy_

    def counted(self, source, non_blocking=False):  # noqa: FBT002 - torch's signature
        copies.append(non_blocking)
        return copy(self, source, non_blocking)

    monkeypatch.setattr(torch.Tensor, "copy_", counted)
    small = small_map()
    mirror = small.mirror("meta")
    assert (mirror.shape, mirror.dtype, mirror.device.type) == ((6,), torch.int64, "meta")
    for change in (
        lambda: small.bind(ints(4), ints(8)),
        lambda: small.rebind(ints(8), ints(2)),
        lambda: small.park(ints(4)),
        lambda: small.restore(ints(4)),
        lambda: small.unbind(ints(4)),
        lambda: small.unbind_parked(ints(3)),
        small.clear,
    ):
        before = len(copies)
        assert small.mirror("meta") is mirror
        assert len(copies) == before
        change()
        assert small.mirror("meta") is mirror
        assert copies[before:] == [True]


def write(table, row, value):
    def corrupt(small):
        getattr(small, table)[row] = value

    return corrupt


DAMAGE = [
    *(write(table, row, value) for table, row, value in product(["v2p", "p2v"], [0, -1], [1, -2])),
    *(write("v2p", 1, value) for value in (-1, ~7, 8, 3, 9, 400, ~400, 0)),
    *(write("v2p", 4, value) for value in (7, 0, 8, ~5)),
    *(write("p2v", 7, value) for value in (-1, ~1, 2, 4, 5, 400, 0)),
    *(write("p2v", 8, value) for value in (1, 0, 4, ~3)),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_audit_finds_a_damaged_map(damage):
    """An entry that somebody else wrote does not find its way back, whichever table it is in."""
    small = small_map()
    small.audit()
    damage(small)
    with pytest.raises(AuditError, match=r"find their way back|belong to nobody"):
        small.audit()
