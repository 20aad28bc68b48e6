"""Where pools could lie: the arithmetic that decides, without moving anything.

    byte  bottom                                                                    top
           | low end >>>      gap      << middle >>      gap       <<< high end |

Pools keep their order. Each has its own grid, so every bound is rounded onto the grid of the pool it bounds. Holes do
not count: a span can always be packed, which costs copies and never fails. The lowest packing, every pool as low as the
one below it allows, leaves the most room above; so it fits if and only if some arrangement does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from kvstead.arena.span import Extent, inward
from kvstead.errors import InvalidSize, LayoutError
from kvstead.kernels.arrays import whole
from kvstead.kernels.spans import HIGH, LOW


class Arrangement:
    """Extents in their order from low to high, between the bytes `bottom` and `top`. O(pools) each, host integers."""

    __slots__ = ("bottom", "extents", "top")

    def __init__(self, extents: Sequence[Extent], bottom: int, top: int) -> None:
        self.extents = extents
        self.bottom = bottom
        self.top = top

    def neighbour(self, index: int, side: int) -> int:
        """The next pool on that side that is not empty, or -1 or the number of pools: none."""
        at = index + side
        while 0 <= at < len(self.extents) and self.extents[at].lo == self.extents[at].hi:
            at += side
        return at

    def border(self, index: int, side: int) -> int:
        """The byte at which the next pool on that side that is not empty begins, or the arena ends."""
        at = self.neighbour(index, side)
        if 0 <= at < len(self.extents):
            extent = self.extents[at]
            return extent.edge(-side) * extent.page_bytes
        return self.top if side > 0 else self.bottom

    def reach(self, index: int, side: int) -> int:
        """How far the pool's edge on that side could go while nothing else moves: to its neighbour, at most."""
        extents, at = self.extents, index + side
        byte = self.top if side > 0 else self.bottom
        while 0 <= at < len(extents):  # as `border` and `inward` say; every take asks this twice
            if extents[at].lo != extents[at].hi:
                byte = (extents[at].lo if side > 0 else extents[at].hi) * extents[at].page_bytes
                break
            at += side
        return side * (side * byte // extents[index].page_bytes)

    def packed(self, index: int, side: int) -> int:
        """How far it could go if everything on that side packed itself away."""
        byte = self.top if side > 0 else self.bottom
        for extent in self.extents[::-side]:
            if extent is self.extents[index]:
                break
            if extent.num_used:
                byte = (inward(byte, side, extent.page_bytes) - side * extent.num_used) * extent.page_bytes
        return inward(byte, side, self.extents[index].page_bytes)

    def fits(self, wanted: Iterable[tuple[int, int]], released: Sequence[int] = ()) -> bool:
        """Whether some arrangement has room for (index, pages) more, without `released` used pages of each pool."""
        changes = [0] * len(self.extents)
        for index, num_pages in enumerate(released):
            changes[index] -= num_pages
        for index, num_pages in wanted:
            changes[index] += num_pages
        return self.holds(changes, from_used=1)

    def holds(self, counts: Iterable[int], from_used: int = 0) -> bool:
        """Whether some arrangement has room for so many pages of each pool, `from_used` times the used ones besides."""
        byte = self.bottom
        for extent, number in zip(self.extents, counts, strict=True):
            count = number + from_used * (extent.hi - extent.lo - extent.num_holes)
            if count:
                end = -(-byte // extent.page_bytes) + count
                if end > extent.limit or count > extent.most:
                    return False
                byte = end * extent.page_bytes
        return True

    def free_bytes(self) -> int:
        """Bytes that no used page takes, wherever they are."""
        return self.top - self.bottom - sum(extent.num_used * extent.page_bytes for extent in self.extents)

    def bounds(self, indices: Sequence[int]) -> tuple[int, int]:
        """Pages that each of some pools can surely take at once if pages may move, and what they cannot exceed.

        Between the two lies what grids cost: less than one page of each pool, where it starts.
        """
        free = self.free_bytes()
        rounding = sum(extent.page_bytes for extent in self.extents)
        each = sum(self.extents[index].page_bytes for index in indices)
        ids = min((self.extents[index].most - self.extents[index].num_used for index in indices), default=0)
        return (max(0, min((free - rounding) // each, ids)), min(free // each, ids)) if each else (0, 0)

    def fits_unmoved(self, wanted: Iterable[tuple[int, int]], released: Sequence[int] = ()) -> bool:
        """Whether pools, each named once, can take (index, pages) one after the other while nothing moves.

        released: used pages of each pool that count as holes; none if it is empty.

        A dry run. For one pool this is exact. For several it says what taking in this order would do, which need not
        find every way: a middle pool grows on the roomier side first.
        """
        pools = zip(self.extents, released or [0] * len(self.extents), strict=True)
        extents = [replace(extent, num_holes=extent.num_holes + num_pages) for extent, num_pages in pools]
        trial = Arrangement(extents, self.bottom, self.top)
        for index, num_pages in wanted:
            extent = trial.extents[index]
            if extent.num_used + num_pages > extent.most:
                return False
            if num_pages > extent.num_holes:
                placed = trial.grown(index, num_pages - extent.num_holes)
                if placed is None:
                    return False
                extent.lo, extent.hi = placed
        return True

    def grown(self, index: int, num_pages: int) -> tuple[int, int] | None:
        """The pool's edges when it grows by some pages into the gaps beside it, or None when those are too small.

        The roomier side is used first, then the other. An empty middle pool starts in the midst of its room.
        """
        extent = self.extents[index]
        low, high = self.reach(index, LOW), self.reach(index, HIGH)
        slack = high - low - (extent.hi - extent.lo) - num_pages
        if slack < 0:
            return None
        if extent.lo == extent.hi:
            start = low + slack * (extent.place + 1) // 2
            return start, start + num_pages
        below, above = extent.lo - low, high - extent.hi
        upward = min(num_pages, above) if above >= below else max(0, num_pages - below)
        return extent.lo - (num_pages - upward), extent.hi + upward

    def target(self, index: int, num_pages: int) -> tuple[int, int]:
        """The edges that the pool shall have if the gaps are too small: neighbours above move first, then those below.

        What is above moves no further than packing allows. Meant for when `fits`; then what is below has the rest.
        """
        extent = self.extents[index]
        size = extent.hi - extent.lo + num_pages
        high = min(self.reach(index, LOW) + size, self.packed(index, HIGH))
        return high - size, high


class PoolIndex:
    """Positions of pools by name. It checks what callers say of pools: pages wanted, pages assumed to be released."""

    __slots__ = ("_index",)

    def __init__(self, names: Sequence[str]) -> None:
        self._index = {name: index for index, name in enumerate(names)}

    def find(self, pool: str) -> int:
        """The position of a pool. Raises `LayoutError` for an unknown one."""
        index = self._index.get(pool)
        if index is None:
            self._refuse(pool)
        return index

    def wanted(self, demand: Mapping[str, int]) -> list[tuple[int, int]]:
        """(position, pages) of each pool, in the order given.

        Raises `LayoutError` for an unknown pool, `InvalidSize` for a negative number.
        """
        pairs = []
        for name, num_pages in demand.items():
            if name not in self._index:
                self._refuse(name)
            is_plain = type(num_pages) is int  # as nearly always, and then without a call: this is the hot path
            count = num_pages if is_plain else whole(num_pages, f"the number of pages of pool {name!r}")
            if count < 0:
                raise InvalidSize(f"{count} pages of pool {name!r} are wanted. Ask for 0 or more.")
            pairs.append((self._index[name], count))
        return pairs

    def released(self, without: Mapping[str, int], num_used: Sequence[int]) -> list[int]:
        """Pages of every pool that are assumed to be released. Raises `InvalidSize` for more than are used."""
        counts = [0] * len(num_used)
        for name, num_pages in without.items():
            index = self.find(name)
            if not 0 <= num_pages <= num_used[index]:
                raise InvalidSize(
                    f"{num_pages} pages of pool {name!r} are assumed to be released, of which {num_used[index]} are "
                    "used. Name 0 or more, and no more than are used."
                )
            counts[index] = whole(num_pages, f"the number of pages of pool {name!r}")
        return counts

    def _refuse(self, pool: str) -> NoReturn:
        raise LayoutError(f"the arena has no pool {pool!r}. Its pools are {', '.join(self._index)}.")
