"""A chain on real bytes beside what its callers know of it; every call is checked against all the rules.

Pages are stamped when they are taken, and every stamp must be found wherever the page lies later. Copies, zero-fills,
fences and the answers of the gate are recorded.
"""

import itertools
from dataclasses import astuple

import numpy as np
import pytest
from all_layouts import HIGH, LOW, MIDDLE, room_unmoved, some_layout

from kvstead.arena import PoolChain
from kvstead.kernels.host import PARKED
from kvstead.pages import FreeList
from kvstead.pools import ByteArena, EntrySpec, Place

PLACES = {LOW: Place.LOW, MIDDLE: Place.MIDDLE, HIGH: Place.HIGH}
ROUNDS = itertools.cycle(range(1, 251))


def ints(values):
    return np.array(list(values), dtype=np.int64)


def specs_of(sizes, **keywords):
    """Pools named a, b, c ... for (page bytes, place)."""
    return [EntrySpec("abcdefgh"[at], size, 1, PLACES[place], align=1, **keywords) for at, (size, place) in sizes]


class ChainPair:
    """A chain, and of each pool the live ids with the stamps on their pages. Ids are the lowest that are unused."""

    def __init__(self, sizes, total, *, eager=False, zero_on_take=False, storage=True):
        self.total = total
        self.specs = specs_of(list(enumerate(sizes)), zero_on_take=zero_on_take)
        self.names = [spec.name for spec in self.specs]
        self.sizes = dict(zip(self.names, sizes, strict=True))
        self.events = []
        self.is_open = True
        self.arena = ByteArena(total, storage=storage)
        num_virtual = {spec.name: total // spec.page_bytes + 8 for spec in self.specs}  # pages run out, ids do not
        self.chain = PoolChain(
            self.arena,
            self.specs,
            eager=eager,
            fence=lambda: self.events.append("fence"),
            may_move=self.gate,
            num_virtual=num_virtual,
        )
        self.sink = self.arena.sink_bytes
        self.copy, self.zero = self.arena.copy, self.arena.zero
        self.arena.copy, self.arena.zero = self.copied, self.zeroed
        self.live = {name: {} for name in self.names}
        self.parked = {name: {} for name in self.names}  # only where free lists hand out the ids
        self.dirty = np.zeros(total, dtype=bool)  # bytes that left a span after the last fence
        self.moved = 0

    def gate(self):
        """May pages move? The answer is written down."""
        self.events.append("open" if self.is_open else "closed")
        return self.is_open

    def copied(self, spec, dst, src):
        """A copy: distinct pages, the sources used and the destinations not, behind a fence."""
        assert "fence" in self.events, "a copy without a fence"
        assert "closed" not in self.events, "a copy behind a closed gate"
        pages = [*src.tolist(), *dst.tolist()]
        assert len(set(pages)) == len(pages)
        assert src.size
        p2v = self.chain.pools[spec.name].map.p2v
        assert (p2v[src] != -1).all()
        assert (p2v[dst] == -1).all()
        self.moved += src.size * spec.page_bytes
        self.copy(spec, dst, src)

    def zeroed(self, spec, pages):
        """A zero-fill, behind a fence."""
        assert "fence" in self.events, "a zero-fill without a fence"
        assert spec.zero_on_take
        self.events.append("zero")
        self.zero(spec, pages)

    # --- what callers see

    def occupancy(self):
        """The share of the bytes above the sink that is used."""
        used = sum(len(self.used(name)) * self.sizes[name][0] for name in self.names)
        return used / (self.total - self.sink)

    def used(self, name):
        """Used ids of a pool, live or parked, with their stamps."""
        return self.live[name] | self.parked[name]

    def places(self):
        """(page bytes, place, used pages) of each pool, from the tables."""
        tables = [self.chain.pools[name].map.v2p for name in self.names]
        found = []
        for name, v2p in zip(self.names, tables, strict=True):
            found.append((*self.sizes[name], sorted(int(v2p[v]) for v in self.used(name))))
        return found

    def fits(self, demand):
        """Whether some layout has room, by trying all."""
        counts = [(*self.sizes[name], len(self.used(name)) + demand.get(name, 0)) for name in self.names]
        return some_layout(tuple(counts), self.total, self.sink)

    def room(self, name):
        """Pages that a pool can take while nothing moves, by trying all."""
        return room_unmoved(self.places(), self.names.index(name), self.total, self.sink)

    def state(self):
        """All that a call which does nothing must leave as it is."""
        maps = [(pool.map.v2p.tobytes(), pool.map.p2v.tobytes()) for pool in self.chain.pools.values()]
        spans = [(astuple(pool.span.extent), pool.span.words.tobytes()) for pool in self.chain.pools.values()]
        storage = b"" if self.arena.storage is None else self.arena.storage.numpy().tobytes()
        return maps, spans, storage, self.chain.bytes_moved, self.chain.num_moves

    # --- calls

    def take(self, name, count, fits=None):
        """Pages for new ids: None if and only if nothing fits; zeroed if asked for; then stamped."""
        count = min(count, self.num_unused_ids(name))
        expected = (self.fits({name: count}) if self.is_open else self.room(name) >= count) if fits is None else fits
        assert self.chain.fits({name: count}) == expected
        before = self.begin()
        v_pages = self.take_ids(name, count)
        assert (v_pages is not None) == expected
        if v_pages is None:
            assert self.state() == before.state
        else:
            assert len(v_pages) == count
            self.stamp(name, v_pages)
        self.end(before)
        return v_pages

    def num_unused_ids(self, name):
        """Ids that could be taken if their pages had room."""
        return self.chain.pools[name].map.num_virtual - len(self.live[name])

    def take_ids(self, name, count):
        """The lowest unused ids, with pages; or None."""
        v_pages = [v for v in range(1, self.chain.pools[name].map.num_virtual + 1) if v not in self.live[name]][:count]
        pages = self.chain.take(name, ints(v_pages))
        assert pages is None or pages.tolist() == self.chain.pools[name].map.v2p[v_pages].tolist()
        return None if pages is None else v_pages

    def release_ids(self, name, v_pages):
        """Live ids are free."""
        self.chain.release(name, ints(v_pages))

    def stamp(self, name, v_pages):
        """Check that new pages are zeros, where they must be, and write a stamp on each."""
        for v in v_pages:
            self.live[name][v] = next(ROUNDS)
            if self.arena.storage is not None:
                page = self.page(name, v)
                assert not (self.specs[0].zero_on_take and page.any())
                page.fill_(self.live[name][v])

    def release(self, name, v_pages):
        """Live ids are free again."""
        before = self.begin()
        self.release_ids(name, v_pages)
        for v in v_pages:
            del self.live[name][v]
        self.end(before)

    def park(self, name, v_pages):
        """Live ids are parked: nothing else changes."""
        before = self.begin()
        self.chain.park(name, ints(v_pages))
        self.parked[name] |= {v: self.live[name].pop(v) for v in v_pages}
        assert not self.events
        self.end(before)

    def unpark(self, name, v_pages):
        """Parked ids are free."""
        before = self.begin()
        self.chain.unpark(name, ints(v_pages))
        for v in v_pages:
            del self.parked[name][v]
        self.end(before)

    def restore(self, name, v_pages):
        """Parked ids are live again."""
        before = self.begin()
        self.chain.restore(name, ints(v_pages))
        self.live[name] |= {v: self.parked[name].pop(v) for v in v_pages}
        assert not self.events
        self.end(before)

    def compact(self, budget=None):
        """Holes become gaps, within the budget."""
        before = self.begin()
        moved = self.chain.compact(budget)
        assert moved == self.chain.bytes_moved - before.bytes_moved
        assert budget is None or moved <= budget
        if budget is None and self.is_open:
            assert not any(pool.span.extent.num_holes for pool in self.chain.pools.values())
        self.end(before)
        return moved

    def refused(self, error, words, call, *args):
        """A call that is refused, and changes nothing."""
        before = self.begin()
        with pytest.raises(error, match=words):
            call(*args)
        assert self.state() == before.state
        self.end(before)

    # --- rules

    def page(self, name, v):
        """The bytes of an id's page."""
        return self.arena.pages(self.chain.pools[name].spec)[int(self.chain.pools[name].map.v2p[v])]

    def owners(self):
        """For every byte, which pool's span it lies in, or -1."""
        owner = np.full(self.total, -1)
        for index, (name, pool) in enumerate(self.chain.pools.items()):
            size, extent = self.sizes[name][0], pool.span.extent
            owner[extent.lo * size : extent.hi * size] = index
        return owner

    def begin(self):
        """Remember how things are before a call."""
        self.events.clear()
        return Before(self)

    def end(self, before):
        """Check what a call did against the rules."""
        self.fenced(before)
        if "closed" in self.events:
            assert self.chain.num_moves == before.num_moves
        if self.chain.num_moves == before.num_moves:
            for name, kept in before.entries.items():
                for v, entry in kept.items():
                    now = int(self.chain.pools[name].map.v2p[v])
                    assert now in {entry, -1}
        assert self.chain.bytes_moved == self.moved
        if self.state() != before.state:
            self.check()

    def fenced(self, before):
        """A span may grow over bytes that one gave up only behind a fence."""
        owner, fenced = self.owners(), "fence" in self.events
        changed = owner != before.owner
        assert fenced or not (self.dirty & changed & (owner >= 0)).any(), "bytes were handed over without a fence"
        if fenced:
            self.dirty[:] = False
        else:
            self.dirty |= changed & (before.owner >= 0)

    def check(self):
        """Tables, spans and counts agree, and every page is where it belongs with its stamp on it."""
        self.chain.audit()
        below = self.sink
        for (size, place, pages), name in zip(self.places(), self.names, strict=True):
            extent = self.chain.pools[name].span.extent
            first, limit = -(-self.sink // size), self.total // size
            assert len(set(pages)) == len(self.used(name)) == extent.num_used
            if pages:
                assert min(pages) * size >= below
                below = (max(pages) + 1) * size
                lo = first if place == LOW else min(pages)
                hi = limit if place == HIGH else max(pages) + 1
                assert (extent.lo, extent.hi, extent.num_holes) == (lo, hi, hi - lo - len(pages))
            else:
                assert extent.lo == extent.hi
            v2p = self.chain.pools[name].map.v2p
            assert all(v2p[v] > 0 for v in self.used(name))
            assert (v2p != -1).sum() - 1 == len(pages)
            if self.arena.storage is not None:
                for v, stamp in self.used(name).items():
                    assert (self.page(name, v) == stamp).all(), f"page {v} of pool {name} has lost its bytes"
        assert below <= self.total
        self.add_up()

    def add_up(self):
        """Bytes by state add up to the total, and used bytes are those of the pages that callers have."""
        states = self.chain.by_state()
        for name in self.names:
            size, num_holes = self.sizes[name][0], self.chain.pools[name].span.extent.num_holes
            assert states.pools[name] == (len(self.used(name)) * size, num_holes * size)
            assert self.chain.num_used(name) == len(self.used(name))
        assert states.sink == self.sink
        assert states.total == self.total
        assert min(states.gap, states.padding) >= 0


class ListedChainPair(ChainPair):
    """The same with ids from free lists over the pools' places, which may be parked."""

    def __init__(self, sizes, total, *, order="lowest", **keywords):
        super().__init__(sizes, total, **keywords)
        self.ids = {name: FreeList(self.chain.num_ids(name), order, self.chain.places(name)) for name in self.names}

    def state(self):
        """Also the states of the ids, and the order of the free ones."""
        ids = [(ids.table.state.tobytes(), ids.contents().tolist()) for ids in self.ids.values()]
        return (*super().state(), ids)

    def num_unused_ids(self, name):
        """One more than there are: a take of that many is refused, as no layout has room for it."""
        return self.ids[name].num_free + 1

    def take_ids(self, name, count):
        """The next ids of the free list."""
        v_pages = self.ids[name].take(count)
        return None if v_pages is None else v_pages.tolist()

    def release_ids(self, name, v_pages):
        """Live ids are free."""
        self.ids[name].leave(ints(v_pages))

    def park(self, name, v_pages):
        """Live ids are parked: in the arena nothing changes."""
        before = self.begin()
        self.ids[name].leave(ints(v_pages), PARKED)
        self.parked[name] |= {v: self.live[name].pop(v) for v in v_pages}
        assert not self.events
        assert self.state()[:-1] == before.state[:-1]
        self.end(before)

    def unpark(self, name, v_pages):
        """Parked ids are free."""
        before = self.begin()
        self.ids[name].unpark([ints(v_pages)])
        for v in v_pages:
            del self.parked[name][v]
        self.end(before)

    def check(self):
        """The free lists agree with the arena, too; only the slots of live pages have places."""
        super().check()
        for name, ids in self.ids.items():
            ids.audit()
            assert (ids.num_live, ids.num_parked) == (len(self.live[name]), len(self.parked[name]))
            live = sorted(self.live[name])
            v2p = self.chain.pools[name].map.v2p
            assert ids.translate(ints(live), 1).tolist() == v2p[live].tolist()
            assert not ids.translate(ints(self.parked[name]), 1).any()


class Before:
    """How things were."""

    def __init__(self, pair):
        self.state = pair.state()
        self.owner = pair.owners()
        self.num_moves, self.bytes_moved = pair.chain.num_moves, pair.chain.bytes_moved
        self.entries = {
            name: {v: int(pair.chain.pools[name].map.v2p[v]) for v in pair.used(name)} for name in pair.names
        }
