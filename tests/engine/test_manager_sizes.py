"""Building a manager, and one that holds tensors too."""

import numpy as np
import pytest
import torch

from kvstead.engine import KVCacheManager
from kvstead.errors import InvalidSize, LayoutError, RequestError
from kvstead.model import CacheKind, LayerCache, ModelLayout, TokenCache
from tiny_model import tiny_layout, tiny_manager

TOKEN_BYTES = 32


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("num_pages", [1, 2, 7])
def test_bytes_and_slots_are_two_names_of_one_size(page_size, num_pages):
    """So many slots take the bytes that give as many slots, and one byte less gives a page less."""
    by_slots = tiny_manager(num_pages * page_size, page_size)
    size = by_slots.total_bytes
    assert size == (num_pages + 1) * page_size * TOKEN_BYTES
    for more in (0, 1, page_size * TOKEN_BYTES - 1):
        by_bytes = KVCacheManager(tiny_layout(), size + more, page_size=page_size, max_length=64, storage=False)
        assert by_bytes.num_slots == by_slots.num_slots
        stats = by_bytes.stats()
        assert stats.padding == page_size * TOKEN_BYTES + more
        assert sum(stats.by_state.values()) == stats.total_bytes == size + more
    if num_pages > 1:
        smaller = KVCacheManager(tiny_layout(), size - 1, page_size=page_size, max_length=64, storage=False)
        assert smaller.num_slots == (num_pages - 1) * page_size


def test_slots_are_rounded_to_whole_pages():
    """Slots that fill no page are not counted as memory."""
    manager = tiny_manager(19, 4)
    assert (manager.num_slots, manager.total_bytes) == (16, 20 * TOKEN_BYTES)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, InvalidSize, "exactly one"),
        ({"num_bytes": 4096, "num_slots": 64}, InvalidSize, "exactly one"),
        ({"num_slots": 0}, LayoutError, "Give 1024 bytes or more"),
        ({"num_slots": 15}, LayoutError, "Give 1024 bytes or more"),
        ({"num_bytes": 1023}, LayoutError, "1023 bytes hold no page of 16"),
        ({"num_slots": -16}, InvalidSize, "-16"),
        ({"num_bytes": -1}, InvalidSize, "-1"),
        ({"num_slots": 64, "page_size": 0}, InvalidSize, "page size is 0"),
        ({"num_bytes": 4096, "page_size": -2}, InvalidSize, "page size is -2"),
        ({"num_slots": 64, "max_requests": -1}, InvalidSize, "-1 rows"),
        ({"num_slots": 64, "max_length": -1}, InvalidSize, "-1 slots"),
        ({"num_slots": 64, "policy": "newest"}, InvalidSize, "newest"),
    ],
)
def test_sizes_that_make_no_memory_are_refused(options, error, words):
    """Each raises its own fault and names the number."""
    with pytest.raises(error, match=words):
        KVCacheManager(tiny_layout(), **{"max_length": 64, "storage": False, **options})


def test_kinds_that_are_not_managed_are_named():
    """An encoder's output is refused before anything is allocated."""
    cross = TokenCache(CacheKind.CROSS, 1, 4, 4, "bfloat16", 8, 8)
    with pytest.raises(LayoutError, match="cross"):
        KVCacheManager(ModelLayout("listener", (LayerCache(0, tokens=cross),)), num_slots=64)


@pytest.mark.parametrize("tokens", [[1, 2, 3, 4, 5, 6, 7, 8, 9], list(range(9))])
@pytest.mark.parametrize("page_size", [1, 4])
def test_tokens_come_in_any_form(tokens, page_size):
    """Lists, tensors, read-only, strided and nested arrays of any integer type are the same request."""
    manager = tiny_manager(64, page_size)
    forms = [tokens, torch.tensor(tokens), torch.tensor(tokens, dtype=torch.int32), np.array(tokens, dtype=np.uint8)]
    for dtype in (np.int32, np.int64):
        array = np.array(tokens, dtype=dtype)
        fixed = array.copy()
        fixed.setflags(write=False)
        forms += [array, fixed, np.repeat(array, 2)[::2], array.reshape(3, 3)]
    for i, form in enumerate(forms):
        cached = 8 if i else 0
        assert manager.peek(form)[0] == cached
        lease = manager.match(form)
        assert lease.num_cached == cached
        assert manager.known_tokens(lease.row).tolist() == tokens
        manager.extend([lease.row], [9])
        manager.commit([lease.row], [9], [1])
        manager.finish(lease.row)
        manager.audit()


def test_tokens_that_are_no_integers_are_refused():
    """Floats and strings take no row."""
    manager = tiny_manager(8)
    for tokens in ([1.5], ["a"], np.ones(2)):
        with pytest.raises(TypeError, match="expected integers"):
            manager.match(tokens)
    with pytest.raises(RequestError, match="no tokens"):
        manager.match(np.empty(0))
    assert manager.table.live_rows().size == 0


def test_pages_are_tagged_with_their_owner():
    """The request that opened the row owns the pages it takes, in extend and decode."""
    manager = tiny_manager(16, 2)
    for owner, tokens in ((5, [1, 2, 3]), (-6, [4])):
        row = manager.match(tokens, owner=owner).row
        manager.extend([row], [len(tokens)])
        for _ in range(2):
            manager.decode([row])
    assert manager.allocator.owners() == {5: 3, -6: 2}


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_what_is_written_is_read_from_shared_pages(page_size):
    """With storage, entries that one request wrote are there for the next one that shares its prefix."""
    manager = tiny_manager(16, page_size, storage=True)
    assert manager.pool.num_bytes == manager.total_bytes
    row = manager.match([1, 2, 3, 4, 5]).row
    slots = manager.extend([row], [5])
    entries = torch.arange(5 * 4, dtype=torch.bfloat16).reshape(5, 1, 4)
    for layer in range(2):
        manager.pool.write(layer, slots, entries + layer, -entries)
    manager.commit([row], [5], [6])
    manager.finish(row)
    lease = manager.match([1, 2, 3, 4, 9])
    shared = torch.from_numpy(manager.table.read(lease.row).copy())
    assert lease.num_cached == 4
    for layer in range(2):
        key, value = manager.pool.read(layer, shared)
        assert torch.equal(key, entries[:4] + layer)
        assert torch.equal(value, -entries[:4])


def test_books_alone_hold_no_tensors():
    """Without storage there is no pool, whatever the size."""
    manager = KVCacheManager(ModelLayout.preset("llama-3.1-8b"), 80 * 2**30, storage=False)
    assert manager.pool is None
    assert manager.num_slots == 80 * 2**30 // (131072 * 16) * 16 - 16


def test_a_name_and_a_size_as_text_are_a_layout_and_bytes():
    """A bundled model's name and a size as people write it give the same manager as a layout and a number."""
    named = KVCacheManager("llama-3.1-8b", "4GiB", storage=False)
    counted = KVCacheManager(ModelLayout.preset("llama-3.1-8b"), 4 << 30, storage=False)
    assert named.layout == counted.layout
    assert (named.total_bytes, named.num_slots) == (counted.total_bytes, counted.num_slots)


@pytest.mark.parametrize(
    ("model", "size", "error", "words"),
    [
        ("llama-3.1-8b", 4e9, TypeError, "num_bytes is 4000000000.0"),
        ("llama-3.1-8b", "4 gibs", InvalidSize, "'4 gibs' is not a size"),
        ("llama-3.1-8", "4GiB", LayoutError, "Close names: llama-3.1-8b"),
    ],
)
def test_what_is_no_size_or_model_is_named(model, size, error, words):
    """A float, a text that is no size and an unknown model are refused by what was passed."""
    with pytest.raises(error, match=words):
        KVCacheManager(model, size, storage=False)
