"""What all allocators share: one `free`, one group.

A subclass says which pages of which pool a set of slots stands for, and parks them (`_park`, `_park_segments`); the
base decides how long they stay parked: till the end of the open group, or not at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch

from kvstead.allocators.checks import require_page_start
from kvstead.allocators.deferring import DefersFrees
from kvstead.allocators.states import StateAllocator
from kvstead.errors import AuditError
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, to_host
from kvstead.pages import FreeList, Release, free_group

Segment: TypeAlias = tuple[Integers, int]


class Allocator(DefersFrees[Release], ABC):
    """Slots for tokens, in pages of `page_size`. Slots 0 .. `page_size` - 1 are padding and belong to nobody.

    size: usable slots. device: where handed-out slots live; all bookkeeping is on the host. `free_group` is None (frees
    take effect at once) or the list of releases parked until the group ends. `states`: slots for the recurrent states
    of the same requests, if there are any; their frees wait in the same group, `clear` and `audit` are about them too.
    """

    def __init__(self, size: int, page_size: int, device: str | torch.device) -> None:
        self.size = size
        self.page_size = page_size
        self.device = torch.device(device)
        self.free_group = None
        self.states: StateAllocator | None = None

    @property
    def num_pages(self) -> int:
        """Pages that can be handed out; the padding page is not counted."""
        return self.size // self.page_size

    @abstractmethod
    def available_size(self) -> int:
        """Tokens that can be allocated now. What is parked in an open group does not count."""

    @abstractmethod
    def parked_size(self) -> int:
        """Tokens freed in the open group: no longer owned, not yet available."""

    @abstractmethod
    def alloc(self, num_tokens: int, owner: int = 0) -> torch.Tensor | None:
        """Hand out whole pages: int64[num_tokens] slots, page by page, or None when short."""

    def free(self, slots: Integers) -> None:
        """Give back the pages that `slots` lie in.

        slots: any integer tensor or array, in any order (another device than the CPU is copied to the host, which waits
        for it). Slots of one page stand for that page once; at page size 1 a repeated slot raises. Nothing is kept of
        `slots`: the caller may overwrite it at once. No slots: nothing happens.

        Raises `ForeignPage` for padding or a slot outside the pool, `DoubleFree` for a page that nobody holds; then
        nothing is changed. O(slots).
        """
        array = to_host(slots)
        if not array.size:
            return
        if self.free_group is None:
            self._give(array)
        else:
            self._hand_back(self._park(array))

    def free_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Give back a stretch of a request's row, `row[start_pos : start_pos + len(slots)]`, whole pages at a time.

        Cheaper than `free`: each page is looked up once. A partial last page goes as a whole. Raises
        `MisalignedSegment` when `start_pos` is not on a page boundary or the slots do not follow one another as
        positions of a row do; else as `free`. O(slots).
        """
        array = self._segment(slots, start_pos)
        if not array.size:
            return
        if self.free_group is None:
            self._give_segment(array)
        else:
            self._hand_back(self._park_segments((array,)))

    def free_segments(self, pairs: Iterable[Segment]) -> None:
        """Give back several stretches, (slots, start_pos) each, all or none. They may not share a page."""
        arrays = [self._segment(slots, start_pos) for slots, start_pos in pairs]
        self._hand_back(self._park_segments([array for array in arrays if array.size]))

    def clear(self) -> None:
        """Every slot is free again, whoever held it; an open group is dropped."""
        self.free_group = None
        for pool in self.pools.values():
            pool.clear()

    def audit(self) -> None:
        """Check that every page is free, live or parked, once, and the parked ones in the group. Raises `AuditError`.

        O(pages of the pool).
        """
        for pool in self.pools.values():
            pool.audit()
            in_group = sum(release.pages.size for release in self.free_group or () if release.pool is pool)
            parked = pool.num_parked
            if in_group != parked:
                raise AuditError(
                    f"{parked} pages are parked, the open group holds {in_group}. Only the group parks pages."
                )

    @property
    def pools(self) -> dict[str, FreeList]:
        """The pools that pages come from, by name: "full", and as there are, "window", "hot" and "state"."""
        return self._token_pools() if self.states is None else self._token_pools() | {"state": self.states.pages}

    @abstractmethod
    def _token_pools(self) -> dict[str, FreeList]:
        """The pools that tokens come from, by name."""

    def _keep_states(self, slots: FreeList) -> None:
        """Start with slots for states beside the tokens."""
        self.states = StateAllocator(slots, self._free_pages, self.device)

    @abstractmethod
    def _park(self, slots: IntArray) -> Sequence[Release]:
        """Check the slots and park their pages, all or none."""

    @abstractmethod
    def _park_segments(self, segments: Sequence[IntArray]) -> Sequence[Release]:
        """As `_park`, for stretches of rows that start on a page boundary; none of them is empty."""

    @abstractmethod
    def _give(self, slots: IntArray) -> IntArray:
        """Give the pages of the slots back, by the shortest way, and say which; good until the next call."""

    @abstractmethod
    def _give_segment(self, slots: IntArray) -> IntArray:
        """Give the pages of one such stretch back, by the shortest way, and say which; good until the next call."""

    def _free_pages(self, pool: FreeList, pages: IntArray) -> None:
        """Give live pages of a pool back: at once, or when the open group ends. Raises as `FreeList.give`."""
        if self.free_group is None:
            pool.give(pages)
        else:
            self.free_group.append(Release(pool, pool.park(pages)))

    def _hand_back(self, releases: Iterable[Release]) -> None:
        """Make parked pages available: at once, or when the open group ends."""
        if self.free_group is None:
            free_group.end(releases)
        else:
            self.free_group.extend(releases)

    def _segment(self, slots: Integers, start_pos: int) -> IntArray:
        require_page_start(start_pos, self.page_size)
        return to_host(slots)
