"""What a fake model writes to: one number for each token of each side, and one for each row's state.

`IdMemory` keeps them by slot id, where a manager has no storage. `PoolMemory` writes them into the manager's own
tensors, over all bytes of an entry, so that it finds out when pages were moved wrongly or two entries overlap.
"""

import numpy as np
import torch

from kvstead.arena import PoolChain
from kvstead.pages.amounts import FULL, STATE, WINDOW

POISON = -1  # all bits set: in floating point no number
TORN = -2  # what is read where the bytes of one entry do not agree
EMPTY = 0  # the state of an empty sequence, and bytes that were zeroed


def memory_of(manager):
    """The memory that goes with what the manager has."""
    has_tensors = any((manager.pool, manager.window_pool, manager.state_pool))
    return PoolMemory(manager) if has_tensors else IdMemory(manager)


class IdMemory:
    """Numbers by slot id. Follows the copies of states that the manager orders, since only it makes them."""

    zeroes_pages = frozenset()

    def __init__(self, manager):
        self.manager = manager
        sizes = {FULL: manager.num_slots if manager.layout.full_bytes_per_token else 0}
        sizes[WINDOW] = manager.num_window_slots
        sizes = {side: size + manager.page_size for side, size in sizes.items()} | {STATE: manager.num_states + 1}
        self._values = {side: np.full(size, POISON, dtype=np.int64) for side, size in sizes.items()}
        self.wait = lambda: None  # until all that was launched is done
        manager.memory.copy_state = self._copy_state
        manager.memory.zero_state = self._zero_state

    def places(self, side, slots):
        """Where slots of one side are; `slots` are full slots, or the state slots themselves."""
        ids = np.asarray(slots, dtype=np.int64)
        if side == WINDOW:  # by their own ids, which stay while pages without bytes are said to move
            page_size = self.manager.page_size
            return self.manager.allocator.window_pages[ids // page_size] * page_size + ids % page_size
        return ids

    def state_places(self, rows):
        """Where the states of rows are."""
        return self.manager.row_states.slot[rows].copy()

    def write(self, side, places, values):
        """One number a place."""
        self._values[side][places] = values

    def read(self, side, places):
        """The numbers that are there."""
        return self._values[side][places].tolist()

    def free(self):
        """What has no owner now, for `poison`."""
        allocator = self.manager.allocator
        states = {FULL: allocator.page_states()}
        if self.manager.num_window_slots:
            states[WINDOW] = allocator.window_page_states()
        if allocator.states is not None:
            states[STATE] = allocator.states.page_states()
        return {side: np.flatnonzero(state != 1) for side, state in states.items()}

    def poison(self, free):
        """Overwrite it, as another user of the memory might."""
        for side, pages in free.items():
            if self._values[side].size > self.manager.page_size or side == STATE:
                size = 1 if side == STATE else self.manager.page_size
                self._values[side].reshape(-1, size)[pages] = POISON

    def _copy_state(self, source, target):
        self.wait()
        self._values[STATE][target] = self._values[STATE][source]

    def _zero_state(self, slot):
        self.wait()
        self._values[STATE][slot] = EMPTY


class PoolMemory(IdMemory):
    """The same in the tensors of the manager's pools; places are rows of them."""

    def __init__(self, manager):
        self.manager = manager
        self.wait = lambda: None
        sides = {
            FULL: [tensor for pool in [manager.pool] if pool for tensor in (*pool.key, *pool.value)],
            WINDOW: [tensor for pool in [manager.window_pool] if pool for tensor in (*pool.key, *pool.value)],
            STATE: [part for pool in [manager.state_pool] if pool for parts in pool.parts for part in parts.values()],
        }
        self._numbers = {side: [numbers_of(t) for t in tensors if t is not None] for side, tensors in sides.items()}
        self.chain = manager.chain if isinstance(manager.chain, PoolChain) else None
        if self.chain is not None:
            self.zeroes_pages = {name for name, pool in self.chain.pools.items() if pool.spec.zero_on_take}

    def places(self, side, slots):
        """Rows of the side's tensors."""
        ids = torch.as_tensor(slots, dtype=torch.int64)
        if side == STATE:
            return self.manager.allocator.states.physical_slots(ids).numpy()
        return (self.manager.physical_slots(ids) if side == FULL else self.manager.window_slots(ids)).numpy()

    def state_places(self, rows):
        """Rows of the states' tensors."""
        return self.manager.state_slots(rows).numpy()

    def write(self, side, places, values):
        """All bytes of an entry say the same number."""
        column = np.asarray(values, dtype=np.int32).reshape(-1, 1)
        for numbers in self._numbers[side]:
            numbers[places] = column

    def read(self, side, places):
        """The numbers that entries say, `TORN` where they do not say one."""
        found = np.concatenate([numbers[places] for numbers in self._numbers[side]], axis=1)
        agree = (found == found[:, :1]).all(axis=1)
        return np.where(agree, found[:, 0], TORN).tolist()

    def free(self):
        """By side, or in an arena a mask of bytes: all but those of live pages."""
        if self.chain is None:
            return super().free()
        mask = np.ones(self.chain.arena.total_bytes, dtype=bool)
        for pool in self.chain.pools.values():
            v2p = pool.map.v2p
            size = pool.spec.page_bytes
            mask[: mask.size // size * size].reshape(-1, size)[v2p[v2p > 0]] = False
        return mask

    def poison(self, free):
        """As `free` says."""
        if self.chain is not None:
            self.chain.arena.storage.numpy()[free] = 255
            return
        for side, pages in free.items():
            size = 1 if side == STATE else self.manager.page_size
            slots = (pages[:, None] * size + np.arange(size)).ravel()
            for numbers in self._numbers[side]:
                numbers[slots] = POISON


class Fence:
    """What a manager calls before it writes to pages: it waits for all launched steps, and notes that it did."""

    def __init__(self):
        self.wait = lambda: None  # a runner puts itself here
        self.num_calls = 0

    def __call__(self):
        """Wait."""
        self.num_calls += 1
        self.wait()


class Switch:
    """A `may_move` that is turned on and off."""

    def __init__(self):
        self.is_on = True

    def __call__(self):
        """Whether pages may move now."""
        return self.is_on


def numbers_of(tensor):
    """The bytes of each entry as numbers, int32[rows, *]: a view."""
    return tensor.view(torch.uint8).flatten(1).numpy().view(np.int32)
