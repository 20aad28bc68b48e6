from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstead.errors import DoubleFree, ForeignPage, InvalidSize, StaleRow
from kvstead.integrations.sglang.allocator import backends
from kvstead.integrations.sglang.allocator.mamba import MambaSlotAllocator
from kvstead.integrations.sglang.memory_pool import ReqToTokenPool


def table(size=4, width=8):
    return ReqToTokenPool(size, width, "cpu", enable_memory_saver=False)


class Kv:
    """What a request says of its row."""

    def __init__(self, length=0):
        self.req_pool_idx = None
        self.kv_allocated_len = length

    @property
    def holds_kv(self):
        """Whether it has one."""
        return self.req_pool_idx is not None


def request(length=0):
    return SimpleNamespace(kv=Kv(length))


class Cache:
    """A cache of other rows that follow these; notes what it is told."""

    dense_capacity = 77

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.told.append((name, args, kwargs))


def test_requests_keep_their_rows_and_get_new_ones():
    """A request that goes on keeps its row; new ones get distinct rows, never row 0; None hands out nothing."""
    pool = table()
    first = [request(), request()]
    rows = pool.alloc(first)
    assert rows == [req.kv.req_pool_idx for req in first]
    assert len(set(rows)) == 2
    assert 0 not in rows
    first[0].kv.kv_allocated_len = 3
    more = [request(), first[0], request()]
    again = pool.alloc(more)
    assert again[1] == rows[0]
    assert sorted([rows[1], *again]) == [1, 2, 3, 4]
    late = request()
    assert pool.alloc([late, first[0]]) is None
    assert not late.kv.holds_kv
    assert (pool.available_size(), pool.free_slots) == (0, [])
    with pytest.raises(StaleRow, match=r"\. "):
        pool.alloc([first[1]])
    assert pool.alloc([]) == pool.alloc_rows(0) == []


@settings(max_examples=40)
@given(st.data())
def test_rows_are_unique_and_their_generations_grow(data):
    """No row is in use twice, and a row and its generation never name two requests."""
    pool, out, seen = table(5), [], set()
    generation = pool.req_generation
    for _ in range(data.draw(st.integers(1, 20))):
        match data.draw(st.integers(0, 4)):
            case 0 | 1:
                rows = pool.alloc_rows(data.draw(st.integers(0, 3)))
                for row in rows or []:
                    assert row not in out
                    assert (row, int(generation[row])) not in seen
                    seen.add((row, int(generation[row])))
                    out.append(row)
            case 2 | 3 if out:
                row = out.pop(data.draw(st.integers(0, len(out) - 1)))
                pool.free_rows([row])
            case 4 if data.draw(st.booleans()):
                pool.clear()
                out.clear()
        assert pool.free_slots == sorted({1, 2, 3, 4, 5} - set(out))
        assert pool.available_size() == len(pool.free_slots)
    assert pool.req_generation is generation


def test_row_is_freed_once():
    """Freeing twice, twice in a call, row 0 or an unknown row raises, and no row changes."""
    pool = table()
    rows = pool.alloc_rows(3)
    for wrong in ([rows[0], rows[0]], [rows[0], 0], [rows[0], 5], [rows[0], -1], [rows[0], 4]):
        with pytest.raises(StaleRow, match=r"\. "):
            pool.free_rows(wrong)
        assert pool.available_size() == 1
    req = request()
    pool.alloc([req])
    pool.free(req)
    assert not req.kv.holds_kv
    with pytest.raises(StaleRow, match=r"\. "):
        pool.free(req)
    assert pool.available_size() == 1


def test_rows_are_written_by_any_index():
    """Rows can be written by row and range or by tensors; the table is int32, on the device, with a padding row."""
    pool = table(2, 4)
    assert pool.req_to_token.dtype == torch.int32
    assert pool.req_to_token.shape == (3, 4)
    pool.write((1, slice(0, 2)), torch.tensor([7, 8]))
    pool.write((torch.tensor([2, 2]), torch.tensor([0, 3])), torch.tensor([5, 6], dtype=torch.int32))
    assert pool.req_to_token.tolist() == [[0] * 4, [7, 8, 0, 0], [5, 0, 0, 6]]
    assert (pool.size, pool.max_context_len, pool.device, pool.pre_alloc_size) == (2, 4, "cpu", 0)


def test_attached_cache_follows_the_rows():
    """It is told of freed rows, lengths and resets, and says how many tokens requests may hold."""
    pool = table()
    assert pool.schedulable_token_capacity(9) == 9
    pool.reset_aux_cache_allocator()
    pool.alloc_aux_to_lengths(req_pool_indices_cpu=None, target_seq_lens_cpu=None)
    cache, rows = Cache(), []
    pool.attach_aux_cache(cache)
    pool.register_on_alloc_rows(rows.extend)
    taken = pool.alloc_rows(2)
    pool.free_rows(taken[:1])
    pool.alloc_aux_to_lengths(req_pool_indices_cpu=1, target_seq_lens_cpu=2)
    pool.reset_aux_cache_allocator()
    pool.clear()
    assert rows == taken
    assert cache.told == [
        ("free", (taken[0],), {}),
        ("alloc_to_lengths", (), {"req_pool_indices_cpu": 1, "target_seq_lens_cpu": 2}),
        ("reset_allocator", (), {}),
        ("clear", (), {}),
    ]
    assert pool.schedulable_token_capacity(9) == 77
    for again in (lambda: pool.attach_aux_cache(cache), lambda: pool.register_on_alloc_rows(rows.extend)):
        with pytest.raises(RuntimeError, match=r"\. "):
            again()


@pytest.fixture(params=[False, True], ids=["host", "device"])
def states(request, monkeypatch):
    """Six states, on the host or where they are on an accelerator."""
    monkeypatch.setattr(backends, "is_resident", lambda _device: request.param)
    return MambaSlotAllocator(6, "cpu")


def test_freed_states_queue_behind_all_others(states):
    """Slots go out from 1 upward, freed ones behind all others; None when short."""
    assert states.alloc(4).tolist() == [1, 2, 3, 4]
    states.free(torch.tensor([3, 1]))
    assert states.free_slots.tolist() == [5, 6, 3, 1]
    assert states.alloc(5) is None
    assert states.available_size() == states.schedulable_available_size() == 4
    assert states.alloc(0).numel() == 0
    states.clear()
    assert states.free_slots.tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("num_reqs", [0, 1, 4, 6, 9])
def test_alloc_group_keeps_every_slot(states, num_reqs):
    """Whether slots were fetched, used, fetched again in an open group or needed by others, each exists once."""
    first = states.alloc(1)
    states.alloc_group_begin(num_reqs)
    assert states.available_size() == 5
    used = [states.alloc(1) for _ in range(2)]
    assert [slot.tolist() for slot in used] == [[2], [3]]
    assert states.free_slots.tolist() == [4, 5, 6]
    states.alloc_group_begin(num_reqs)
    assert states.alloc(4) is None
    rest = states.alloc(3)
    assert sorted(torch.cat([first, *used, rest]).tolist()) == [1, 2, 3, 4, 5, 6]
    states.alloc_group_end()
    states.alloc_group_end()
    states.free(rest)
    assert sorted(states.free_slots.tolist()) == sorted(rest.tolist())
    states.alloc_group_begin(2)
    states.clear()
    states.alloc_group_end()
    assert states.free_slots.tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("num_reqs", [1, 3, 9])
def test_fetched_states_are_not_in_use(num_reqs):
    """Slots fetched for a group count as free: freeing one raises, and none is handed out twice."""
    states = MambaSlotAllocator(4, "cpu")
    held = states.alloc(1)
    states.alloc_group_begin(num_reqs)
    with pytest.raises(DoubleFree):
        states.free(torch.tensor([2]))
    taken = [states.alloc(1) for _ in range(4)]
    assert taken.pop() is None
    assert sorted(torch.cat([held, *taken]).tolist()) == [1, 2, 3, 4]


def test_wrong_states_are_refused():
    """A double free, padding, a slot beyond the pool and a negative number raise, with nothing changed."""
    states = MambaSlotAllocator(4, "cpu")
    taken = states.alloc(2)
    for wrong, error in (([1, 1], DoubleFree), ([1, 3], DoubleFree), ([1, 0], ForeignPage), ([1, 5], ForeignPage)):
        with pytest.raises(error, match=r"\. "):
            states.free(torch.tensor(wrong))
    with pytest.raises(InvalidSize, match=r"\. "):
        states.alloc(-1)
    assert states.available_size() == 2
    states.free(taken)
    assert states.available_size() == 4
