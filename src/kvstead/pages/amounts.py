"""How much of each side: what is wanted, what there is, what came back.

A side is a pool, named for what it caches. An amount counts pages of each side; a recurrent state is a page of its own
pool. Code that adds, compares or hands on amounts never names a side, so a new kind of cache does not touch it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FULL, WINDOW, STATE = "full", "window", "state"


class Amounts(dict[str, int]):
    """Pages by the name of their side; a side that is not named has 0.

    `Amounts(full=3, window=3)` is three pages of each of two sides.
    """

    __slots__ = ()

    def __missing__(self, side: str) -> int:
        return 0

    def __add__(self, other: Amounts) -> Amounts:
        total = Amounts(self)
        for side, pages in other.items():
            total[side] = total.get(side, 0) + pages
        return total

    def times(self, count: int) -> Amounts:
        """`count` times this amount of every side."""
        return Amounts({side: count * pages for side, pages in self.items()})

    def beyond(self, have: Amounts) -> Amounts:
        """What is missing of this amount where there is `have`; sides that have enough are left out."""
        missing = Amounts()
        for side, pages in self.items():
            short = pages - have.get(side, 0)
            if short > 0:
                missing[side] = short
        return missing

    def weighed(self, each: Amounts) -> int:
        """The sum over the sides, a page of a side counted as `each` says: bytes, where that is bytes a page."""
        return sum([pages * each.get(side, 0) for side, pages in self.items()])


@dataclass(frozen=True, slots=True)
class Evicted:
    """What an eviction freed.

    pages: of each side, a state being a page of its side. alone: those of them whose nodes stay in the tree, as windows
    that leave a tombstone. num_nodes: nodes that left the tree.
    """

    pages: Amounts = field(default_factory=Amounts)
    alone: Amounts = field(default_factory=Amounts)
    num_nodes: int = 0

    def __add__(self, other: Evicted) -> Evicted:
        return Evicted(self.pages + other.pages, self.alone + other.alone, self.num_nodes + other.num_nodes)
