"""An allocator with a device side and its model, driven by the same calls and compared after each of them."""

from __future__ import annotations

import numpy as np
import torch
from allocator_pair import FORMS, Pair, group_pages
from hot_model import CompressedModel, HiSparseModel
from window_pair import WindowPair

from kvstead.allocators import CompressedHiSparseAllocator, HiSparseAllocator


class HotCalls:
    """What is asked of the device side, to be mixed into a pair."""

    def logical_only(self, prefix_lens, seq_lens, last_locs, owners=None, form="list"):
        """Grow rows without device slots."""
        given = [FORMS[form](list(column)) for column in (prefix_lens, seq_lens, last_locs)]
        return self._both(
            lambda: self.model.logical_only(prefix_lens, seq_lens, last_locs, owners),
            lambda: self.real.alloc_logical_only(*given, owners),
            *given,
        )

    def buffer(self, slots, num_tokens, form="list"):
        """Make a buffer."""
        given = FORMS[form](list(slots))
        return self._both(
            lambda: self.model.buffer(slots, num_tokens),
            lambda: self.real.alloc_device_buffer(given, num_tokens),
            given,
        )

    def free_hisparse(self, slots, form="list"):
        """Free the device side of slots."""
        given = FORMS[form](list(slots))
        self._both(lambda: self.model.free_hisparse(slots), lambda: self.real.free_hisparse(given), given)

    def free_indices(self, device_slots, form="list"):
        """Free device slots."""
        given = FORMS[form](list(device_slots))
        self._both(lambda: self.model.free_indices(device_slots), lambda: self.real.free_hisparse_indices(given), given)

    def device_slots(self, slots, form="list"):
        """Ask for the device side; the answer has the shape of the question."""
        given = FORMS[form](list(slots))

        def ask():
            found = self.real.device_slots(given)
            assert found.shape == np.shape(given)
            assert (self.real.device_slots(torch.tensor(slots).reshape(-1, 1)) == found.reshape(-1, 1)).all()
            return found.reshape(-1)

        return self._both(lambda: self.model.device_slots(slots), ask, given)

    def check(self):
        """Every book of the device side says what the model says, and both sides of a page know each other."""
        super().check()
        model, real = self.model, self.real
        devices = model.devices
        assert real.device_page_states().tolist() == devices.states()
        assert real.pools["hot"].contents().tolist() == devices.free_pages
        assert group_pages(real, real.pools["hot"]) == devices.group
        assert real.pools["hot"].table.owners() == devices.owners()
        assert real.device_available_size() == devices.available()
        assert real.logical_available_size() == len(model.free_pages) * model.page_size
        assert real.device_size == devices.num_pages * devices.page_size
        assert real.device_pages is self._devices
        assert real.device_pages.tolist() == model.device_pages()
        assert set(model.hot) <= set(model.live)
        assert {page for page, tag in devices.live.items() if tag} == set(model.hot.values())


class HiSparsePair(HotCalls, Pair):
    """One logical side."""

    def __init__(self, size, page_size, order, ratio=2):
        real = HiSparseAllocator(size, page_size, ratio=ratio, order=order)
        self._devices = real.device_pages
        num_pages = size * ratio // page_size
        self._start(real, HiSparseModel(size // page_size, 1, num_pages, page_size, order))


class CompressedPair(HotCalls, WindowPair):
    """A full side and a window side above the device side."""

    def __init__(self, full_size, swa_size, size, page_size, order, ratio=4):
        sizes = full_size, swa_size, size
        real = CompressedHiSparseAllocator(*sizes, page_size, compress_ratio=ratio, order=order)
        self._devices = real.device_pages
        self._mapping = real.window_pages
        num_hot = size // (page_size // ratio)
        model = CompressedModel(num_hot, ratio, full_size // page_size, swa_size // page_size, page_size, order)
        self._start(real, model)
