"""An allocator and its model, driven by the same calls and compared after each of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from allocator_model import AllocatorModel

from kvstead.allocators import (
    CompressedHiSparseAllocator,
    HiSparseAllocator,
    PagedAllocator,
    TokenAllocator,
    WindowSide,
)
from kvstead.errors import KVSteadError

PAGE_SIZES = (1, 2, 3, 4, 16)
ORDERS = ("lifo", "fifo", "lowest")


def strided(values):
    """Every other element of a tensor."""
    return torch.tensor([[value, -9] for value in values], dtype=torch.int64).reshape(-1, 2)[:, 0]


# The shapes in which callers hand in integers that fit 32 bits.
FORMS = {
    "int64 tensor": lambda values: torch.tensor(values, dtype=torch.int64),
    "int32 tensor": lambda values: torch.tensor(values, dtype=torch.int32),
    "strided tensor": strided,
    "2-D tensor": lambda values: torch.tensor(values, dtype=torch.int64).reshape(1, -1),
    "int64 array": lambda values: np.array(values, dtype=np.int64),
    "int32 array": lambda values: np.array(values, dtype=np.int32),
    "reversed array": lambda values: np.array(values[::-1], dtype=np.int64)[::-1],
    "list": list,
    "tuple": tuple,
}


def overwrite(given):
    """What a caller does with its own tensor as soon as the call is over."""
    if isinstance(given, np.ndarray | torch.Tensor):
        given[...] = 1
    elif isinstance(given, list):
        given[:] = [1] * len(given)


def group_pages(allocator, pool):
    """Pages of a pool that are parked in the open group, call by call; None without a group."""
    if allocator.free_group is None:
        return None
    return [release.pages.tolist() for release in allocator.free_group if release.pool is pool]


def snapshot(allocator):
    """All of an allocator: states, tags, counts, the free list in order, the group, and the linked pages."""
    pools = (_snapshot(allocator, pool) for pool in allocator.pools.values())
    return (*pools, plain_window_pages(allocator), plain_device_pages(allocator))


def _snapshot(allocator, pool):
    counts = (pool.table.num_free, pool.table.num_live, pool.table.num_parked)
    order = pool.contents().tolist() if pool._bitmap is None else pool._bitmap._words.tobytes()
    return pool.table.state.tobytes(), pool.table.owner.tobytes(), counts, order, group_pages(allocator, pool)


def plain_window_pages(allocator):
    """The mapping to the window side, of an allocator that has one."""
    return allocator.window_pages.tolist() if isinstance(allocator, WindowSide) else None


def plain_device_pages(allocator):
    """The mapping to the device side and how full it is, of an allocator that has one."""
    if not isinstance(allocator, HiSparseAllocator | CompressedHiSparseAllocator):
        return None
    lens = zip(allocator.device_pages.tolist(), allocator._hot.lens.tolist(), strict=True)
    return [(page, length if page > 0 else 0) for page, length in lens]


class Pair:
    """Does everything twice and insists on one answer, one error and one state.

    Tensors that come out are overwritten by the test, as are those that went in: the allocator may depend on neither.
    """

    real_names: Mapping[str, str] = {  # of operations that the model calls by shorter names
        "begin": "free_group_begin",
        "end": "free_group_end",
        "extend": "alloc_extend",
        "decode": "alloc_decode",
        "tail": "alloc_extend_swa_tail",
        "logical_only": "alloc_logical_only",
        "buffer": "alloc_device_buffer",
        "free_indices": "free_hisparse_indices",
    }

    def __init__(self, size, page_size, order, *, cls=PagedAllocator):
        args = (size,) if cls is TokenAllocator else (size, page_size)
        self._start(cls(*args, order=order), AllocatorModel(size // page_size, page_size, order))

    def _start(self, real, model):
        self.real = real
        self.model = model
        self.books = snapshot(self.real)  # as they were after the last call
        self.fault = None  # the error class of the last call

    def alloc(self, num_tokens, owner=0):
        """Whole pages."""
        return self._both(lambda: self.model.alloc(num_tokens, owner), lambda: self.real.alloc(num_tokens, owner))

    def extend(self, prefix_lens, seq_lens, last_locs, owners=None, form="list"):
        """Grow rows."""
        given = [FORMS[form](list(column)) for column in (prefix_lens, seq_lens, last_locs)]
        tags = None if owners is None else FORMS[form](list(owners))
        return self._both(
            lambda: self.model.extend(prefix_lens, seq_lens, last_locs, owners),
            lambda: self.real.alloc_extend(*given, tags),
            *given,
            tags,
        )

    def decode(self, seq_lens, last_locs, owners=None, form="list"):
        """Grow rows by a token each."""
        given = [FORMS[form](list(column)) for column in (seq_lens, last_locs)]
        tags = None if owners is None else FORMS[form](list(owners))
        return self._both(
            lambda: self.model.decode(seq_lens, last_locs, owners),
            lambda: self.real.alloc_decode(*given, tags),
            *given,
            tags,
        )

    def free(self, slots, form="list"):
        """Free slots."""
        given = FORMS[form](list(slots))
        self._both(lambda: self.model.free(slots), lambda: self.real.free(given), given)

    def free_segment(self, slots, start_pos=0, form="list"):
        """Free a stretch of a row."""
        given = FORMS[form](list(slots))
        self._both(
            lambda: self.model.free_segment(slots, start_pos),
            lambda: self.real.free_segment(given, start_pos=start_pos),
            given,
        )

    def free_segments(self, pairs, form="list"):
        """Free several stretches."""
        given = [(FORMS[form](list(slots)), start_pos) for slots, start_pos in pairs]
        self._both(
            lambda: self.model.free_segments(pairs),
            lambda: self.real.free_segments(given),
            *[slots for slots, _ in given],
        )

    def begin(self):
        """Open a group."""
        self._both(self.model.begin, self.real.free_group_begin)

    def end(self):
        """Close the group."""
        self._both(self.model.end, self.real.free_group_end)

    def clear(self):
        """Start anew."""
        self._both(self.model.clear, self.real.clear)

    def replay(self, path):
        """Repeat operations, (name, arguments) each, that agreed before, without comparing."""
        for name, *args in path:
            getattr(self.model, name)(*args)
            getattr(self.real, self.real_names.get(name, name))(*args)
        self.books = snapshot(self.real)

    def look(self):
        """After something was done to both by hand: compare, and go on from there."""
        self.books = snapshot(self.real)
        self.check()

    def check(self):
        """Every book of the allocator says what the model says."""
        model, real, page_size = self.model, self.real, self.model.page_size
        assert real.page_states().tolist() == model.states()
        assert real._pool.contents().tolist() == model.free_pages
        assert group_pages(real, real._pool) == model.group
        assert real.available_size() == model.available()
        assert real.parked_size() == model.num_parked() * page_size
        assert real.owners() == model.owners()
        real.audit()

    def _both(self, ask_model, ask_real, *given):
        expected, fault = outcome(ask_model)
        got, error = outcome(ask_real)
        assert type(error) is type(fault), f"{error!r} instead of {fault!r}"
        assert plain(got) == expected
        for values in given:
            overwrite(values)
        before, self.books = self.books, snapshot(self.real)
        self.fault = None if fault is None else type(fault)
        if fault is None:
            self.check()
        else:
            assert str(fault) in str(error)
            assert ". " in str(error), "the second sentence says the way out"
            assert self.books == before
        return expected


def plain(slots):
    """Slots as a list; the tensor is checked and then overwritten."""
    if slots is None:
        return None
    assert slots.dtype == torch.int64
    assert slots.ndim == 1
    assert slots.is_contiguous()
    values = slots.tolist()
    slots.fill_(1)
    return values


def outcome(call):
    """What a call returns, or the error that it raises."""
    try:
        return call(), None
    except KVSteadError as error:
        return None, error
