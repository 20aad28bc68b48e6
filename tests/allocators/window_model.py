"""The slow, obviously right allocator of two sides: two `AllocatorModel`s and a dictionary of window pages."""

from __future__ import annotations

from allocator_model import AllocatorModel

from kvstead.errors import ForeignPage, FreeGroupError, InvalidSize, MisalignedSegment, UseAfterFree, WindowTaken


class WindowModel(AllocatorModel):
    """What a full side of `num_pages` with a window side of `num_windows` should do."""

    def __init__(self, num_pages, num_windows, page_size, order):
        self.windows = AllocatorModel(num_windows, page_size, order)
        self.links = {}  # full page -> window page
        self.loose = set()  # window pages without a full page, of a class that has such
        super().__init__(num_pages, page_size, order)

    # What is where.

    def window_pages(self):
        """The mapping as an array has it."""
        return [self.links.get(page, 0) for page in range(self.num_pages + 1)] + [-1]

    def window_slots(self, slots):
        """Window pages of slots, at their offsets."""
        found = []
        for slot in slots:
            page, offset = divmod(slot, self.page_size)
            if slot != -1 and not 0 <= page <= self.num_pages:
                raise ForeignPage(f"slot {slot} ")
            found.append(-1 if slot == -1 else self.links[page] * self.page_size + offset if page in self.links else 0)
        return found

    def available(self):
        """Tokens that both sides have room for."""
        return min(self.full_available(), self.windows.available())

    def full_available(self):
        """Tokens that the full side has room for."""
        return super().available()

    # Handing out.

    def tail(self, prefix_lens, seq_lens, last_locs, tail_len, owners=None):
        """One row grows token by token; the pages opened under its last `tail_len` tokens have window pages."""
        if not len(prefix_lens) == len(seq_lens) == len(last_locs) == 1:
            raise InvalidSize(str(len(seq_lens)))
        super()._check_rows(prefix_lens, seq_lens, last_locs)
        (prefix,), (seq,), (slot,) = prefix_lens, seq_lens, last_locs
        if not 0 <= tail_len <= seq - prefix:
            raise InvalidSize(str(tail_len))
        if (seq - tail_len) % self.page_size:
            raise MisalignedSegment(str(tail_len))
        (tag,) = self._tags(owners, 1)
        opening = [position for position in range(prefix, seq) if position % self.page_size == 0]
        with_peer = [position for position in opening if position >= seq - tail_len]
        if len(opening) > len(self.free_pages) or len(with_peer) > len(self.windows.free_pages):
            return None
        slots = []
        for position in range(prefix, seq):
            slot += 1
            if position in opening:
                (page,) = super()._take([tag])
                slot = page * self.page_size
            if position in with_peer:
                (self.links[page],) = self.windows._take([0])
            slots.append(slot)
        return slots

    def move_window(self, src, dst):
        """Window pages go from page to page, all or none."""
        if len(src) != len(dst):
            raise InvalidSize(f"{len(src)} slots")
        moves = {}
        for one, other in zip(src, dst, strict=True):
            giver, taker = one // self.page_size, other // self.page_size
            self._check_in_pool([giver, taker])
            if one % self.page_size != other % self.page_size:
                raise MisalignedSegment(f"slot {one} ")
            if moves.get(giver) == taker:
                continue
            if {giver, taker} & {*moves, *moves.values()}:
                raise MisalignedSegment(f"slot {one} ")
            if giver not in self.links:
                raise UseAfterFree(f"page {giver} ")
            if taker not in self.live:
                raise UseAfterFree(f"page {taker} ")
            if taker in self.links:
                raise WindowTaken(f"page {taker} ")
            moves[giver] = taker
        for giver, taker in moves.items():
            self.links[taker] = self.links.pop(giver)

    # Taking back.

    def free_swa(self, slots):
        """The window pages of the pages of some slots, where there are any."""
        self.free_window_pages([slot // self.page_size for slot in slots])

    def free_swa_segment(self, slots, start_pos):
        """The window pages of a stretch of a row."""
        self.free_swa_segments([(slots, start_pos)])

    def free_swa_segments(self, pairs):
        """The window pages of several stretches, all or none; a stretch may be named twice."""
        for _, start_pos in pairs:
            if start_pos < 0 or start_pos % self.page_size:
                raise MisalignedSegment(f"position {start_pos}")
        pages = []
        for slots, _ in pairs:
            for first in range(0, len(slots), self.page_size):
                part = slots[first : first + self.page_size]
                pages.append(part[0] // self.page_size)
                if part != self.slots(pages[-1:])[: len(part)]:
                    raise MisalignedSegment(str(part))
        self.free_window_pages(pages)

    def free_window_pages(self, pages):
        """The window pages of some pages."""
        self._check_in_pool(pages)
        self._drop(pages)

    def begin(self):
        """Open a group."""
        if self.group is not None:
            raise FreeGroupError(str(len(self.group) + len(self.windows.group)))
        super().begin()
        self.windows.begin()

    def end(self):
        """Close the group, if one is open."""
        super().end()
        self.windows.end()

    def clear(self):
        """As new."""
        super().clear()
        self.windows.clear()
        self.links.clear()
        self.loose.clear()

    def _take(self, tags):
        if len(tags) > len(self.windows.free_pages):
            return None
        pages = super()._take(tags)
        if pages is not None:
            self.links |= zip(pages, self.windows._take([0] * len(pages)), strict=True)
        return pages

    def _release(self, releases):
        super()._release(releases)
        for pages in releases:
            self._drop(pages)

    def _drop(self, pages):
        distinct = dict.fromkeys(page for page in pages if page in self.links)
        self.windows._release([[self.links.pop(page) for page in distinct]])

    def _check_in_pool(self, pages):
        for page in pages:
            if not 1 <= page <= self.num_pages:
                raise ForeignPage(f"page {page} ")

    def _check_rows(self, prefix_lens, seq_lens, last_locs):
        super()._check_rows(prefix_lens, seq_lens, last_locs)
        for row, prefix in enumerate(prefix_lens):
            page = last_locs[row] // self.page_size
            if seq_lens[row] > prefix and prefix % self.page_size and page not in self.links:
                raise UseAfterFree(f"row {row} would grow behind slot {last_locs[row]}, in page {page}, ")
