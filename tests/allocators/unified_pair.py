"""Allocators of an arena and their models, driven by the same calls; every page has a stamp that must follow it."""

from __future__ import annotations

import itertools

from allocator_pair import FORMS, Pair, group_pages
from unified_model import Books, CountedBooks, UnifiedModel, UnpairedModel
from window_pair import WindowPair

from kvstead.allocators import (
    ArenaSWAAllocator,
    MultiEndedAllocator,
    UnifiedMambaAllocator,
    UnifiedMambaSWAAllocator,
    UnifiedSWAAllocator,
)
from kvstead.arena import PoolChain, SharedBytes, SharedPool
from kvstead.pools import ByteArena, EntrySpec, Place

STAMPS = itertools.cycle(range(1, 251))


def one_pool(size, page_size, *, order="lifo", place=Place.LOW, eager=False):
    """An allocator that has an arena for itself, of as many slots as a static one would have."""
    spec = EntrySpec("only", 1, page_size, place, align=1)
    arena = ByteArena((size // page_size + 1) * page_size)
    return MultiEndedAllocator(PoolChain(arena, [spec], eager=eager), "only", order=order)


def shared_bytes(total, page_size, costs, sink=0):
    """Pools that cost these bytes a page, half of them their own: states one by one, tokens in pages."""
    pools = [SharedPool(name, -(-cost // 2), cost, 1 if name == "state" else page_size) for name, cost in costs.items()]
    return SharedBytes(total, pools, sink_bytes=sink)


def stamped_pages(real):
    """The bytes of the pages that somebody holds: {(pool, id): its page}, found as a kernel would find them."""
    sides = {"full": (real._pool, real.page_size, real.physical_slots)}
    if isinstance(real, ArenaSWAAllocator):
        sides["window"] = real.pools["window"], real.page_size, lambda slots: window_places(real, slots)
    if real.states:
        sides["state"] = real.states.pages, 1, real.states.physical_slots
    found = {}
    for name, (pool, page_size, physical) in sides.items():
        live = (pool.table.state == 1).nonzero()[0]
        pages = real.chain.arena.pages(pool.places.spec)
        places = physical(live * page_size).tolist()
        assert all(place > 0 and place % page_size == 0 for place in places)
        found |= {(name, v): pages[place // page_size] for v, place in zip(live.tolist(), places, strict=True)}
    return found


def window_places(real, window_slots):
    """Where window slots lie, asked for by the full slots that they belong to."""
    owners = {int(window): page for page, window in enumerate(real.window_pages[:-1]) if window}
    return real.physical_window_slots(
        [owners[slot // real.page_size] * real.page_size for slot in window_slots.tolist()]
    )


def chain_state(chain):
    """What a call that changes nothing must leave as it is."""
    if isinstance(chain, SharedBytes):
        return chain.by_state(), chain.num_moves
    tables = [pool.map.v2p.tobytes() for pool in chain.pools.values()]
    return tables, chain.num_moves, chain.arena.storage.numpy().tobytes()


class ArenaChecks:
    """What is held of every allocator of an arena after each call."""

    def free_states(self, slots, form="list"):
        """Free states."""
        given = FORMS[form](list(slots))
        self._both(lambda: self.model.free_states(slots), lambda: self.real.states.free(given), given)

    def alloc_states(self, num_states, owner=0):
        """Take states."""
        return self._both(
            lambda: self.model.alloc_states(num_states, owner), lambda: self.real.states.alloc(num_states, owner)
        )

    def check_arena(self):
        """Pages are where they should be, and sizes are what all layouts allow."""
        real, model = self.real, self.model
        if isinstance(real.chain, SharedBytes):
            self.check_counts()
        else:
            self.check_stamps()
        counts, size = model.counts(), real.page_size
        tokens = ("full", "window") if isinstance(real, ArenaSWAAllocator) else ("full",)
        assert real.available_size() == model.books.capacity(counts, tokens) * size
        if real.states:
            assert real.states.available_size() == model.books.capacity(counts, ("state",))
            assert real.states.page_states().tolist() == model.states_pool.states()
            assert real.states.owners() == model.states_pool.owners()
            assert real.states.parked_size() == model.states_pool.num_parked()
            assert group_pages(real, real.states.pages) == model.states_pool.group
        real.audit()

    def check_stamps(self):
        """Stamps follow their pages."""
        pages = stamped_pages(self.real)
        for key, stamp in self.stamps.items():
            assert key not in pages or (pages[key] == stamp).all(), f"the bytes of {key} were lost"
        self.stamps = {key: self.stamps.get(key) or next(STAMPS) for key in pages}
        for key, page in pages.items():
            page.fill_(self.stamps[key])

    def check_counts(self):
        """Pages lie where they are named, and bytes add up."""
        real, chain = self.real, self.real.chain
        counts = self.model.counts()
        assert {name: chain.num_used(name) for name in chain.pools} == {name: counts[name] for name in chain.pools}
        slots = range(-1, real.size + real.page_size)
        held = [slot if slot > 0 and real.page_states()[slot // real.page_size] == 1 else 0 for slot in slots]
        assert real.physical_slots(list(slots)).tolist() == held
        books = chain.by_state()
        assert books.total == self.model.books.total
        assert books.gap >= 0

    def _both(self, *args):
        before, books = chain_state(self.real.chain), self.books
        expected = super()._both(*args)
        if self.books == books:
            assert chain_state(self.real.chain)[:2] == before[:2], "a call that did nothing has moved something"
        return expected


class UnifiedPair(ArenaChecks, WindowPair):
    """Two sides in one arena, and states if they have a size."""

    def __init__(self, total, page_size, full, window, state=None, **keywords):
        sizes = {"state": state, "window": window * page_size, "full": full * page_size}
        books = Books(total, {name: size for name, size in sizes.items() if size})
        kinds = {"full": full, "window": window} | ({"state": state} if state else {})
        make = UnifiedMambaSWAAllocator if state else UnifiedSWAAllocator
        self.stamps = {}
        real = make(total, page_size=page_size, **kinds, **keywords)
        self._mapping = real.window_pages
        self._start(real, UnifiedModel(books, page_size, keywords.get("order", "lifo")))

    def check(self):
        """Every book says what the model says, on both sides, and the sides fit together."""
        model, real, size = self.model, self.real, self.model.page_size
        assert real.page_states().tolist() == model.states()
        assert real.window_page_states().tolist() == model.windows.states()
        assert real._pool.contents().tolist() == model.free_pages
        assert real.pools["window"].contents().tolist() == model.windows.free_pages
        assert group_pages(real, real._pool) == model.group
        assert group_pages(real, real.pools["window"]) == model.windows.group
        assert real.owners() == model.owners()
        assert real.parked_size() == model.num_parked() * size
        assert real.swa_parked_size() == model.windows.num_parked() * size
        assert real.window_pages is self._mapping
        assert real.window_pages.tolist() == model.window_pages()
        assert real.full_available_size() == model.books.capacity(model.counts(), ("full",)) * size
        assert real.swa_available_size() == model.books.capacity(model.counts(), ("window",)) * size
        self.check_arena()


class CountedPair(UnifiedPair):
    """Two sides that share bytes by count, and states if they have a cost."""

    def __init__(self, total, page_size, costs, sink, order):
        chain = shared_bytes(total, page_size, costs, sink)
        real = (UnifiedMambaSWAAllocator if "state" in costs else UnifiedSWAAllocator).over(chain, order=order)
        self._mapping = real.window_pages
        self._start(real, UnifiedModel(CountedBooks(total, costs, sink), page_size, order))


class UnpairedPair(ArenaChecks, Pair):
    """Tokens and states in one arena."""

    def __init__(self, total, page_size, full, state, **keywords):
        books = Books(total, {"state": state, "full": full * page_size})
        self.stamps = {}
        real = UnifiedMambaAllocator(total, page_size=page_size, full=full, state=state, **keywords)
        self._start(real, UnpairedModel(books, page_size, keywords.get("order", "lifo")))

    def check(self):
        """Every book says what the model says."""
        model, real = self.model, self.real
        assert real.page_states().tolist() == model.states()
        assert real._pool.contents().tolist() == model.free_pages
        assert group_pages(real, real._pool) == model.group
        assert real.owners() == model.owners()
        assert real.parked_size() == model.num_parked() * model.page_size
        self.check_arena()


class CountedUnpairedPair(UnpairedPair):
    """Tokens and states that share bytes by count."""

    def __init__(self, total, page_size, costs, sink, order):
        real = UnifiedMambaAllocator.over(shared_bytes(total, page_size, costs, sink), order=order)
        self._start(real, UnpairedModel(CountedBooks(total, costs, sink), page_size, order))
