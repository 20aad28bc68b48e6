"""Building a manager of a model with windows, and one that holds tensors too."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvstead.engine import KVCacheManager, Request
from kvstead.engine.admission import Admission
from kvstead.errors import ForeignPage, InvalidSize, LayoutError
from kvstead.model import ModelLayout
from kvstead.model.sizing import split_for_slots
from kvstead.model.window import Window
from tiny_model import LAYER_BYTES, tiny_layout, tiny_manager, tiny_window_layout

WITHOUT_STORAGE = {"max_requests": 4, "max_length": 64, "storage": False}


@given(
    page_size=st.integers(1, 5),
    span=st.integers(1, 20),
    num_pages=st.integers(1, 12),
    num_window_pages=st.integers(1, 12),
    max_length=st.integers(1, 30),
    pure=st.booleans(),
)
def test_a_window_side_below_one_window_is_refused(page_size, span, num_pages, num_window_pages, max_length, pure):
    """A manager is built if and only if its window side holds the window of the longest row that can be; it says so."""
    sides = {"num_slots": (num_window_pages if pure else num_pages) * page_size}
    if not pure:
        sides["num_window_slots"] = num_window_pages * page_size
    layout, sizes = tiny_window_layout(span, pure=pure), {"max_requests": 1, "max_length": max_length, **sides}
    longest = min(span, max_length, *([] if pure else [num_pages * page_size]))
    if num_window_pages * page_size >= longest:
        assert (
            tiny_manager(page_size=page_size, layout=layout, **sizes).num_window_slots == num_window_pages * page_size
        )
        return
    with pytest.raises(LayoutError, match=f"has {num_window_pages} pages of {page_size}.* of {span} tokens") as refused:
        tiny_manager(page_size=page_size, layout=layout, **sizes)
    enough = int(re.search(r"Give (\d+) window slots", str(refused.value))[1])
    sizes["num_slots" if pure else "num_window_slots"] = enough
    manager = tiny_manager(page_size=page_size, layout=layout, **sizes)
    request = Request(1, np.zeros(max_length, dtype=np.int64), 1)
    assert "window" not in Admission(manager, 0).why_never(request)


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("chunked", [False, True])
def test_sides_as_given_take_their_bytes_and_a_page_of_padding_each(page_size, chunked):
    """Slots of both sides are rounded to pages, and the stats of each side count its own padding."""
    layout = tiny_window_layout(4, chunked=chunked)
    manager = tiny_manager(7 * page_size, page_size, layout=layout, num_window_slots=4 * page_size)
    assert (manager.num_slots, manager.num_window_slots) == (7 * page_size, 4 * page_size)
    assert (manager.token_bytes, manager.window_token_bytes) == (LAYER_BYTES, LAYER_BYTES)
    assert manager.total_bytes == (8 + 5) * page_size * LAYER_BYTES
    assert manager.window == Window(4, is_chunked=chunked)
    sides = manager.stats().by_side
    assert list(sides) == ["full", "window"]
    assert sides["full"].total_bytes == 8 * page_size * LAYER_BYTES
    assert sides["window"].total_bytes == 5 * page_size * LAYER_BYTES
    assert all(side.padding == page_size * LAYER_BYTES for side in sides.values())
    assert (manager.split.num_slots, manager.split.num_window_slots) == (7 * page_size, 4 * page_size)
    assert manager.split.ratio == 4 / 7
    assert "given" in manager.split.source


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("options", [{}, {"expected_length": 40}, {"window_ratio": 0.5}])
def test_bytes_are_divided_as_the_split_says(page_size, options):
    """What bytes give is the largest split that they pay for; what is left over is padding of some side."""
    layout = tiny_window_layout(5)
    for num_bytes in range(3000, 5000, 333):
        manager = KVCacheManager(layout, num_bytes, page_size=page_size, **options, **WITHOUT_STORAGE)
        split, stats = manager.split, manager.stats()
        assert (manager.num_slots, manager.num_window_slots) == (split.num_slots, split.num_window_slots)
        assert manager.total_bytes == stats.total_bytes == num_bytes
        used = (split.num_slots + split.num_window_slots + 2 * page_size) * LAYER_BYTES
        assert 0 <= num_bytes - used < 2 * page_size * LAYER_BYTES
        assert stats.padding == num_bytes - used + 2 * page_size * LAYER_BYTES
        assert stats.free == (split.num_slots + split.num_window_slots) * LAYER_BYTES
        assert all(min(side.by_state.values()) >= 0 for side in stats.by_side.values())
        for state in stats.by_state:
            assert stats.by_state[state] == sum(side.by_state[state] for side in stats.by_side.values())
        assert ("given" in split.source) == ("window_ratio" in options)
        assert options.get("window_ratio", split.ratio) == split.ratio


def test_slots_come_with_the_windows_of_their_sequences():
    """Without a word on the window side it is derived, for the length that is expected."""
    layout = tiny_window_layout(5)
    long = KVCacheManager(layout, num_slots=640, page_size=1, expected_length=64, **WITHOUT_STORAGE)
    short = KVCacheManager(layout, num_slots=640, page_size=1, expected_length=8, **WITHOUT_STORAGE)
    half = KVCacheManager(layout, num_slots=640, page_size=1, window_ratio=0.5, **WITHOUT_STORAGE)
    assert long.split == split_for_slots(layout, 640, 1, expected_length=64)
    assert short.split == split_for_slots(layout, 640, 1, expected_length=8)
    assert 5 < long.num_window_slots < 320 < short.num_window_slots <= 640
    assert half.num_window_slots == 320


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("chunked", [False, True])
def test_model_of_windows_alone_names_its_tokens_without_bytes(page_size, chunked):
    """Its slots are window slots; there is a name for every token of every row, and for cached ones beside."""
    layout = tiny_window_layout(5, chunked=chunked, pure=True)
    manager = tiny_manager(7 * page_size, page_size, layout=layout, max_requests=3, max_length=50)
    assert manager.num_window_slots == 7 * page_size
    assert manager.num_slots >= 3 * 50 + 7 * page_size
    assert (manager.token_bytes, manager.window_token_bytes) == (0, 2 * LAYER_BYTES)
    assert manager.total_bytes == 8 * page_size * 2 * LAYER_BYTES
    assert list(manager.stats().by_side) == ["window"]
    assert manager.stats().by_state == manager.stats().by_side["window"].by_state
    by_bytes = KVCacheManager(layout, manager.total_bytes + 1, page_size=page_size, **WITHOUT_STORAGE)
    assert by_bytes.num_window_slots == 7 * page_size
    assert by_bytes.stats().padding == page_size * 2 * LAYER_BYTES + 1
    assert by_bytes.split is None


WINDOWED = tiny_window_layout(5)
PURE = tiny_window_layout(5, pure=True)


@pytest.mark.parametrize(
    ("layout", "options", "error", "words"),
    [
        (WINDOWED, {}, InvalidSize, "exactly one"),
        (WINDOWED, {"num_bytes": 4096, "num_slots": 64}, InvalidSize, "exactly one"),
        (WINDOWED, {"num_bytes": 4096, "num_window_slots": 64}, InvalidSize, "goes with num_slots"),
        (WINDOWED, {"num_slots": 64, "num_window_slots": 32, "window_ratio": 0.5}, InvalidSize, "one of them"),
        (WINDOWED, {"num_slots": 64, "num_window_slots": 32, "expected_length": 9}, InvalidSize, "one of them"),
        (WINDOWED, {"num_bytes": 4096, "window_ratio": 0.5, "expected_length": 9}, InvalidSize, "one of them"),
        (WINDOWED, {"num_slots": 64, "window_ratio": 0.0}, InvalidSize, "window_ratio is 0"),
        (WINDOWED, {"num_bytes": 4096, "window_ratio": float("nan")}, InvalidSize, "window_ratio is nan"),
        (WINDOWED, {"num_slots": 64, "expected_length": 0}, InvalidSize, "sequences of 0"),
        (WINDOWED, {"num_slots": 64, "num_window_slots": 15}, LayoutError, "without a page of 16"),
        (WINDOWED, {"num_slots": 15, "num_window_slots": 64}, LayoutError, "without a page of 16"),
        (WINDOWED, {"num_slots": 0, "num_window_slots": 0}, LayoutError, "without a page of 16"),
        (WINDOWED, {"num_bytes": 1023}, LayoutError, "1,023 bytes"),
        (WINDOWED, {"num_slots": 64, "page_size": 0}, InvalidSize, "page size is 0"),
        (PURE, {"num_slots": 64, "num_window_slots": 64}, InvalidSize, "nothing to divide"),
        (PURE, {"num_slots": 64, "window_ratio": 1.0}, InvalidSize, "nothing to divide"),
        (PURE, {"num_bytes": 4096, "expected_length": 9}, InvalidSize, "nothing to divide"),
        (PURE, {"num_slots": 15}, LayoutError, "Give 1024 bytes or more"),
        (tiny_layout(), {"num_slots": 64, "num_window_slots": 64}, InvalidSize, "nothing to divide"),
        (WINDOWED, {"num_slots": 64, "num_states": 2}, InvalidSize, "num_states"),
        (WINDOWED, {"num_slots": 64, "pool_layout": "unified"}, InvalidSize, "sized by num_bytes alone"),
        (WINDOWED, {"num_bytes": 4096, "window_ratio": 0.5, "pool_layout": "ideal"}, InvalidSize, "divides nothing"),
        (WINDOWED, {"num_bytes": 4096, "pool_layout": "shared"}, InvalidSize, "'shared'"),
        (WINDOWED, {"num_bytes": 700, "pool_layout": "padded"}, LayoutError, "700 bytes"),
        (WINDOWED, {"num_bytes": 4096, "pool_layout": "padded", "storage": True}, InvalidSize, "storage=False"),
    ],
)
def test_sizes_of_sides_that_make_no_memory_are_refused(layout, options, error, words):
    """Each raises its own fault and says which word is too much, or too small."""
    with pytest.raises(error, match=words):
        KVCacheManager(layout, **{**WITHOUT_STORAGE, **options})


@pytest.mark.parametrize("name", ["gemma-3-1b", "gpt-oss-20b", "llama-4-scout", "mistral-7b-v0.1", "gemma-3n-e4b"])
def test_published_models_with_windows_are_managed(name):
    """Eight gigabytes hold some requests of each, and the window is the published one."""
    layout = ModelLayout.preset(name)
    manager = KVCacheManager(layout, 8 * 2**30, max_requests=4, max_length=16384, storage=False)
    assert manager.window == Window(layout.window, is_chunked=layout.window_kind == "chunked")
    assert manager.window_room() >= manager.window.pages(manager.page_size)
    row = manager.match([1, 2, 3]).row
    assert manager.extend([row], [3]).numel() == 3
    manager.audit()


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("pure", [False, True])
def test_what_is_written_is_read_from_shared_windows(page_size, pure):
    """With storage, window entries that one request wrote are there for the next one that shares its prefix."""
    layout = tiny_window_layout(4, pure=pure)
    sides = {"num_slots": 16} if pure else {"num_slots": 16, "num_window_slots": 16}
    manager = tiny_manager(page_size=page_size, layout=layout, storage=True, **sides)
    assert (manager.pool is None) == pure
    assert manager.window_pool.num_bytes + (0 if pure else manager.pool.num_bytes) == manager.total_bytes
    row = manager.match([1, 2, 3, 4, 5]).row
    slots = manager.extend([row], [5])
    entries = torch.arange(5 * 4, dtype=torch.bfloat16).reshape(5, 1, 4)
    manager.window_pool.write(0, manager.window_slots(slots), entries, -entries)
    if not pure:
        manager.pool.write(1, slots, entries + 1, entries)
    manager.commit([row], [5], [6])
    manager.finish(row)
    lease = manager.match([1, 2, 3, 4, 9])
    assert lease == (lease.row, 4, 0)
    shared = torch.from_numpy(manager.table.read(lease.row).copy())
    key, value = manager.window_pool.read(0, manager.window_slots(shared))
    assert torch.equal(key, entries[:4])
    assert torch.equal(value, -entries[:4])
    if not pure:
        assert torch.equal(manager.pool.read(1, shared)[0], entries[:4] + 1)
        assert manager.pool.key[0] is manager.window_pool.key[1] is None


def test_window_slots_are_asked_for_slots_of_any_shape():
    """Slots without a window side give padding, -1 gives -1, and slots that are none are refused."""
    manager = tiny_manager(32, 4, layout=tiny_window_layout(4), num_window_slots=32)
    row = manager.match(list(range(12))).row
    slots = manager.extend([row], [12])
    manager.commit([row], [12], [1])
    before = manager.window_slots(slots)
    assert len(set(before.tolist())) == 12
    assert (before % 4 == slots % 4).all()
    manager.window_room()
    after = manager.window_slots(slots.reshape(3, 4))
    assert after.tolist() == [[0] * 4, [0] * 4, before[8:].tolist()]
    assert manager.window_slots([-1, 0, 3, int(slots[11])]).tolist() == [-1, 0, 0, int(before[11])]
    for bad in (-2, 36, 10**12):
        with pytest.raises(ForeignPage):
            manager.window_slots([bad])


def test_model_without_windows_has_no_window_side():
    """It has no window pages to give, its rows have no window slots, and asking for some is refused."""
    manager = tiny_manager(16, 2)
    assert (manager.window, manager.split, manager.window_pool, manager.num_window_slots) == (None, None, None, 0)
    assert (manager.window_room(), manager.window_live_tokens(), manager.tree.num_tombstone_tokens) == (0, 0, 0)
    assert list(manager.stats().by_side) == ["full"]
    with pytest.raises(InvalidSize, match="no window slots"):
        manager.window_slots([2])
