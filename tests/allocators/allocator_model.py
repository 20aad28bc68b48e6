"""The slow, obviously right allocator: lists and dictionaries of page ids, and one token at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from itertools import count

from kvstead.errors import (
    DoubleFree,
    ForeignPage,
    FreeGroupError,
    InvalidSize,
    MisalignedSegment,
    MisalignedSize,
    UseAfterFree,
)

FREE, LIVE, PARKED, PADDING = range(4)


@dataclass
class AllocatorModel:
    """What a pool of pages 1 .. `num_pages` should do.

    A fault is the error class that must be raised, with the words that its message must hold. Everything is decided
    before anything is written.
    """

    num_pages: int
    page_size: int
    order: str
    free_pages: list[int] = field(default_factory=list)  # in the order in which they will be handed out
    live: dict[int, int] = field(default_factory=dict)  # page -> owner tag
    group: list[list[int]] | None = None  # pages parked, call by call

    def __post_init__(self):
        self.clear()

    # What is where.

    def states(self):
        """The state of every page, page 0 first."""
        parked = [page for pages in self.group or [] for page in pages]
        where = dict.fromkeys(self.live, LIVE) | dict.fromkeys(parked, PARKED) | dict.fromkeys(self.free_pages, FREE)
        assert len(where) == self.num_pages == len(self.live) + len(parked) + len(self.free_pages), "a page is lost"
        return [PADDING] + [where[page] for page in range(1, self.num_pages + 1)]

    def num_parked(self):
        """Pages freed in the open group."""
        return sum(len(pages) for pages in self.group or [])

    def available(self):
        """Tokens that whole pages could be handed out for."""
        return len(self.free_pages) * self.page_size

    def owners(self):
        """Live pages by tag."""
        tags = list(self.live.values())
        return {tag: tags.count(tag) for tag in tags}

    def slots(self, pages):
        """All slots of some pages."""
        return [page * self.page_size + offset for page in pages for offset in range(self.page_size)]

    # Handing out.

    def alloc(self, num_tokens, owner=0):
        """Whole pages."""
        if num_tokens < 0:
            raise InvalidSize(str(num_tokens))
        if num_tokens % self.page_size:
            raise MisalignedSize(f"{num_tokens} tokens")
        if not -(2**31) <= owner < 2**31:
            raise InvalidSize(str(owner))
        pages = self._take([owner] * (num_tokens // self.page_size))
        return None if pages is None else self.slots(pages)

    def extend(self, prefix_lens, seq_lens, last_locs, owners=None):
        """Grow rows token by token: a position on a page boundary opens a page, any other follows its predecessor."""
        if not len(prefix_lens) == len(seq_lens) == len(last_locs):
            raise InvalidSize(str(len(seq_lens)))
        self._check_rows(prefix_lens, seq_lens, last_locs)
        owners = self._tags(owners, len(seq_lens))
        rows = list(zip(prefix_lens, seq_lens, last_locs, owners, strict=True))
        tags = [owner for prefix, seq, _, owner in rows for p in range(prefix, seq) if p % self.page_size == 0]
        pages = self._take(tags)
        if pages is None:
            return None
        slots = []
        for prefix, seq, last, _ in rows:
            slot = last
            for position in range(prefix, seq):
                slot = pages.pop(0) * self.page_size if position % self.page_size == 0 else slot + 1
                slots.append(slot)
        return slots

    def decode(self, seq_lens, last_locs, owners=None):
        """Every row grows by one token, which `seq_lens` count."""
        return self.extend([seq - 1 for seq in seq_lens], seq_lens, last_locs, owners)

    # Taking back.

    def free(self, slots):
        """The pages of some slots, each once; a single-token page may not be named twice."""
        pages = []
        for slot in slots:
            page = slot // self.page_size
            if page in pages and self.page_size > 1:
                continue
            self._check_live(page, pages)
            pages.append(page)
        self._release([pages])

    def free_segment(self, slots, start_pos):
        """The pages of a stretch of a row."""
        self.free_segments([(slots, start_pos)])

    def free_segments(self, pairs):
        """The pages of several stretches, all or none: one release, in the order in which single calls queue them."""
        for _, start_pos in pairs:
            if start_pos < 0 or start_pos % self.page_size:
                raise MisalignedSegment(f"position {start_pos}")
        alone = len(pairs) == 1  # one stretch is read page by page; several have to be whole pages first
        seen = []
        releases = []
        for slots, _ in pairs:
            pages = []
            for first in range(0, len(slots), self.page_size):
                part = slots[first : first + self.page_size]
                page = part[0] // self.page_size
                if part != self.slots([page])[: len(part)]:
                    raise MisalignedSegment(str(part))
                if alone:
                    self._check_live(page, seen)
                    seen.append(page)
                pages.append(page)
            releases.append(pages)
        for page in [] if alone else itertools.chain(*releases):
            self._check_live(page, seen)
            seen.append(page)
        in_order = releases[::-1] if self.order == "lifo" else releases
        self._release([[page for pages in in_order for page in pages]])

    def begin(self):
        """Open a group."""
        if self.group is not None:
            raise FreeGroupError(str(len(self.group)))
        self.group = []

    def end(self):
        """Close the group, if one is open."""
        group, self.group = self.group, None
        for pages in group or []:
            self._give(pages)

    def clear(self):
        """As new."""
        self.free_pages = list(range(1, self.num_pages + 1))
        self.live = {}
        self.group = None

    def _tags(self, owners, num_rows):
        owners = [0] * num_rows if owners is None else owners
        if len(owners) != num_rows:
            raise InvalidSize(str(len(owners)))
        for owner in owners:
            if not -(2**31) <= owner < 2**31:
                raise InvalidSize(str(owner))
        return owners

    def _take(self, tags):
        if len(tags) > len(self.free_pages):
            return None
        pages, self.free_pages = self.free_pages[: len(tags)], self.free_pages[len(tags) :]
        self.live.update(zip(pages, tags, strict=True))
        return pages

    def _release(self, releases):
        for pages in filter(None, releases):
            for page in pages:
                del self.live[page]
            if self.group is None:
                self._give(pages)
            else:
                self.group.append(pages)

    def _give(self, pages):
        if self.order == "lifo":
            self.free_pages = pages + self.free_pages
        elif self.order == "fifo":
            self.free_pages = self.free_pages + pages
        else:
            self.free_pages = sorted(self.free_pages + pages)

    def _check_live(self, page, seen):
        if not 1 <= page <= self.num_pages:
            raise ForeignPage(f"page {page} ")
        if page not in self.live or page in seen:
            raise DoubleFree(f"page {page} ")

    def _check_rows(self, prefix_lens, seq_lens, last_locs):
        grown = set()
        for row, prefix, seq, last in zip(count(), prefix_lens, seq_lens, last_locs, strict=False):
            if prefix < 0 or seq < prefix:
                raise InvalidSize(f"row {row} ")
            if seq == prefix:
                continue
            if (last + 1) % self.page_size != prefix % self.page_size:
                raise MisalignedSegment(f"row {row} ")
            if prefix % self.page_size == 0:
                continue
            page = last // self.page_size
            if not 1 <= page <= self.num_pages:
                raise ForeignPage(f"page {page}")
            if page not in self.live or page in grown:
                raise UseAfterFree(f"page {page} ")
            grown.add(page)
