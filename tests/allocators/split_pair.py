"""An allocator whose sides come apart and its model, driven by the same calls."""

from __future__ import annotations

import numpy as np
from allocator_pair import FORMS
from window_model import WindowModel
from window_pair import WindowPair

from kvstead.allocators.loose_windows import SplitSWAAllocator
from kvstead.errors import (
    DoubleFree,
    ForeignPage,
    InvalidSize,
    MisalignedSegment,
    MisalignedSize,
    UseAfterFree,
    WindowTaken,
)


class SplitModel(WindowModel):
    """A `WindowModel` with window pages that belong to no full page."""

    def alloc_full(self, num_tokens):
        """Full pages alone."""
        taken = self._whole(num_tokens, self.free_pages)
        return None if taken is None else self.slots(super(WindowModel, self)._take([0] * taken))

    def alloc_window(self, num_tokens):
        """Window pages alone."""
        taken = self._whole(num_tokens, self.windows.free_pages)
        if taken is None:
            return None
        pages = self.windows._take([0] * taken)
        self.loose.update(pages)
        return self.slots(pages)

    def free_window(self, window_slots):
        """Loose pages go."""
        pages = list(dict.fromkeys(slot // self.page_size for slot in window_slots))
        for page in pages:
            self._check_loose(page)
        self.windows._release([pages])
        self.loose.difference_update(pages)

    def detach(self, slots):
        """Window pages become loose."""
        pages = {slot // self.page_size for slot in slots}
        self._check_in_pool(sorted(pages))
        self.loose.update(self.links.pop(page) for page in pages if page in self.links)

    def attach(self, slots, window_slots):
        """Loose pages become window pages."""
        if len(slots) != len(window_slots):
            raise InvalidSize(f"{len(slots)} slots")
        size, pairs = self.page_size, {}
        for slot, window_slot in zip(slots, window_slots, strict=True):
            page, linked_page = slot // size, window_slot // size
            if slot % size != window_slot % size or pairs.get(page, linked_page) != linked_page:
                raise MisalignedSegment(f"of {size} and offset by offset")
            pairs[page] = linked_page
        if len(set(pairs.values())) < len(pairs):
            raise MisalignedSegment(f"of {size} and offset by offset")
        for page, linked_page in sorted(pairs.items()):
            self._check_in_pool([page])
            if page not in self.live:
                raise UseAfterFree(f"page {page} ")
            if self.links.get(page, linked_page) != linked_page:
                raise WindowTaken(f"page {page} ")
            if page not in self.links:
                self._check_loose(linked_page)
        self.links |= pairs
        self.loose.difference_update(pairs.values())

    def _whole(self, num_tokens, free):
        """How many pages that is; None when there are not so many."""
        if num_tokens < 0:
            raise InvalidSize(str(num_tokens))
        if num_tokens % self.page_size:
            raise MisalignedSize(f"{num_tokens} tokens")
        return num_tokens // self.page_size if num_tokens // self.page_size <= len(free) else None

    def _check_loose(self, page):
        if not 1 <= page <= self.windows.num_pages:
            raise ForeignPage(f"page {page} ")
        if page not in self.windows.live:
            raise DoubleFree(f"page {page} ")
        if page not in self.loose:
            raise WindowTaken(f"window page {page} ")


class SplitPair(WindowPair):
    """Everything that a `WindowPair` does, and what is done to one side."""

    def __init__(self, size, swa_size, page_size, order):
        real = SplitSWAAllocator(size, swa_size, page_size, order=order)
        self._mapping = real.window_pages
        self._start(real, SplitModel(size // page_size, swa_size // page_size, page_size, order))

    def alloc_full(self, num_tokens):
        """Full pages alone."""
        return self._both(lambda: self.model.alloc_full(num_tokens), lambda: self.real.alloc_full(num_tokens))

    def alloc_window(self, num_tokens):
        """Window pages alone."""
        return self._both(lambda: self.model.alloc_window(num_tokens), lambda: self.real.alloc_window(num_tokens))

    def free_window(self, window_slots, form="list"):
        """Loose pages go."""
        given = FORMS[form](list(window_slots))
        self._both(lambda: self.model.free_window(window_slots), lambda: self.real.free_window(given), given)

    def detach(self, slots, form="list"):
        """Window pages become loose."""
        given = FORMS[form](list(slots))
        self._both(lambda: self.model.detach(slots), lambda: self.real.detach_windows(given), given)

    def attach(self, slots, window_slots, form="list"):
        """Loose pages become window pages."""
        given = [FORMS[form](list(column)) for column in (slots, window_slots)]
        self._both(lambda: self.model.attach(slots, window_slots), lambda: self.real.attach_windows(*given), *given)

    def _both(self, ask_model, ask_real, *given):
        answer = super()._both(ask_model, ask_real, *given)
        assert np.flatnonzero(self.real._window.loose).tolist() == sorted(self.model.loose)
        return answer
