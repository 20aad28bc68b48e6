"""What could be had: free memory, and what is cached and not in use.

    | held by requests | cached, unused |     free     |
                       '------- room for a demand -----'

Two ways to share memory, one question. Where sides have bytes of their own each must suffice by itself
(`SeparateRoom`); where they share bytes only the sum counts, and whatever is evicted helps whoever is short
(`SharedRoom`).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add
from typing import NamedTuple, Protocol

from kvstead.allocators import PagedAllocator, SWAAllocator
from kvstead.arena import Chain
from kvstead.prefix import PrefixTree

FULL, WINDOW, STATE = "full", "window", "state"  # the pools of a chain
ONLY_AN_END_HELPS = 2**62


class Demand(NamedTuple):
    """Pages of the full and of the window side, and states."""

    pages: int = 0
    windows: int = 0
    states: int = 0

    def times(self, count: int) -> Demand:
        """So many of it."""
        return Demand(self.pages * count, self.windows * count, self.states * count)

    def is_within(self, room: Demand) -> bool:
        """Whether each side has its part."""
        return self.pages <= room.pages and self.windows <= room.windows and self.states <= room.states


NOTHING = Demand()
PAGE, WINDOW_PAGE, ONE_STATE = Demand(pages=1), Demand(windows=1), Demand(states=1)


class Room(Protocol):
    """Answers for one allocator and the tree of what is cached. `evictable` stands for all that is, if given."""

    def evictable(self) -> Demand:
        """All that is cached and not in use. O(1)."""
        ...

    def has(self, demand: Demand, evictable: Demand | None = None) -> bool:
        """Whether the demand could be had now, evicting what is not in use."""
        ...

    def most(self, unit: Demand, evictable: Demand | None = None) -> int:
        """How many of `unit` could be had now, at once."""
        ...

    def holds(self, demand: Demand) -> bool:
        """Whether there would be room if nothing else were there."""
        ...

    def make(self, demand: Demand, *, is_needed: bool = True) -> bool:
        """Evict as much as the demand needs; False, and nothing is evicted, where that would not do.

        is_needed: False for what a request can do without, which is no shortage.
        """
        ...

    def lack(self, demand: Demand, evictable: Demand | None = None) -> int:
        """By how much `slack` has to grow at least before the demand could be had. `ONLY_AN_END_HELPS` is endless."""
        ...

    def slack(self) -> int:
        """A measure of what comes back while requests run. O(1)."""
        ...


class SeparateRoom:
    """Sides that have bytes of their own. `slack` is in pages of the window side, which rows give back as they go.

    notice: called when what is needed does not fit into what is free, before anything is evicted.
    """

    def __init__(self, allocator: PagedAllocator, tree: PrefixTree, notice: Callable[[], None]) -> None:
        self._tree = tree
        self._notice = notice
        self._page_size = allocator.page_size
        self._states = allocator.states
        self._windows = allocator if isinstance(allocator, SWAAllocator) else None
        self._allocator = allocator
        self._free_tokens = self._windows.full_available_size if self._windows else allocator.available_size

    def evictable(self) -> Demand:
        """All that is cached and not in use."""
        return _evictable(self._tree, self._page_size)

    def has(self, demand: Demand, evictable: Demand | None = None) -> bool:
        """Whether each side has its part."""
        extra = self.evictable() if evictable is None else evictable
        return demand.is_within(Demand(*map(add, self._free(), extra)))

    def most(self, unit: Demand, evictable: Demand | None = None) -> int:
        """The least over the sides."""
        extra = self.evictable() if evictable is None else evictable
        sides = zip(unit, self._free(), extra, strict=True)
        return min((free + more) // each for each, free, more in sides if each)

    def holds(self, demand: Demand) -> bool:
        """Whether each side is large enough."""
        windows, states = self._windows, self._states
        return demand.is_within(
            Demand(self._allocator.num_pages, windows.num_window_pages if windows else 0, states.size if states else 0)
        )

    def make(self, demand: Demand, *, is_needed: bool = True) -> bool:
        """Evict what each side is short of."""
        free, tree = self._free(), self._tree
        if demand.is_within(free):
            return True
        if is_needed:
            self._notice()
        if not self.has(demand):
            return False
        pages, windows, states = (max(0, want - have) for want, have in zip(demand, free, strict=True))
        tree.evict({FULL: pages, WINDOW: windows, STATE: states})
        return True

    def lack(self, demand: Demand, evictable: Demand | None = None) -> int:
        """Window pages, where nothing else is short."""
        if not self.has(demand._replace(windows=0), evictable):
            return ONLY_AN_END_HELPS
        return max(0, demand.windows - self.most(WINDOW_PAGE, evictable)) if demand.windows else 0

    def slack(self) -> int:
        """Window pages that could be had."""
        return self.most(WINDOW_PAGE) if self._windows else 0

    def _free(self) -> Demand:
        windows, states, page_size = self._windows, self._states, self._page_size
        return Demand(
            self._free_tokens() // page_size,
            windows.swa_available_size() // page_size if windows else 0,
            states.available_size() if states else 0,
        )


class SharedRoom:
    """Pools of one chain. `slack` is in bytes.

    notice: as for `SeparateRoom`. page_bytes: what a page of each pool takes of the `budget`, in bytes.
    """

    def __init__(
        self, chain: Chain, tree: PrefixTree, budget: int, page_bytes: Demand, notice: Callable[[], None]
    ) -> None:
        self.chain = chain
        self._tree = tree
        self._budget = budget
        self._page_bytes = page_bytes
        self._pools = [(name, at) for at, name in enumerate((FULL, WINDOW, STATE)) if page_bytes[at]]
        self._notice = notice
        self._page_size = tree.page_size

    def evictable(self) -> Demand:
        """All that is cached and not in use."""
        return _evictable(self._tree, self._page_size)

    def has(self, demand: Demand, evictable: Demand | None = None) -> bool:
        """Whether some layout has room."""
        extra = self.evictable() if evictable is None else evictable
        return self.chain.fits(self._by_pool(demand), without=self._by_pool(extra))

    def most(self, unit: Demand, evictable: Demand | None = None) -> int:
        """By bisection: a few times `has`."""
        extra = self.evictable() if evictable is None else evictable
        low, high = 0, self._bytes(extra) + self._free_bytes()
        high //= max(1, self._bytes(unit))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.has(unit.times(middle), extra) else (low, middle - 1)
        return low

    def holds(self, demand: Demand) -> bool:
        """Whether an empty chain would have room."""
        return self.chain.holds(self._by_pool(demand))

    def make(self, demand: Demand, *, is_needed: bool = True) -> bool:
        """Evict until there is room, the least useful first, whatever side it is of."""
        wanted = self._by_pool(demand)
        short = self.chain.shortfall(wanted)
        if not short:
            return True
        if is_needed:
            self._notice()
        if not self.has(demand):
            return False
        each = self._page_bytes
        while short:
            gone = self._tree.evict_bytes(short, {FULL: each.pages, WINDOW: each.windows, STATE: each.states})
            if not any(gone.pages.values()):  # while pages may not move, `has` can say too much
                return False
            short = self.chain.shortfall(wanted)
        return True

    def lack(self, demand: Demand, evictable: Demand | None = None) -> int:
        """Bytes, at least 1 where there is no room: spans on grids of their own may need more than the sum."""
        if self.has(demand, evictable):
            return 0
        extra = self.evictable() if evictable is None else evictable
        return max(1, self._bytes(demand) - self._free_bytes() - self._bytes(extra))

    def slack(self) -> int:
        """Bytes that no request holds."""
        return self._free_bytes() + self._bytes(self.evictable())

    def _by_pool(self, demand: Demand) -> dict[str, int]:
        """In the order in which pages are taken; pools that the model has not are left out."""
        return {name: demand[at] for name, at in self._pools}

    def _bytes(self, demand: Demand) -> int:
        return sum(count * each for count, each in zip(demand, self._page_bytes, strict=True))

    def _free_bytes(self) -> int:
        return self._budget - sum(self.chain.num_used(name) * self._page_bytes[at] for name, at in self._pools)


def _evictable(tree: PrefixTree, page_size: int) -> Demand:
    return Demand(tree.evictable_tokens // page_size, tree.window_evictable_tokens // page_size, tree.evictable_states)
