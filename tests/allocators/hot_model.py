"""The slow, obviously right allocators with a device side: a model of the logical side, one of the device pages, and
dictionaries of who owns which.
"""

from __future__ import annotations

from allocator_model import AllocatorModel
from window_model import WindowModel

from kvstead.errors import ForeignPage, FreeGroupError, InvalidSize, MisalignedSize, UseAfterFree


class HotModel(AllocatorModel):
    """What a pool of logical pages with `num_hot` device pages should do; `ratio` tokens share a device slot."""

    def __init__(self, num_hot, ratio, *args):
        self.ratio = ratio
        self.hot_size = args[-2] // ratio
        self.devices = AllocatorModel(num_hot, self.hot_size, args[-1])
        self.hot = {}  # logical page -> device page
        self.lens = {}  # logical page -> entries of it
        super().__init__(*args)

    # What is where.

    def available(self):
        """Tokens that all sides have room for."""
        return min(super().available(), self.devices.available() * self.ratio)

    def full_available(self):
        """Tokens that the full side has room for, device slots and all."""
        return min(len(self.free_pages) * self.page_size, self.devices.available() * self.ratio)

    def device_pages(self):
        """The mapping as an array has it."""
        return [self.hot.get(page, 0) for page in range(self.num_pages + 1)] + [-1]

    def device_slots(self, slots):
        """The device side of slots: that of the block that each of them ends."""
        found = []
        for slot in slots:
            page, offset = divmod(slot, self.page_size)
            if slot != -1 and not 0 <= page <= self.num_pages:
                raise ForeignPage(f"slot {slot} ")
            entry, rest = divmod(offset + 1, self.ratio)
            there = slot != -1 and page in self.hot and rest == 0 and entry <= self.lens[page]
            found.append(self.hot[page] * self.hot_size + entry - 1 if there else min(slot, 0))
        return found

    # Handing out.

    def alloc(self, num_tokens, owner=0):
        """Whole pages, each with a device page."""
        count, rest = divmod(num_tokens, self.page_size)
        sound = count >= 0 and not rest and -(2**31) <= owner < 2**31
        if sound and count > len(self.devices.free_pages):
            return None
        slots = super().alloc(num_tokens, owner)
        for slot in slots or []:
            self._warm(slot)
        return slots

    def extend(self, prefix_lens, seq_lens, last_locs, owners=None):
        """Rows grow token by token; whoever ends a block has it on the device."""
        if not len(prefix_lens) == len(seq_lens) == len(last_locs):
            raise InvalidSize(str(len(seq_lens)))
        self._check_rows(prefix_lens, seq_lens, last_locs)
        needed = 0
        for row, prefix in enumerate(prefix_lens):
            ends = [at for at in range(prefix, seq_lens[row]) if (at + 1) % self.ratio == 0]
            own = last_locs[row] // self.page_size if prefix % self.page_size else None
            there = self.lens[own] if own in self.hot else 0
            if ends and own is not None and there < prefix % self.page_size // self.ratio:
                raise UseAfterFree(f"row {row} would grow behind slot {last_locs[row]}, in page {own}, ")
            opened = {at // self.page_size for at in ends} - ({prefix // self.page_size} if there else set())
            needed += len(opened)
        self._tags(owners, len(seq_lens))
        if needed > len(self.devices.free_pages):
            return None
        slots = super().extend(prefix_lens, seq_lens, last_locs, owners)
        for slot in slots or []:
            self._warm(slot)
        return slots

    def decode(self, seq_lens, last_locs, owners=None):
        """Rows grow by a token without a device side."""
        return self.logical_only([seq - 1 for seq in seq_lens], seq_lens, last_locs, owners)

    def logical_only(self, prefix_lens, seq_lens, last_locs, owners=None):
        """Rows grow without a device side."""
        return super().extend(prefix_lens, seq_lens, last_locs, owners)

    def buffer(self, slots, num_tokens):
        """Device slots of a row, cut off or filled up."""
        if num_tokens < 0:
            raise InvalidSize(str(num_tokens))
        if num_tokens % self.hot_size:
            raise MisalignedSize(f"{num_tokens} tokens")
        found = [slot for slot in self.device_slots(slots) if slot > 0]
        if len(set(found)) < len(found):
            raise InvalidSize("named twice")
        kept = dict.fromkeys(slot // self.hot_size for slot in found[:num_tokens])
        missing = max(0, num_tokens // self.hot_size - len(kept))
        if missing > len(self.devices.free_pages):
            return None
        fresh = self.devices._take([0] * missing)
        unused = [slot for slot in self.devices.slots(sorted(kept)) if slot not in found]
        lost = {slot // self.hot_size for slot in found}
        self.hot = {page: hot for page, hot in self.hot.items() if hot not in lost}
        self.devices.live |= dict.fromkeys(kept, 0)
        self.devices._release([sorted(lost - set(kept))])
        return (found + unused + self.devices.slots(fresh))[:num_tokens]

    # Taking back.

    def free_hisparse(self, slots):
        """The device side of the pages of some slots."""
        pages = [slot // self.page_size for slot in slots]
        for page in pages:
            if not 1 <= page <= self.num_pages:
                raise ForeignPage(f"page {page} ")
        self._cool(pages)

    def free_indices(self, device_slots):
        """The device pages of some device slots."""
        slots = [slot for slot in device_slots if slot not in {0, -1}]
        pages = []
        for slot in slots:
            page = slot // self.hot_size
            if page in pages and self.hot_size > 1:
                continue
            self.devices._check_live(page, pages)
            pages.append(page)
        self.hot = {page: hot for page, hot in self.hot.items() if hot not in pages}
        self.devices._release([pages])

    def clear(self):
        """As new."""
        super().clear()
        self.devices.clear()
        self.hot.clear()

    def _warm(self, slot):
        page, offset = divmod(slot, self.page_size)
        entry, rest = divmod(offset + 1, self.ratio)
        if rest == 0:
            if page not in self.hot:
                (self.hot[page],) = self.devices._take([page])
                self.lens[page] = 0
            self.lens[page] = max(self.lens[page], entry)

    def _release(self, releases):
        super()._release(releases)
        for pages in releases:
            self._cool(pages)

    def _cool(self, pages):
        distinct = dict.fromkeys(page for page in pages if page in self.hot)
        self.devices._release([[self.hot.pop(page) for page in distinct]])


class HiSparseModel(HotModel):
    """One logical side; frees never wait."""

    def begin(self):
        """Nothing."""

    def end(self):
        """Nothing."""


class CompressedModel(HotModel, WindowModel):
    """A full side and a window side; frees of all three wait for the end of the group."""

    def begin(self):
        """Open a group."""
        if self.group is not None:
            raise FreeGroupError(str(len(self.group) + len(self.windows.group) + len(self.devices.group)))
        super().begin()
        self.devices.begin()

    def end(self):
        """Close the group, if one is open."""
        super().end()
        self.devices.end()
