"""Who holds each page of a pool that somebody else manages, since which call and from where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstead.kernels.array_types import IntArray

FREE, LIVE, PARKED = 0, 1, 2


class Holder(NamedTuple):
    """Pages that one owner took at one place. first_call: the number of the oldest call among those that took them."""

    owner: str
    site: str
    num_pages: int
    first_call: int


class Names:
    """Numbers for strings. Those that nobody uses any more are dropped when there are many."""

    def __init__(self) -> None:
        self._numbers = {"": 0}
        self._names = {0: ""}
        self._next = 1
        self._limit = 1024

    def __len__(self) -> int:
        return len(self._names)

    def number(self, name: str) -> int:
        """The number of a name, a new one if it has none."""
        found = self._numbers.get(name)
        if found is None:
            found, self._next = self._next, self._next + 1
            self._numbers[name], self._names[found] = found, name
        return found

    def name(self, number: int) -> str:
        """The name that a number stands for."""
        return self._names[number]

    def drop_unused(self, *used: NDArray[np.int64]) -> None:
        """Drop names whose numbers are in none of the arrays, if there are many. O(entries), once in a while."""
        if len(self._names) <= self._limit:
            return
        live = {0}.union(*(np.unique(numbers).tolist() for numbers in used))
        self._names = {number: name for number, name in self._names.items() if number in live}
        self._numbers = {name: number for number, name in self._names.items()}
        self._limit = max(1024, 2 * len(self._names))


class PageShadow:
    """The states of `num_pages` pages, ids 1 to that, as the calls that are told about leave them.

    A call that breaks a rule returns what is wrong, in words, else ""; it takes effect nevertheless, as it does in the
    pool. Pages are int64[k]; a site is where a call was made. Calls are O(k).
    """

    def __init__(self, num_pages: int) -> None:
        self._sites, self._owners = Names(), Names()
        self._num_calls = 0
        self.resize(num_pages)

    def resize(self, num_pages: int) -> None:
        """Have `num_pages` pages from now on, all of them free."""
        self.num_free = num_pages
        self._state = np.zeros(num_pages + 1, dtype=np.uint8)
        self._owner, self._taken_at, self._freed_at = np.zeros((3, num_pages + 1), dtype=np.int64)
        self._taken_by, self._freed_by = np.zeros((2, num_pages + 1), dtype=np.int64)  # numbers of calls, from 1

    def take(self, pages: IntArray, owners: Sequence[str], site: str) -> str:
        """Note that pages were handed out. owners: one for each page, or one for all."""
        self._num_calls += 1
        inside, fault = self._inside(pages), self._fault(pages, FREE, "handed out while it was in use", site)
        self._owners.drop_unused(self._owner)
        numbers = [self._owners.number(owner) for owner in owners]
        self._set(inside, LIVE)
        self._owner[inside] = numbers if len(numbers) == inside.size else numbers[0]
        self._taken_at[inside], self._taken_by[inside] = self._sites.number(site), self._num_calls
        return fault

    def free(self, pages: IntArray, site: str, *, is_grouped: bool) -> str:
        """Note that pages were freed, each named once. is_grouped: they wait for the end of a group."""
        self._num_calls += 1
        inside, fault = self._inside(pages), self._fault(pages, LIVE, "freed while nobody held it", site)
        self._set(inside, PARKED if is_grouped else FREE)
        self._freed_at[inside], self._freed_by[inside] = self._sites.number(site), self._num_calls
        return fault

    def end_group(self) -> None:
        """Make available what waits for the end of a group. O(pages of the pool)."""
        self._set(np.flatnonzero(self._state == PARKED), FREE)

    def holders(self, besides: IntArray | None = None) -> list[Holder]:
        """Who holds pages, the largest first. besides: pages that are accounted for. O(pages of the pool)."""
        is_held = self._state != FREE
        if besides is not None:
            is_held[self._inside(besides)] = False
        pages = np.flatnonzero(is_held)
        who = np.stack([self._owner[pages], self._taken_at[pages]])
        kinds, places = np.unique(who, axis=1, return_inverse=True)
        counts = np.bincount(places.reshape(-1), minlength=kinds.shape[1])
        first = np.full(kinds.shape[1], self._num_calls + 1)
        np.minimum.at(first, places.reshape(-1), self._taken_by[pages])
        found = [
            Holder(self._owners.name(owner), self._sites.name(site), int(count), int(call))
            for owner, site, count, call in zip(*kinds.tolist(), counts, first, strict=True)
        ]
        return sorted(found, key=lambda holder: -holder.num_pages)

    def _set(self, pages: IntArray, state: int) -> None:
        pages = np.unique(pages)
        self.num_free -= int(np.count_nonzero(self._state[pages] == FREE))
        self._state[pages] = state
        self.num_free += pages.size if state == FREE else 0

    def _inside(self, pages: IntArray) -> IntArray:
        return pages[(pages > 0) & (pages < self._state.size)]

    def _fault(self, pages: IntArray, expected: int, what: str, site: str) -> str:
        """What is wrong with a call about pages that should all be in one state."""
        inside = self._inside(pages)
        if inside.size < pages.size:
            foreign = pages[(pages < 1) | (pages >= self._state.size)]
            return f"page {foreign[0]} is padding or none of the {self._state.size - 1} pages of the pool, at {site}"
        wrong = inside[self._state[inside] != expected]
        if wrong.size:
            return f"page {wrong[0]} was {what}, at {site}; {self._history(int(wrong[0]))}"
        if np.unique(inside).size < inside.size:
            return f"a page is named twice in one call, at {site}"
        return ""

    def _history(self, page: int) -> str:
        taken, freed = int(self._taken_by[page]), int(self._freed_by[page])
        if not taken:
            return "it was never handed out"
        owner = self._owners.name(int(self._owner[page]))
        by = f" by {owner}" if owner else ""
        said = f"it was taken{by} at {self._sites.name(int(self._taken_at[page]))} (call {taken})"
        if freed > taken:
            said += f" and freed at {self._sites.name(int(self._freed_at[page]))} (call {freed})"
        return said
