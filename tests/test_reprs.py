"""The repr of what callers hold says what it is and how full."""

import numpy as np
import pytest

from kvstead import ByteArena, DevicePagedAllocator, KVCacheManager, PagedAllocator, Request, Scheduler, SWAAllocator


@pytest.mark.parametrize(
    ("allocator", "empty", "filled"),
    [
        (PagedAllocator, "full 0 of 64 pages live", "full 3 of 64 pages live"),
        (DevicePagedAllocator, "full 0 of 64 pages live", "full 3 of 64 pages live"),
        (
            lambda size, page_size: SWAAllocator(size, 512, page_size),
            "full 0 of 64 pages live, window 0 of 32 pages live",
            "full 3 of 64 pages live, window 3 of 32 pages live",
        ),
    ],
)
def test_allocators_say_how_many_pages_are_live(allocator, empty, filled):
    """Each pool is named with its live pages, on the host and on a device."""
    pages = allocator(1024, 16)
    assert repr(pages) == f"<{type(pages).__name__}: {empty}, page size 16>"
    pages.alloc(48)
    assert repr(pages) == f"<{type(pages).__name__}: {filled}, page size 16>"


def test_managers_and_trees_say_what_is_live_and_cached():
    """A running request's bytes are live; when it has ended its whole pages are cached."""
    manager = KVCacheManager("smollm2-135m", "64MiB", storage=False)
    row = manager.match(np.arange(40)).row
    manager.extend([row], [40])
    live = manager.stats().live
    what = "<KVCacheManager of smollm2-135m, static layout:"
    assert live == 3 * 16 * manager.token_bytes
    assert repr(manager) == f"{what} {live:,} bytes live, 0 cached, of 67,108,864>"
    manager.commit([row], [40], [3])
    manager.finish(row)
    assert repr(manager) == f"{what} 0 bytes live, {32 * manager.token_bytes:,} cached, of 67,108,864>"
    assert repr(manager.tree) == "<PrefixTree: 32 tokens cached, 32 of them evictable>"


def test_chains_and_arenas_say_which_pools_share_them():
    """An arena names its pools, and its chain the bytes that are free."""
    assert repr(ByteArena(100)) == "<ByteArena of 100 bytes, without pools>"
    manager = KVCacheManager("gpt-oss-20b", "64MiB", pool_layout="unified", storage=False, max_length=4096)
    assert repr(manager.chain.arena) == "<ByteArena of 67,108,864 bytes, for 'window', 'full'>"
    free = manager.stats().free
    assert repr(manager.chain) == f"<PoolChain of window, full: {free:,} of 67,108,864 bytes free>"
    manager.allocator.alloc(160)
    assert manager.stats().free < free
    assert repr(manager.chain) == f"<PoolChain of window, full: {manager.stats().free:,} of 67,108,864 bytes free>"


def test_schedulers_and_requests_say_where_they_stand():
    """A scheduler counts its requests; a request says its state and sizes, not its tokens."""
    scheduler = Scheduler(KVCacheManager("smollm2-135m", "64MiB", storage=False))
    request = Request("a", np.arange(3), 4)
    assert repr(request) == "<Request 'a': waiting, 3 prompt tokens, 4 new ones at most>"
    scheduler.add(request)
    assert repr(scheduler).startswith("<Scheduler: 0 running, 1 waiting, on <KVCacheManager of smollm2-135m")
    scheduler.schedule()
    assert repr(scheduler).startswith("<Scheduler: 1 running, 0 waiting, on ")
    assert repr(request) == "<Request 'a': decode, 3 prompt tokens, 4 new ones at most>"
