"""The slow, obviously right allocators of one arena: models of pools, and every layout there is."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache

from allocator_model import AllocatorModel
from window_model import WindowModel

from kvstead.errors import FreeGroupError


@lru_cache(maxsize=1 << 16)
def some_layout(pools, byte, total):
    """Whether (page bytes, first page, number of pages) of each pool, in order, fit between two bytes, by trying."""
    if not pools:
        return True
    (page_bytes, first, count), *rest = pools
    if not count:
        return some_layout(tuple(rest), byte, total)
    starts = range(max(first, -(-byte // page_bytes)), total // page_bytes - count + 1)
    return any(some_layout(tuple(rest), (start + count) * page_bytes, total) for start in starts)


class Books:
    """An arena of `total` bytes: what it has room for. page_bytes: of each pool by name, the lowest first."""

    def __init__(self, total, page_bytes):
        self.total = total
        self.page_bytes = page_bytes
        self.sink = max(page_bytes.values())

    def usable(self, name):
        """Pages that a pool could hold alone."""
        page_bytes = self.page_bytes.get(name, self.total)
        return self.total // page_bytes - -(-self.sink // page_bytes)

    def fit(self, counts):
        """Whether so many pages of each pool fit at once."""
        pools = [(size, -(-self.sink // size), counts.get(name, 0)) for name, size in self.page_bytes.items()]
        return some_layout(tuple(pools), self.sink, self.total)

    def capacity(self, counts, pools):
        """How many pages more some pools can take at once."""
        num_pages = 0
        while self.fit({name: count + (num_pages + 1) * (name in pools) for name, count in counts.items()}):
            num_pages += 1
        return num_pages


class CountedBooks(Books):
    """Bytes that pages take by count, each at the cost of its pool, wherever they are."""

    def __init__(self, total, costs, sink=0):
        super().__init__(total, costs)
        self.sink = sink

    def usable(self, name):
        """Pages that a pool could hold alone."""
        return (self.total - self.sink) // self.page_bytes[name] if name in self.page_bytes else 0

    def fit(self, counts):
        """Whether so many pages of each pool cost no more than there is."""
        return sum(cost * counts.get(name, 0) for name, cost in self.page_bytes.items()) <= self.total - self.sink


class UnifiedModel(WindowModel):
    """Tokens with windows, and states, that share the bytes of `books`."""

    def __init__(self, books, page_size, order):
        self.books = books
        self.states_pool = AllocatorModel(max(0, books.usable("state")), 1, order)
        super().__init__(books.usable("full"), books.usable("window"), page_size, order)

    def counts(self):
        """Pages in use of each pool, parked ones too."""
        pools = {"full": self, "window": self.windows, "state": self.states_pool}
        return {name: len(pool.live) + pool.num_parked() for name, pool in pools.items()}

    def tail(self, *args):
        """As without an arena, if that is possible."""
        return self._if_room(lambda model: WindowModel.tail(model, *args))

    def alloc_states(self, num_states, owner=0):
        """States, if there is room."""
        return self._if_room(lambda model: model.states_pool.alloc(num_states, owner))

    def free_states(self, slots):
        """States of requests that have ended."""
        self.states_pool.free(slots)

    def begin(self):
        """Open the group of all pools."""
        if self.group is not None:
            pools = (self, self.windows, self.states_pool)
            raise FreeGroupError(str(sum(len(pool.group) for pool in pools)))
        super().begin()
        self.states_pool.begin()

    def end(self):
        """Close it."""
        super().end()
        self.states_pool.end()

    def clear(self):
        """As new."""
        super().clear()
        self.states_pool.clear()

    def _take(self, tags):
        return self._if_room(lambda model: WindowModel._take(model, tags))

    def _if_room(self, act):
        trial = deepcopy(self)
        if act(trial) is None or not self.books.fit(trial.counts()):
            return None
        return act(self)


class UnpairedModel(UnifiedModel):
    """Tokens without windows, and states."""

    def _take(self, tags):
        return self._if_room(lambda model: AllocatorModel._take(model, tags))

    def _check_rows(self, *rows):
        AllocatorModel._check_rows(self, *rows)
