"""What could be had: free memory, and what is cached and not in use.

    | held by requests | cached, unused |     free     |
                       '------ capacity for a demand --'

Memory can be divided in two ways, and both answer the same questions. Where sides have bytes of their own each must
suffice by itself (`SeparateCapacity`); where they share bytes only the sum counts, and evicting any side helps all
others (`SharedCapacity`). Demands are pages by side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from kvstead.arena import Chain
from kvstead.engine.memory import Memory
from kvstead.pages.amounts import Amounts
from kvstead.prefix import PrefixTree

FITS_ONLY_AFTER_A_REQUEST_ENDS = 2**62  # as a lack of capacity


class Capacity(ABC):
    """Answers for one memory and the tree of what is cached in it.

    first_shortage: the share of the bytes that was live or cached when there was no capacity for a demand for the first
    time, before anything was evicted for it; None until then. Where `evictable` is given, it stands for all that could
    be evicted.
    """

    def __init__(self, memory: Memory, tree: PrefixTree) -> None:
        self.first_shortage: float | None = None
        pools, self._plan = memory.allocator.pools, memory.plan
        self._pools = {name: pools[name] for name in memory.plan.sides}
        self._tree = tree

    def has(self, demand: Amounts, evictable: Amounts | None = None) -> bool:
        """Whether the demand could be had now, evicting what is not in use."""
        return self.lack(demand, evictable) == 0

    @abstractmethod
    def most(self, unit: Amounts, evictable: Amounts | None = None) -> int:
        """How many of `unit` could be had now, at once."""

    @abstractmethod
    def holds(self, demand: Amounts) -> bool:
        """Whether the demand would fit if nothing else were there."""

    @abstractmethod
    def make(self, demand: Amounts, *, is_needed: bool = True) -> bool:
        """Evict as much as the demand needs; False, and nothing is evicted, where that would not do.

        is_needed: False for what a request can do without, which is no shortage.
        """

    @abstractmethod
    def lack(self, demand: Amounts, evictable: Amounts | None = None) -> int:
        """By how much `slack` has to grow at least before the demand fits, 0 if it does.

        `FITS_ONLY_AFTER_A_REQUEST_ENDS` where no growth of it would do.
        """

    @abstractmethod
    def slack(self) -> int:
        """A measure of what comes back while requests run. O(sides)."""

    def _note_shortage(self) -> None:
        if self.first_shortage is None:
            held = sum([pool.table.num_live * self._plan.sides[side].page_bytes for side, pool in self._pools.items()])
            self.first_shortage = held / self._plan.total_bytes


class SeparateCapacity(Capacity):
    """Sides that have bytes of their own. `slack` is in pages of the bounded sides, which rows release as they go."""

    def __init__(self, memory: Memory, tree: PrefixTree) -> None:
        super().__init__(memory, tree)
        self._sizes = Amounts({name: pool.num_pages for name, pool in self._pools.items()})
        self._bounded = [name for name, side in memory.plan.sides.items() if side.is_bounded]

    def most(self, unit: Amounts, evictable: Amounts | None = None) -> int:
        """The least over the sides."""
        available = self._available(evictable)
        return min([available[side] // each for side, each in unit.items() if each])

    def holds(self, demand: Amounts) -> bool:
        """Whether each side is large enough."""
        return not demand.beyond(self._sizes)

    def make(self, demand: Amounts, *, is_needed: bool = True) -> bool:
        """Evict what each side is short of."""
        short = Amounts()
        for side, num_pages in demand.items():
            lacking = num_pages - self._pools[side].capacity()
            if lacking > 0:
                short[side] = lacking
        if not short:
            return True
        if is_needed:
            self._note_shortage()
        evictable = self._tree.evictable()
        for side, lacking in short.items():
            if lacking > evictable[side]:
                return False
        self._tree.evict(short)
        return True

    def lack(self, demand: Amounts, evictable: Amounts | None = None) -> int:
        """Pages of bounded sides, where nothing else is short."""
        short = demand.beyond(self._available(evictable))
        if any(side not in self._bounded for side in short):
            return FITS_ONLY_AFTER_A_REQUEST_ENDS
        return sum(short.values())

    def slack(self) -> int:
        """Pages of the bounded sides that could be had."""
        available = self._available()
        return sum([available[side] for side in self._bounded])

    def _available(self, evictable: Amounts | None = None) -> Amounts:
        available = Amounts(self._tree.evictable() if evictable is None else evictable)
        for side, pool in self._pools.items():
            available[side] += pool.capacity()
        return available


class SharedCapacity(Capacity):
    """Sides that share the bytes of one chain. `slack` is in bytes."""

    def __init__(self, memory: Memory, tree: PrefixTree, chain: Chain) -> None:
        super().__init__(memory, tree)
        self._chain = chain
        self._budget = memory.plan.total_bytes - memory.plan.sink_bytes
        self._page_bytes = memory.plan.page_bytes

    def most(self, unit: Amounts, evictable: Amounts | None = None) -> int:
        """By bisection: a few times what `lack` asks."""
        extra = self._tree.evictable() if evictable is None else evictable
        low, high = 0, self._spare_bytes(extra) // max(1, unit.weighed(self._page_bytes))
        while low < high:
            middle = (low + high + 1) // 2
            fits = self._chain.fits(unit.times(middle), without=extra)
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def holds(self, demand: Amounts) -> bool:
        """Whether an empty chain would have capacity."""
        return self._chain.holds(demand)

    def make(self, demand: Amounts, *, is_needed: bool = True) -> bool:
        """Evict until the demand fits, the lowest rank first, on any side."""
        short = self._chain.shortfall(demand)
        if not short:
            return True
        if is_needed:
            self._note_shortage()
        if not self.has(demand):
            return False
        while short:
            gone = self._tree.evict_bytes(short, self._page_bytes)
            if not any(gone.pages.values()):  # while pages may not move, `has` can say too much
                return False
            short = self._chain.shortfall(demand)
        return True

    def lack(self, demand: Amounts, evictable: Amounts | None = None) -> int:
        """Bytes, at least 1 where the demand does not fit: spans on grids of their own may need more than the sum."""
        extra = self._tree.evictable() if evictable is None else evictable
        if self._chain.fits(demand, without=extra):
            return 0
        return max(1, demand.weighed(self._page_bytes) - self._spare_bytes(extra))

    def slack(self) -> int:
        """Bytes that no request holds."""
        return self._spare_bytes(self._tree.evictable())

    def _spare_bytes(self, evictable: Amounts) -> int:
        """Bytes that are free, or would be without what is evictable."""
        used = sum([self._chain.num_used(name) * each for name, each in self._page_bytes.items()])
        return self._budget - used + evictable.weighed(self._page_bytes)


def capacity_of(memory: Memory, tree: PrefixTree) -> Capacity:
    """The capacity of a memory, by how its sides share it."""
    return SeparateCapacity(memory, tree) if memory.chain is None else SharedCapacity(memory, tree, memory.chain)
