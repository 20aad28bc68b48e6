"""What all allocators share: one `free`, one group.

A subclass says which pages of which pool a set of slots stands for and takes them out of LIVE (`_claim`,
`_claim_segments`); the base decides what happens to them: handed back at once, or parked in the open group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch

from kvstead.kernels.arrays import Integers, to_host
from kvstead.kernels.jit import IntArray
from kvstead.pages import FreeGroup, FreeList, Release, free_group

Segment: TypeAlias = tuple[Integers, int]


class Allocator(ABC):
    """Slots for tokens, in pages of `page_size`. Slots 0 .. `page_size` - 1 are padding and belong to nobody.

    size: usable slots. device: where handed-out slots live; all bookkeeping is on the host. `free_group` is None (frees
    take effect at once) or the list of releases parked until the group ends.
    """

    def __init__(self, size: int, page_size: int, device: str | torch.device) -> None:
        self.size = size
        self.page_size = page_size
        self.device = torch.device(device)
        self.free_group: FreeGroup = None

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
        if array.size:
            self._hand_back(self._claim(array))

    def free_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Give back a stretch of a request's row, `row[start_pos : start_pos + len(slots)]`, whole pages at a time.

        Cheaper than `free`: only one slot a page is looked up. A partial last page goes as a whole. Raises
        `MisalignedSegment` when `start_pos` is not on a page boundary or the slots do not follow one another as
        positions of a row do; else as `free`. O(slots).
        """
        self.free_segments(((slots, start_pos),))

    def free_segments(self, pairs: Iterable[Segment]) -> None:
        """Give back several stretches, (slots, start_pos) each, all or none. They may not share a page."""
        segments = [(array, start) for slots, start in pairs if (array := to_host(slots)).size]
        if segments:
            self._hand_back(self._claim_segments(segments))

    def free_group_begin(self) -> None:
        """Open a group: from now on frees are parked. Raises `FreeGroupError` when one is open."""
        self.free_group = free_group.begin(self.free_group)

    def free_group_end(self) -> None:
        """Close the group and give back all that is parked in it. Without an open group nothing happens."""
        group, self.free_group = self.free_group, None
        free_group.end(group)

    @contextmanager
    def defer_frees(self) -> Iterator[None]:
        """Free group as a `with` block; an exception inside ends the group too."""
        self.free_group_begin()
        try:
            yield
        finally:
            self.free_group_end()

    def clear(self) -> None:
        """Every slot is free again, whoever held it; an open group is dropped."""
        self.free_group = None
        for pool in self._pools():
            pool.clear()

    def audit(self) -> None:
        """Check that every page is free, live or parked, once. Raises `AuditError`. O(pages of the pool)."""
        for pool in self._pools():
            pool.audit()

    @abstractmethod
    def _pools(self) -> Sequence[FreeList]:
        """The free lists that this allocator hands out from."""

    @abstractmethod
    def _claim(self, slots: IntArray) -> Sequence[Release]:
        """Check the slots and take their pages out of LIVE: parked if a group is open, else free; or raise."""

    @abstractmethod
    def _claim_segments(self, segments: Sequence[tuple[IntArray, int]]) -> Sequence[Release]:
        """As `_claim`, for stretches of a row."""

    def _hand_back(self, releases: Sequence[Release]) -> None:
        if self.free_group is None:
            for pool, pages in releases:
                pool.relist(pages)
        else:
            self.free_group.extend(releases)
