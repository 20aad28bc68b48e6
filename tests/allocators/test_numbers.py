"""Numbers of any integer kind count as Python's do, and anything else is refused before something changes."""

import numpy as np
import pytest

from kvstead import allocators
from kvstead.allocators import PagedAllocator, SWAAllocator, UnifiedMambaSWAAllocator, UnifiedSWAAllocator
from kvstead.arena import PoolChain
from kvstead.engine import KVCacheManager
from kvstead.pages import FreeList
from kvstead.pools import ByteArena, EntrySpec, Place, RequestTable
from kvstead.prefix import PrefixTree
from tiny_model import tiny_layout, tiny_manager

NUMBERS = [np.uint8, np.int8, np.uint32, np.int32, np.int64]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_of_numpy_do_not_wrap(number):
    """Slots, pages, states, sizes and owners of any width: the counts stay whole, of any size."""
    allocator = PagedAllocator(1000, 1)
    slots = allocator.alloc(number(100), owner=number(7))
    assert slots.numel() == 100
    assert type(allocator.available_size()) is int
    assert allocator.owners() == {7: 100}
    allocator.free(slots)
    allocator.audit()
    large = PagedAllocator(1 << 33, 1 << 12)
    large.alloc(np.int32(1 << 12))
    assert large.available_size() == (1 << 33) - (1 << 12)
    small = PagedAllocator(number(100), number(4))
    small.alloc(96)
    assert (small.size, small.available_size()) == (100, 4)
    unified = UnifiedMambaSWAAllocator(12_000, page_size=number(2), full=number(8), window=4, state=8)
    assert unified.fits(number(100), num_window_tokens=number(4), num_states=number(2))
    assert unified.states.alloc(number(2)).numel() == 2
    assert FreeList(number(100)).take(number(100)).size == 100
    assert RequestTable(number(100), number(100)).take(number(90)).size == 90


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_of_numpy_size_a_manager(number):
    """Sizes, owners and growth."""
    manager = KVCacheManager(
        tiny_layout(), num_slots=number(100), page_size=number(4), max_requests=number(9), max_length=number(100)
    )
    lease = manager.match(np.arange(90) % 5, owner=number(3))
    assert manager.growth(lease.row, number(90)) == 90
    assert manager.extend([lease.row], [90]) is not None
    assert manager.allocator.owners() == {3: 23}
    manager.append(lease.row, 4)
    manager.append(lease.row, np.int64(3))
    assert manager.known_tokens(lease.row)[-2:].tolist() == [4, 3]


@pytest.mark.parametrize(
    "call",
    [
        lambda allocator: allocator.alloc(4.0),
        lambda allocator: allocator.alloc(4, owner=1.5),
        lambda allocator: allocator.alloc("4"),
        lambda allocator: allocator.alloc(None),
    ],
)
@pytest.mark.parametrize("kind", ["PagedAllocator", "SWAAllocator", "HiSparseAllocator", "UnifiedSWAAllocator"])
def test_what_is_no_whole_number_is_refused(kind, call):
    """The error says what was passed; nothing is handed out."""
    if kind == "UnifiedSWAAllocator":
        allocator = UnifiedSWAAllocator(4096, page_size=4, full=8, window=4)
    elif kind == "SWAAllocator":
        allocator = SWAAllocator(64, 64, 4)
    else:
        allocator = getattr(allocators, kind)(64, 4)
    before = allocator.available_size()
    with pytest.raises(TypeError, match="Pass a whole number"):
        call(allocator)
    allocator.audit()
    assert allocator.available_size() == before


def test_arrays_that_cannot_be_written_are_read():
    """Tokens and slots from a buffer: matched, inserted and freed as any other array."""
    allocator = PagedAllocator(64, 4)
    tree = PrefixTree(allocator)
    for dtype in (np.int32, np.int64):
        tokens = np.frombuffer(np.arange(9, dtype=dtype).tobytes(), dtype=dtype)
        slots = np.frombuffer(allocator.alloc(12).numpy()[:9].tobytes(), dtype=np.int64)
        tree.insert(tokens, slots)
        assert tree.match(tokens).num_tokens == 8
        unaligned = np.frombuffer(b"x" + tokens.tobytes(), dtype=dtype, offset=1)
        assert tree.match(unaligned).num_tokens == 8
        tree.clear()
        allocator.clear()
    manager = tiny_manager(16)
    assert manager.match(np.frombuffer(np.arange(4, dtype=np.int32).tobytes(), dtype=np.int32)) is not None


def small_chain(num_virtual, **settings):
    specs = [
        EntrySpec("window", 16, page_size=4, place=Place.LOW, align=1),
        EntrySpec("full", 32, page_size=4, place=Place.HIGH, align=1),
    ]
    return PoolChain(ByteArena(4096), specs, num_virtual=num_virtual, **settings)


@pytest.mark.parametrize("may_move", [True, False])
@pytest.mark.parametrize("num_virtual", [{"window": 3}, {"full": 2}, {"full": 4, "window": 1}])
def test_ids_bound_what_fits(num_virtual, may_move):
    """A chain of few ids: capacity and `fits` count them, and what they say can be taken."""
    allocator = UnifiedSWAAllocator.over(small_chain(num_virtual, may_move=lambda: may_move))
    most = min(num_virtual.values()) * 4
    assert allocator.available_size() == most
    assert allocator.fits(most)
    assert not allocator.fits(most + 4)
    assert allocator.alloc(most + 4) is None
    assert allocator.alloc(most) is not None
    assert allocator.available_size() == 0
    allocator.audit()


class Fence:
    """Raises at one of its calls."""

    def __init__(self):
        self.fails_in = None

    def __call__(self):
        """Count down."""
        if self.fails_in is not None:
            self.fails_in -= 1
            if self.fails_in < 0:
                raise RuntimeError("the device is gone")


@pytest.mark.parametrize("is_eager", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_fence_that_raises_changes_nothing(seed, is_eager):
    """Any calls: where the fence raises, in the first place, nothing is taken, freed or parked for ever."""
    rng, fence = np.random.default_rng(seed), Fence()
    specs = {"full": EntrySpec("full", 32, zero_on_take=True), "window": EntrySpec("window", 16, zero_on_take=True)}
    allocator = UnifiedSWAAllocator(2048, page_size=2, **specs, eager=is_eager, fence=fence)
    rows, num_raised = [], 0
    for _ in range(200):
        before = allocator.available_size(), allocator.live_size(), allocator.parked_size()
        fence.fails_in = 0 if rng.random() < 1 / 3 else None
        verb = rng.choice(["alloc", "free", "free_swa", "begin", "end"])
        try:
            if verb == "alloc" and (row := allocator.alloc(int(rng.integers(1, 6)) * 2)) is not None:
                rows.append(row)
            elif verb == "free" and rows:
                allocator.free(rows[0])
                rows.pop(0)
            elif verb == "free_swa" and rows:
                allocator.free_swa(rows[-1])
            elif verb == "begin" and allocator.free_group is None:
                allocator.free_group_begin()
            elif verb == "end":
                allocator.free_group_end()
        except RuntimeError:
            num_raised += 1
            fence.fails_in = None
            assert (allocator.available_size(), allocator.live_size(), allocator.parked_size()) == before
        fence.fails_in = None
        allocator.audit()
    assert num_raised > 3
    allocator.free_group_end()
    for row in rows:
        allocator.free(row)
    assert allocator.live_size() == 0
