import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvstead.allocators import SWAAllocator
from kvstead.errors import InvalidSize
from kvstead.kernels.device_transfer import Sender
from kvstead.pools import DeviceMirror, RequestTable

DTYPES = (torch.int64, torch.int32)


@given(st.integers(0, 2**32), st.sampled_from(DTYPES))
def test_a_mirror_shows_what_was_touched(seed, dtype):
    """After any writes and touches an update makes the device's tables the host's, and no memory of it moves."""
    rnd = random.Random(seed)
    tables = {"rows": np.zeros((5, 7), dtype=np.int64), "pages": np.zeros(9, dtype=np.int64)}
    mirror = DeviceMirror(tables, "cpu", dtype=dtype)
    addresses = [mirror[name].data_ptr() for name in tables]
    for _ in range(rnd.randrange(1, 6)):
        for _ in range(rnd.randrange(4)):
            kind = rnd.choice(["entries", "rows", "all"])
            if kind == "entries":
                entries = np.array([rnd.randrange(9) for _ in range(rnd.randrange(5))], dtype=np.int64)
                tables["pages"][entries] = rnd.randrange(100)
                mirror.touch("pages", entries)
            elif kind == "rows":
                rows = np.array(rnd.sample(range(5), rnd.randrange(4)), dtype=np.int64)
                starts = np.array([rnd.randrange(7) for _ in rows], dtype=np.int64)
                ends = np.array([rnd.randint(start, 7) for start in starts], dtype=np.int64)
                for row, start, end in zip(rows, starts, ends, strict=True):
                    tables["rows"][row, start:end] = rnd.randrange(100)
                mirror.touch_rows("rows", rows, starts, ends)
            else:
                name = rnd.choice(list(tables))
                tables[name][...] = rnd.randrange(100)
                mirror.touch_all(name)
        mirror.update()
        for name, table in tables.items():
            assert mirror[name].dtype == dtype
            assert mirror[name].tolist() == table.tolist()
    assert [mirror[name].data_ptr() for name in tables] == addresses


def test_what_is_not_touched_stays():
    """Only touched entries are sent, with what stands there when the update comes; a later write waits for the next."""
    table = np.arange(4)
    mirror = DeviceMirror({"a": table}, "cpu")
    mirror.touch("a", np.array([1, 3]))
    table[:] = 7
    assert mirror["a"].tolist() == [0, 0, 0, 0]
    mirror.update()
    assert mirror["a"].tolist() == [0, 7, 0, 7]
    table[:] = 8
    mirror.update()
    assert mirror["a"].tolist() == [0, 7, 0, 7]


def test_an_update_is_one_copy_whatever_was_touched(monkeypatch):
    """Entries of all tables go in one array, as many as were touched; without any nothing is sent."""
    sent = []
    send = Sender.send
    monkeypatch.setattr(Sender, "send", lambda self, array: (sent.append(array.shape), send(self, array))[1])
    mirror = DeviceMirror({"a": np.zeros((1000, 1000), dtype=np.int64), "b": np.zeros(9, dtype=np.int64)}, "meta")
    mirror.update()
    mirror.touch("b", np.array([3]))
    mirror.touch_rows("a", np.array([4, 999]), np.array([0, 999]), np.array([2, 1000]))
    mirror.update()
    assert sent == [(2, 4)]
    assert mirror["a"].shape == (1000, 1000)


def test_rows_and_windows_of_a_batch():
    """An engine's step: rows grow, windows move on, and the device sees both tables after one update."""
    allocator, table = SWAAllocator(64, 64, 4), RequestTable(4, 16)
    mirror = DeviceMirror({"rows": table.slots, "windows": allocator.window_pages}, "cpu", dtype=torch.int32)
    mirror.touch_all("windows")
    rows = table.take(3)
    owners = np.zeros(3, dtype=np.int32)
    for row, length in zip(rows.tolist(), (5, 4, 9), strict=True):
        table.append(row, allocator.alloc_extend([0], [length], [-1]).numpy())
    mirror.touch_rows("rows", rows, np.zeros(3, dtype=np.int64), table.lengths[rows])
    for _ in range(3):
        slots = allocator.alloc_decode_rows(table.slots, table.lengths, rows, owners)
        mirror.touch_rows("rows", rows, table.lengths[rows] - 1, table.lengths[rows])
        mirror.touch("windows", slots // 4)
        allocator.free_swa_segment(table.read(rows[2])[:4], start_pos=0)
        mirror.touch("windows", table.read(rows[2])[:1] // 4)
        mirror.update()
        for row in rows:
            assert mirror["rows"][row, : table.lengths[row]].tolist() == table.read(row).tolist()
        assert mirror["windows"].tolist() == allocator.window_pages.tolist()


@pytest.mark.parametrize("table", [np.zeros(3, dtype=np.int32), np.zeros((4, 4), dtype=np.int64)[:, :2]])
def test_tables_that_cannot_be_mirrored(table):
    """A table is a whole array of int64."""
    with pytest.raises(InvalidSize, match="'odd'"):
        DeviceMirror({"odd": table}, "cpu")


@pytest.mark.parametrize("entry", [-1, 3])
def test_an_entry_of_another_table_is_refused(entry):
    """A place outside its table would be written beside it, in another one; it is refused, and updates go on."""
    mirror = DeviceMirror({"a": np.arange(3), "b": np.arange(10, 13)[None], "c": np.arange(20, 23)}, "cpu")
    with pytest.raises(InvalidSize, match="'b'"):
        mirror.touch("b", np.array([1, entry]))
    with pytest.raises(InvalidSize, match="'b'"):
        mirror.touch_rows("b", np.array([0]), np.array([entry]), np.array([entry + 1]))
    mirror.touch("b", np.array([1]))
    mirror.update()
    assert [mirror[name].tolist() for name in "abc"] == [[0, 0, 0], [[0, 11, 0]], [0, 0, 0]]


def test_an_update_that_fails_is_made_up_for(monkeypatch):
    """What could not be sent, for want of memory, say, goes with the next update."""
    mirror = DeviceMirror({"a": np.arange(3)}, "cpu")
    mirror.touch_all("a")
    with monkeypatch.context() as patch:
        patch.setattr(Sender, "send", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            mirror.update()
    mirror.update()
    assert mirror["a"].tolist() == [0, 1, 2]


def test_a_mirror_of_nothing():
    """No tables, nothing to do."""
    mirror = DeviceMirror({}, "cpu")
    mirror.update()
