"""Pools that share bytes by count alone: what other ways to lay them out would have room for.

    | sink |  used pages of all pools, each at its cost             |  gap  |
           |  own bytes  | padding |  own bytes | padding |  ...    |       |

A page costs the same wherever it lies, so nothing moves and there are no holes: what is left of the budget is room for
any pool. With `cost_bytes` a page's own bytes this is the bound of all layouts; with more, a layout that rounds pages
up to a common size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kvstead.arena.books import ArenaBytes
from kvstead.arena.demand import PoolIndex
from kvstead.arena.page_map import PageMap
from kvstead.arena.sub_pool import PoolBytes
from kvstead.errors import AuditError, DoubleFree, InvalidSize, LayoutError
from kvstead.kernels.array_types import IntArray


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
    """`total_bytes` for `pools`, in the way of a `PoolChain`: a page of any of them takes `cost_bytes` of what is left.

    sink_bytes: at the bottom, nobody's. `fits` if and only if the costs of used and wanted pages are no more than the
    rest. There are no bytes, and pages lie at their ids, which are counted and not looked at: that each is free, or
    held, is the caller's to know.

    Raises `InvalidSize` for a negative sink, `LayoutError` for no pools, two of one name, or one without room for a
    page.
    """

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
        self.bytes_moved = 0
        self.num_moves = 0
        self._index = PoolIndex(names)
        self._costs = [pool.cost_bytes for pool in pools]
        self._budget = total_bytes - sink_bytes
        self._sink_bytes = sink_bytes
        self._left = self._budget
        self._live = [0] * len(pools)
        self._parked = [0] * len(pools)

    @property
    def device(self) -> torch.device:
        """The host: there are no bytes elsewhere."""
        return torch.device("cpu")

    def page_size(self, pool: str) -> int:
        """Entries in a page of the pool."""
        self._index.find(pool)
        return self.pools[pool].page_size

    def num_ids(self, pool: str) -> int:
        """Pages that the pool could hold alone: their ids are 1 to this."""
        return self._budget // self._costs[self._index.find(pool)]

    def num_used(self, pool: str) -> int:
        """Pages of the pool that are live or parked."""
        index = self._index.find(pool)
        return self._live[index] + self._parked[index]

    def page_map(self, pool: str) -> PageMap | None:
        """None: a page lies at its id."""
        self._index.find(pool)
        return None

    def take(self, pool: str, v_pages: IntArray) -> IntArray | None:
        """Count free ids as live: the same ids; None, and nothing is counted, if and only if not `fits`."""
        index = self._index.find(pool)
        cost = v_pages.size * self._costs[index]
        if cost > self._left:
            return None
        self._left -= cost
        self._live[index] += v_pages.size
        return v_pages

    def release(self, pool: str, v_pages: IntArray) -> None:
        """Count live pages as free. Raises `DoubleFree` for more than are live."""
        index = self._leave(pool, v_pages, self._live)
        self._left += v_pages.size * self._costs[index]

    def park(self, pool: str, v_pages: IntArray) -> None:
        """Count live pages as parked: no longer owned, not yet available. Raises as `release`."""
        index = self._leave(pool, v_pages, self._live)
        self._parked[index] += v_pages.size

    def unpark(self, pool: str, v_pages: IntArray) -> None:
        """Count parked pages as free."""
        index = self._leave(pool, v_pages, self._parked)
        self._left += v_pages.size * self._costs[index]

    def restore(self, pool: str, v_pages: IntArray) -> None:
        """Take a `park` back."""
        index = self._leave(pool, v_pages, self._parked)
        self._live[index] += v_pages.size

    def fits(
        self,
        demand: Mapping[str, int],
        moves: bool | None = None,  # noqa: FBT001, ARG002 - of a chain; pages that are counted lie in nobody's way
        *,
        without: Mapping[str, int] | None = None,
    ) -> bool:
        """Whether every pool can take its number of pages, if so many live pages of each were released before.

        Exact. Raises `InvalidSize` for a negative number or more than are live, `LayoutError` for an unknown pool.
        """
        left = self._left
        if without:
            released = self._index.released(without, self._live)
            left += sum(cost * count for cost, count in zip(self._costs, released, strict=True))
        return self._cost(demand) <= left

    def holds(self, demand: Mapping[str, int]) -> bool:
        """Whether there would be room if nothing were held. Raises as `fits`."""
        return self._cost(demand) <= self._budget

    def shortfall(self, demand: Mapping[str, int]) -> int:
        """Bytes that have to come free before the demand fits, as pages cost: exact, 0 if it fits. Raises as `fits`."""
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
        """Every page, or every page of one pool, is free, whoever held it."""
        for index in range(len(self._costs)) if pool is None else [self._index.find(pool)]:
            self._left += (self._live[index] + self._parked[index]) * self._costs[index]
            self._live[index] = self._parked[index] = 0

    def by_state(self) -> ArenaBytes:
        """The budget by what it is: `padding` is what pages cost beyond their own bytes, `gap` what is left."""
        books = {}
        padding = 0
        for pool, live, parked in zip(self.pools.values(), self._live, self._parked, strict=True):
            books[pool.name] = PoolBytes(live * pool.page_bytes, parked * pool.page_bytes, 0)
            padding += (live + parked) * (pool.cost_bytes - pool.page_bytes)
        return ArenaBytes(books, self._left, self._sink_bytes, padding)

    def audit(self) -> None:
        """Recount the budget. Raises `AuditError`."""
        used = [live + parked for live, parked in zip(self._live, self._parked, strict=True)]
        cost = sum(count * each for count, each in zip(used, self._costs, strict=True))
        if min(*self._live, *self._parked, self._left) < 0 or self._left + cost != self._budget:
            raise AuditError(
                f"pages of {cost} bytes are counted and {self._left} bytes left of {self._budget}. Only the methods "
                "may change the counts."
            )

    def _cost(self, demand: Mapping[str, int]) -> int:
        return sum(self._costs[index] * num_pages for index, num_pages in self._index.wanted(demand))

    def _leave(self, pool: str, v_pages: IntArray, state: list[int]) -> int:
        """Count pages out of a state: the place of their pool."""
        index = self._index.find(pool)
        if v_pages.size > state[index]:
            raise DoubleFree(
                f"{v_pages.size} pages of pool {pool!r} are given back, of which {state[index]} are held. Free each "
                "page once."
            )
        state[index] -= v_pages.size
        return index
