"""The two page tables against a dictionary."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvstead.arena import PageMap, Span
from kvstead.errors import AuditError, DoubleFree, ForeignPage
from kvstead.kernels import spans


def ints(*values):
    return np.array(values, dtype=np.int64)


def bind(page_map, v_pages, pages):
    """Bind free ids to free pages, as a pool does."""
    spans.bind(page_map.v2p, page_map.p2v, v_pages, pages)
    page_map.num_changes += 1


def release(page_map, v_pages):
    """Take the pages of bound ids from them, as a pool does that has a span of all pages."""
    limit = page_map.p2v.size - 1
    span = Span(1, limit, 0)
    span.take(limit - 1, 1, limit)
    bad, _ = span.release(page_map.v2p, page_map.p2v, v_pages)
    if bad >= 0:
        page_map.refuse(int(v_pages[bad]))
    page_map.num_changes += 1
    return span.extent.num_used


WILD = st.sampled_from([0, -1, -2, 2**63 - 1, -(2**63)])


class MapMachine(RuleBasedStateMachine):
    """A map and a dictionary do the same; refused calls change nothing."""

    @initialize(num_virtual=st.integers(1, 9), num_physical=st.integers(2, 12))
    def start(self, num_virtual, num_physical):
        """Tables of different lengths, either may be the longer."""
        self.real = PageMap(num_virtual, num_physical)
        self.bound = {}
        self.sizes = num_virtual, num_physical

    def snapshot(self):
        """Everything that a refused call must leave as it is."""
        return self.real.v2p.tolist(), self.real.p2v.tolist(), self.real.num_changes

    def refused(self, error, words, call, *args):
        """The call raises, says what about, and changes nothing."""
        before = self.snapshot()
        with pytest.raises(error, match=words):
            call(*args)
        assert self.snapshot() == before

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
        v_pages = self.draw(data, set(range(1, self.sizes[0] + 1)) - self.bound.keys())
        unused = set(range(1, self.sizes[1])) - set(self.bound.values())
        pages = data.draw(st.permutations(sorted(unused)))[: len(v_pages)]
        v_pages = v_pages[: len(pages)]
        self.real.require_free(ints(*v_pages))
        bind(self.real, ints(*v_pages), ints(*pages))
        self.bound |= dict(zip(v_pages, pages, strict=True))

    @rule(data=st.data())
    def require_free(self, data):
        """Bound ids are not free, nor are those out of range, nor any twice."""
        free = self.draw(data, set(range(1, self.sizes[0] + 1)) - self.bound.keys())
        wrong, odd = self.spoil(data, free, self.bound)
        inside = 0 < odd <= self.sizes[0]
        error = (
            (AssertionError, f"page {odd} has a page")
            if inside
            else (ForeignPage, f"page {odd} (is the sink|does not belong)")
        )
        self.refused(*error, self.real.require_free, ints(*wrong))

    @rule(data=st.data())
    def release(self, data):
        """Bound ids lose their pages; those out of range, not bound or named again are refused."""
        v_pages = self.draw(data, self.bound)
        free = set(range(1, self.sizes[0] + 1)) - self.bound.keys()
        wrong, odd = self.spoil(data, v_pages, free)
        error = DoubleFree if 0 < odd <= self.sizes[0] else ForeignPage
        how = {odd in free: "already free", odd in self.bound: "named twice", odd == 0: "the sink"}
        how = how.get(True, "does not belong")
        self.refused(error, f"page {odd} .*{how}", release, self.real, ints(*wrong))
        assert release(self.real, ints(*v_pages)) == self.sizes[1] - 1 - len(v_pages)
        for v in v_pages:
            del self.bound[v]

    @rule(data=st.data())
    def rebind(self, data):
        """Pages move, and their owners with them."""
        src = self.draw(data, self.bound.values())
        unused = set(range(1, self.sizes[1])) - set(self.bound.values())
        dst = data.draw(st.permutations(sorted(unused)))[: len(src)]
        src = src[: len(dst)]
        self.real.rebind(ints(*src), ints(*dst))
        moved = dict(zip(src, dst, strict=True))
        self.bound = {v: moved.get(page, page) for v, page in self.bound.items()}

    @rule()
    def clear(self):
        """No id is bound."""
        self.real.clear()
        self.bound = {}

    @invariant()
    def agrees(self):
        """Both tables say what the dictionary does; padding and sentinel rows stay; the mirror is the table."""
        if not hasattr(self, "real"):
            return
        v2p, p2v = [0, *[-1] * (self.sizes[0] + 1)], [0, *[-1] * self.sizes[1]]
        for v, page in self.bound.items():
            v2p[v], p2v[page] = page, v
        assert self.real.v2p.tolist() == v2p
        assert self.real.p2v.tolist() == p2v
        assert self.real.mirror("cpu").tolist() == v2p
        self.real.audit()


TestMapMachine = MapMachine.TestCase
TestMapMachine.settings = settings(max_examples=60, stateful_step_count=30)


def small_map():
    """Ids 1 to 4: 1 on page 7, 2 on page 3, 3 on page 5, 4 free."""
    small = PageMap(4, 9)
    bind(small, ints(1, 2, 3), ints(7, 3, 5))
    return small


@pytest.mark.parametrize("page_size", [1, 3])
def test_slots_are_translated(page_size):
    """A slot of a bound page keeps its offset; padding, -1 and free pages go to slot 0."""
    small = small_map()
    slots = np.arange(-1, 5 * page_size)
    page = {1: 7, 2: 3, 3: 5}
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
    with pytest.raises(ForeignPage, match=rf"slot {wild} .*-1 \.\. {5 * page_size - 1}"):
        small_map().translate(slots, page_size, slots)
    assert slots.tolist() == [1, wild]


def test_the_cpu_mirror_is_the_table():
    """It is not a copy: it shares the table's memory, and pages bound later are seen."""
    small = small_map()
    mirror = small.mirror(torch.device("cpu"))
    assert mirror.data_ptr() == small.v2p.ctypes.data
    bind(small, ints(4), ints(8))
    assert mirror.tolist() == [0, 7, 3, 5, 8, -1]


def test_a_device_mirror_follows_when_it_is_asked_for(monkeypatch):
    """One tensor for ever, copied to once after any changes when it is asked for, and never read."""
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
        lambda: bind(small, ints(4), ints(8)),
        lambda: small.rebind(ints(8), ints(2)),
        lambda: release(small, ints(4, 3)),
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
    """An entry that other code wrote does not find its way back, whichever table it is in."""
    small = small_map()
    small.audit()
    damage(small)
    with pytest.raises(AuditError, match=r"find their way back|belong to nobody"):
        small.audit()
