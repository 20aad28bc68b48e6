import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import InvalidSize, LayoutError
from kvstead.pools import ByteArena, EntrySpec, Place, byte_arena


def ints(*values):
    return np.array(values, dtype=np.int64)


def spec(name, entry_bytes, page_size=1, place=Place.LOW):
    return EntrySpec(name, entry_bytes, page_size, place, align=1)


def arena_of(total, *specs, **keywords):
    arena = ByteArena(total, **keywords)
    arena.register(specs)
    return arena


@pytest.mark.parametrize(
    ("total", "entries", "page_size", "expected"),
    [
        (320, (16, 32), 1, {"sink": 32, "first": (2, 1), "num": (20, 10)}),
        (1600, (16, 32), 4, {"sink": 128, "first": (2, 1), "num": (25, 12)}),
        (280, (24, 8), 1, {"sink": 24, "first": (1, 3), "num": (11, 35)}),
    ],
)
def test_grids_are_those_worked_out_by_hand(total, entries, page_size, expected):
    """Sink, first page above it and number of pages, for sizes worked out by hand."""
    specs = [spec("a", entries[0], page_size), spec("b", entries[1], page_size, Place.HIGH)]
    arena = arena_of(total, *specs)
    assert arena.sink_bytes == expected["sink"]
    assert tuple(map(arena.first_page, specs)) == expected["first"]
    assert tuple(map(arena.num_pages, specs)) == expected["num"]


@given(st.integers(20, 400), st.lists(st.tuples(st.integers(1, 13), st.integers(1, 4)), min_size=1, max_size=4))
def test_every_page_lies_between_sink_and_end(total, sizes):
    """The first page is the first whole one above the sink, the last the last whole one, and page 0 is in the sink."""
    specs = [spec(str(at), entry, page) for at, (entry, page) in enumerate(sizes)]
    arena = ByteArena(total)
    try:
        arena.register(specs)
    except LayoutError:
        sink = max(one.page_bytes for one in specs)
        assert any(-(-sink // one.page_bytes) * one.page_bytes + one.page_bytes > total for one in specs)
        assert arena.specs == ()
        return
    for one in specs:
        first, num, size = arena.first_page(one), arena.num_pages(one), one.page_bytes
        assert (first - 1) * size < arena.sink_bytes <= first * size
        assert size <= arena.sink_bytes
        assert num * size <= total < (num + 1) * size
        assert first < num
        assert arena.pages(one).shape == (num, size)


def test_views_share_the_bytes():
    """Page p of a pool is bytes p * page_bytes and on, in the one buffer, which starts as zeros."""
    small, large = spec("a", 3), spec("b", 4, 2)
    arena = arena_of(40, small, large)
    assert not arena.storage.any()
    arena.storage.copy_(torch.arange(40, dtype=torch.uint8))
    for one in (small, large):
        view = arena.pages(one)
        assert view.data_ptr() == arena.storage.data_ptr()
        for page in range(arena.num_pages(one)):
            at = page * one.page_bytes
            assert view[page].tolist() == list(range(at, at + one.page_bytes))


@pytest.mark.parametrize("page_bytes", [5, 6, 12, 8])
@pytest.mark.parametrize("copy_bytes", [1, 12, 20, 64 << 20])
def test_pages_are_copied_whole(page_bytes, copy_bytes, monkeypatch):
    """Copies go pairwise, however few fit one batch; pages of other pools on other bytes stay as they are."""
    monkeypatch.setattr(byte_arena, "_HOST_COPY_BYTES", copy_bytes)
    pool = spec("a", page_bytes)
    arena = arena_of(10 * page_bytes + 3, pool, spec("b", 1))
    pages = arena.pages(pool)
    pages[:] = torch.arange(10, dtype=torch.uint8)[:, None]
    arena.copy(pool, ints(1, 2, 5), ints(9, 4, 6))
    assert pages[:, 0].tolist() == [0, 9, 4, 3, 4, 6, 6, 7, 8, 9]
    assert (pages == pages[:, :1]).all()
    arena.copy(pool, ints(), ints())
    assert pages[:, 0].tolist() == [0, 9, 4, 3, 4, 6, 6, 7, 8, 9]
    assert not arena.storage[10 * page_bytes :].any()


@pytest.mark.parametrize("page_bytes", [3, 2, 4, 16])
def test_pages_are_zeroed_and_their_neighbours_are_not(page_bytes):
    """Every byte of the named pages is zeroed, and no other."""
    pool = spec("a", page_bytes)
    arena = arena_of(7 * page_bytes - 1, pool)
    arena.storage.fill_(255)
    arena.zero(pool, ints(2, 5))
    arena.zero(pool, ints())
    zeros = [page * page_bytes + at for page in (2, 5) for at in range(page_bytes)]
    assert torch.nonzero(arena.storage == 0)[:, 0].tolist() == zeros


def test_an_arena_without_storage_only_counts():
    """Without storage the arithmetic is the same, `copy` and `zero` do nothing, and `pages` raises."""
    pool = spec("a", 1 << 20, 64)
    arena = arena_of(1 << 50, pool, storage=False)
    assert arena.storage is None
    assert (arena.sink_bytes, arena.first_page(pool), arena.num_pages(pool)) == (1 << 26, 1, 1 << 24)
    arena.copy(pool, ints(1), ints(2))
    arena.zero(pool, ints(1))
    with pytest.raises(LayoutError, match="storage=True"):
        arena.pages(pool)


@pytest.mark.parametrize("total", [0, -1])
def test_an_arena_of_no_bytes_is_refused(total):
    """A size below 1 byte is refused."""
    with pytest.raises(InvalidSize, match=f"total_bytes is {total}"):
        ByteArena(total)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([], "pools are none"),
        ([spec("a", 2), spec("b", 4), spec("a", 4)], "'a', 'b', 'a'"),
        ([spec("a", 2), spec("b", 11)], "20 bytes holds no page of 11 bytes of pool 'b' above its sink of 11 bytes"),
        ([spec("a", 9), spec("b", 10)], "20 bytes holds no page of 9 bytes of pool 'a' above its sink of 10 bytes"),
    ],
)
def test_unusable_pools_are_refused(specs, words):
    """No pools, equal names, or a pool without a page above the sink are refused; others can still be registered."""
    arena = ByteArena(20)
    with pytest.raises(LayoutError, match=words):
        arena.register(specs)
    arena.register([spec("a", 10)])
    assert (arena.sink_bytes, arena.num_pages(arena.specs[0])) == (10, 2)


def test_pools_are_registered_once():
    """A second set of pools would own the same bytes."""
    arena = arena_of(20, spec("a", 2))
    with pytest.raises(LayoutError, match=r"'a'.*another arena"):
        arena.register([spec("b", 2)])
