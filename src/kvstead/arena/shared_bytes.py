"""Pools that share bytes by count alone, to compare with other ways to lay them out.

    | sink |  used pages of all pools, each at its cost             |  gap  |
           |  own bytes  | padding |  own bytes | padding |  ...    |       |

A page costs the same wherever it lies, so nothing moves and there are no holes: any pool can use what is left of the
budget. With `cost_bytes` equal to a page's own bytes this is the bound of all layouts; with more, it is a layout that
rounds pages up to a common size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvstead.arena.accounting import ArenaBytes
from kvstead.arena.arrangement import PoolIndex
from kvstead.arena.page_map import PageMap
from kvstead.arena.sub_pool import PoolBytes
from kvstead.errors import AuditError, DoubleFree, InvalidSize, LayoutError
from kvstead.kernels.array_types import IntArray
from kvstead.pages.page_table import PageTable, translate_in_place


@dataclass(frozen=True, slots=True)
class SharedPool:
    """One pool: own bytes of a page, the bytes that it takes of the budget, and the entries in it.

    Raises `InvalidSize` for a page of no bytes or no entries, or one that costs less than its own bytes.
    """

    name: str
    page_bytes: int
    cost_bytes: int
    page_size: int

    def __post_init__(self) -> None:
        if self.page_bytes < 1 or self.page_size < 1 or self.cost_bytes < self.page_bytes:
            raise InvalidSize(
                f"a page of pool {self.name!r} has {self.page_bytes} bytes for {self.page_size} entries and costs "
                f"{self.cost_bytes}. Give 1 or more of each, and no cost below its own bytes."
            )


class SharedBytes:
    """`total_bytes` for `pools`, used as a `PoolChain`: a page of any pool takes its `cost_bytes` of what is left.

    sink_bytes: bytes at the bottom that no pool can use. `fits` if and only if used and wanted pages cost no more than
    the rest. There are no bytes, and a page lies at its id. Ids are only counted: the free list knows which are free.

    Raises `InvalidSize` for a negative sink, `LayoutError` for no pools, two of one name, or no room for a page of one.
    """

    eager = False  # nothing ever moves

    def __init__(self, total_bytes: int, pools: Sequence[SharedPool], *, sink_bytes: int = 0) -> None:
        if sink_bytes < 0:
            raise InvalidSize(f"sink_bytes is {sink_bytes}. Pass 0 or more.")
        names = [pool.name for pool in pools]
        if not names or len(set(names)) < len(names):
            raise LayoutError(f"pools of different names share bytes, got {', '.join(names) or 'none'}. Rename them.")
        for pool in pools:
            if total_bytes - sink_bytes < pool.cost_bytes:
                raise LayoutError(
                    f"{total_bytes} bytes with a sink of {sink_bytes} have no room for a page of pool {pool.name!r}, "
                    f"which costs {pool.cost_bytes}. Give more bytes."
                )
        self.pools = {pool.name: pool for pool in pools}
        self.device = torch.device("cpu")  # there are no bytes elsewhere
        self.bytes_moved = 0
        self.num_moves = 0
        self._index = PoolIndex(names)
        self._costs = [pool.cost_bytes for pool in pools]
        self._budget = total_bytes - sink_bytes
        self._sink_bytes = sink_bytes
        self._left = self._budget
        self._used = [0] * len(pools)

    def page_size(self, pool: str) -> int:
        """Entries in a page of the pool."""
        self._index.find(pool)
        return self.pools[pool].page_size

    def num_ids(self, pool: str) -> int:
        """Pages that the pool could hold alone: their ids are 1 to this."""
        return self._budget // self._costs[self._index.find(pool)]

    def num_used(self, pool: str) -> int:
        """Pages of the pool that are live or parked."""
        return self._used[self._index.find(pool)]

    def places(self, pool: str) -> CountedPlaces:
        """The places of the pool's pages, for the free list of its ids."""
        self._index.find(pool)
        return CountedPlaces(self, pool)

    def page_map(self, pool: str) -> PageMap | None:
        """None: a page lies at its id."""
        self._index.find(pool)
        return None

    def take(self, pool: str, v_pages: IntArray) -> IntArray | None:
        """Count free ids as used: the same ids; None, and nothing is counted, if and only if not `fits`."""
        return v_pages if self.count(pool, v_pages.size) else None

    def release(self, pool: str, v_pages: IntArray) -> None:
        """Count used pages as free. Raises `DoubleFree` for more than are used."""
        index = self._index.find(pool)
        if v_pages.size > self._used[index]:
            raise DoubleFree(
                f"{v_pages.size} pages of pool {pool!r} are freed, of which {self._used[index]} are used. Free each "
                "page once."
            )
        self._used[index] -= v_pages.size
        self._left += v_pages.size * self._costs[index]

    def count(self, pool: str, num_pages: int) -> bool:
        """Count so many pages more as used; False, and nothing is counted, where they do not fit."""
        index = self._index.find(pool)
        cost = num_pages * self._costs[index]
        if cost > self._left:
            return False
        self._left -= cost
        self._used[index] += num_pages
        return True

    def fits(
        self,
        demand: Mapping[str, int],
        moves: bool | None = None,  # noqa: FBT001, ARG002 - as `PoolChain`; counted pages never move
        *,
        without: Mapping[str, int] | None = None,
    ) -> bool:
        """Whether every pool can take its number of pages, if `without` used pages of each are released before.

        Exact. Raises `InvalidSize` for a negative number or more than are used, `LayoutError` for an unknown pool.
        """
        left = self._left
        if without:
            released = self._index.released(without, self._used)
            left += sum(cost * count for cost, count in zip(self._costs, released, strict=True))
        return self._cost(demand) <= left

    def holds(self, demand: Mapping[str, int]) -> bool:
        """Whether there would be room if nothing were used. Raises as `fits`."""
        return self._cost(demand) <= self._budget

    def shortfall(self, demand: Mapping[str, int]) -> int:
        """Bytes to free before the demand fits, as pages cost: exact, 0 if it fits. Raises as `fits`."""
        return max(0, self._cost(demand) - self._left)

    def capacity(self, pools: Sequence[str], moves: bool | None = None) -> int:  # noqa: FBT001, ARG002 - as above
        """The most pages that each of `pools` can take at once, over what they hold."""
        each = sum(self._costs[self._index.find(pool)] for pool in dict.fromkeys(pools))
        return self._left // each if each else 0

    def compact(self, budget_bytes: int | None = None) -> int:
        """0: there are no holes. Raises `InvalidSize` for a negative budget."""
        if budget_bytes is not None and budget_bytes < 0:
            raise InvalidSize(f"budget_bytes is {budget_bytes}. Pass 0 or more, or None for no limit.")
        return 0

    def order(self) -> None:
        """Nothing: there are no bytes to write to."""

    def clear(self, pool: str | None = None) -> None:
        """Make every page, or every page of one pool, free, no matter who holds it."""
        for index in range(len(self._costs)) if pool is None else [self._index.find(pool)]:
            self._left += self._used[index] * self._costs[index]
            self._used[index] = 0

    def by_state(self) -> ArenaBytes:
        """The budget by state: `padding` is what pages cost beyond their own bytes, `gap` what is left."""
        pools = list(zip(self.pools.values(), self._used, strict=True))
        by_pool = {pool.name: PoolBytes(used * pool.page_bytes, 0) for pool, used in pools}
        padding = sum(used * (pool.cost_bytes - pool.page_bytes) for pool, used in pools)
        return ArenaBytes(by_pool, self._left, self._sink_bytes, padding)

    def audit(self) -> None:
        """Recount the budget. Raises `AuditError`."""
        cost = sum(count * each for count, each in zip(self._used, self._costs, strict=True))
        if min(*self._used, self._left) < 0 or self._left + cost != self._budget:
            raise AuditError(
                f"pages of {cost} bytes are counted and {self._left} bytes left of {self._budget}. Only the methods "
                "may change the counts."
            )

    def _cost(self, demand: Mapping[str, int]) -> int:
        return sum(self._costs[index] * num_pages for index, num_pages in self._index.wanted(demand))


class CountedPlaces:
    """The `Places` of one pool of `SharedBytes`: a page lies at its id, and only their number counts."""

    __slots__ = ("_chain", "_pool")

    def __init__(self, chain: SharedBytes, pool: str) -> None:
        self._chain = chain
        self._pool = pool

    def place(self, num_pages: int) -> IntArray | None:
        """An empty array if there is room for so many pages, which are counted as used from now on; else None."""
        return np.empty(0, dtype=np.int64) if self._chain.count(self._pool, num_pages) else None

    def bind(self, pages: IntArray, places: IntArray) -> None:
        """Do nothing: ids are their own places."""

    def release(self, pages: IntArray) -> None:
        """Count pages that were used as free."""
        self._chain.release(self._pool, pages)

    def capacity(self) -> int:
        """Pages that `place` has room for now, the other pools as they are."""
        return self._chain.capacity((self._pool,))

    def translate(self, slots: IntArray, page_size: int, table: PageTable) -> IntArray:
        """The slots themselves: a new int64[k], 0 for -1 and for pages that are not live in `table`."""
        return translate_in_place(slots, page_size, table)

    def clear(self) -> None:
        """Count every page of the pool as free."""
        self._chain.clear(self._pool)

    def audit(self, table: PageTable) -> None:
        """Check that as many pages are used as ids are not free. Raises `AuditError`."""
        self._chain.audit()
        num_used = table.num_live + table.num_parked
        if self._chain.num_used(self._pool) != num_used:
            raise AuditError(
                f"pool {self._pool!r}: {num_used} ids are in use and {self._chain.num_used(self._pool)} pages are "
                "counted. Only the pool's free list may take from it."
            )
