"""An allocator of two sides and its model, driven by the same calls and compared after each of them."""

from __future__ import annotations

import numpy as np
import torch
from allocator_pair import FORMS, Pair, group_pages
from window_model import WindowModel

from kvstead.allocators import SWAAllocator


class WindowPair(Pair):
    """Everything that a `Pair` does, and the window side."""

    def __init__(self, size, swa_size, page_size, order):
        real = SWAAllocator(size, swa_size, page_size, order=order)
        self._mapping = real.window_pages
        self._start(real, WindowModel(size // page_size, swa_size // page_size, page_size, order))

    def tail(self, prefix_lens, seq_lens, last_locs, tail_len, owners=None, form="list"):
        """Grow a row that has windows at its end."""
        given = [FORMS[form](list(column)) for column in (prefix_lens, seq_lens, last_locs)]
        tags = None if owners is None else FORMS[form](list(owners))
        return self._both(
            lambda: self.model.tail(prefix_lens, seq_lens, last_locs, tail_len, owners),
            lambda: self.real.alloc_extend_swa_tail(*given, tail_len, tags),
            *given,
            tags,
        )

    def free_full(self, slots, form="list"):
        """Free slots by the other name."""
        given = FORMS[form](list(slots))
        self._both(lambda: self.model.free(slots), lambda: self.real.free_full(given), given)

    def free_full_segment(self, slots, start_pos=0, form="list"):
        """Free a stretch of a row by the other name."""
        given = FORMS[form](list(slots))
        self._both(
            lambda: self.model.free_segment(slots, start_pos),
            lambda: self.real.free_full_segment(given, start_pos=start_pos),
            given,
        )

    def free_full_segments(self, pairs, form="list"):
        """Free several stretches by the other name."""
        given = [(FORMS[form](list(slots)), start_pos) for slots, start_pos in pairs]
        self._both(
            lambda: self.model.free_segments(pairs),
            lambda: self.real.free_full_segments(given),
            *[slots for slots, _ in given],
        )

    def free_swa(self, slots, form="list"):
        """Free the window pages of slots."""
        given = FORMS[form](list(slots))
        self._both(lambda: self.model.free_swa(slots), lambda: self.real.free_swa(given), given)

    def free_swa_segment(self, slots, start_pos=0, form="list"):
        """Free the window pages of a stretch of a row."""
        given = FORMS[form](list(slots))
        self._both(
            lambda: self.model.free_swa_segment(slots, start_pos),
            lambda: self.real.free_swa_segment(given, start_pos=start_pos),
            given,
        )

    def free_swa_segments(self, pairs, form="list"):
        """Free the window pages of several stretches."""
        given = [(FORMS[form](list(slots)), start_pos) for slots, start_pos in pairs]
        self._both(
            lambda: self.model.free_swa_segments(pairs),
            lambda: self.real.free_swa_segments(given),
            *[slots for slots, _ in given],
        )

    def free_window_pages(self, pages):
        """Free the window pages of pages."""
        given = np.array(pages, dtype=np.int64)
        self._both(lambda: self.model.free_window_pages(pages), lambda: self.real.free_window_pages(given), given)

    def move_window(self, src, dst, form="list"):
        """Move window pages."""
        given = [FORMS[form](list(column)) for column in (src, dst)]
        self._both(lambda: self.model.move_window(src, dst), lambda: self.real.move_window(*given), *given)

    def window_slots(self, slots, form="list"):
        """Ask for window pages; the answer has the shape of the question."""
        given = FORMS[form](list(slots))

        def ask():
            found = self.real.window_slots(given)
            assert found.shape == np.shape(given)
            assert (self.real.window_slots(torch.tensor(slots).reshape(-1, 1)) == found.reshape(-1, 1)).all()
            return found.reshape(-1)

        return self._both(lambda: self.model.window_slots(slots), ask, given)

    def check(self):
        """Every book of the allocator says what the model says, on both sides, and the sides fit together."""
        model, real, page_size = self.model, self.real, self.model.page_size
        assert real.page_states().tolist() == model.states()
        assert real.window_page_states().tolist() == model.windows.states()
        assert real._pool.contents().tolist() == model.free_pages
        assert real.pools["window"].contents().tolist() == model.windows.free_pages
        assert group_pages(real, real._pool) == model.group
        assert group_pages(real, real.pools["window"]) == model.windows.group
        assert real.full_available_size() == model.full_available()
        assert real.swa_available_size() == len(model.windows.free_pages) * page_size
        assert real.available_size() == model.available()
        assert real.parked_size() == model.num_parked() * page_size
        assert real.swa_parked_size() == model.windows.num_parked() * page_size
        assert real.owners() == model.owners()
        assert real.window_pages is self._mapping
        assert real.window_pages.tolist() == model.window_pages()
        assert set(model.links) <= set(model.live)
        assert sorted([*model.links.values(), *model.loose]) == sorted(model.windows.live)
        real.audit()
