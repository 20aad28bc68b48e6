import numpy as np
import pytest

from kvstead.errors import DoubleFree
from kvstead.pages import FreeList


def test_refused_parks_use_up_no_room():
    """However often a park is refused while others are open, the room for ids does not grow, and theirs stay."""
    pool = FreeList(100)
    pages = pool.take(100)
    kept = pool.park(pages[:7])
    twice = pages[7:57].repeat(2)
    sizes = set()
    for _ in range(50):
        with pytest.raises(DoubleFree):
            pool.park(twice)
        with pytest.raises(DoubleFree):
            pool.park_segment(twice, 1)
        with pytest.raises(DoubleFree):
            pool.park_slots(np.append(pages[7:57], pages[0]), 1)
        sizes.add(pool._lot.size)
    assert len(sizes) == 1
    assert kept.tolist() == pages[:7].tolist()


def test_many_slots_of_few_pages_use_the_room_of_the_pages():
    """A park keeps an id for each page, not for each slot."""
    pool = FreeList(64)
    slots = (pool.take(64)[:, None] * 16 + np.arange(16)).reshape(-1)
    parkings = [pool.park_slots(part, 16) for part in slots.reshape(-1, 32)]
    assert pool._lot_used == 64
    assert np.concatenate(parkings).tolist() == list(range(1, 65))


def test_room_is_used_anew_once_nothing_is_parked():
    """Group after group, the room for parked ids is that of one group."""
    pool = FreeList(64)
    pages = pool.take(64)
    sizes = set()
    for _ in range(50):
        parkings = [pool.park(part) for part in pages.reshape(4, 16)]
        for parking in parkings:
            pool.restore(parking)
        sizes.add(pool._lot.size)
    assert max(sizes) <= 2 * 64
