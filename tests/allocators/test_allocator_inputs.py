"""What may be handed in: any integers, of any shape, from anywhere, and nothing else."""

import array
import operator

import numpy as np
import pytest
import torch
from allocator_pair import FORMS, PAGE_SIZES, snapshot

from kvstead.allocators import PagedAllocator, TokenAllocator
from kvstead.errors import ForeignPage, InvalidSize, MisalignedSegment

MORE_FORMS = FORMS | {
    "int16 tensor": lambda values: torch.tensor(values, dtype=torch.int16),
    "uint8 tensor": lambda values: torch.tensor(values, dtype=torch.uint8),
    "transposed tensor": lambda values: torch.tensor(values).reshape(2, -1).t().contiguous().t(),
    "row of a matrix": lambda values: torch.tensor([values, values])[1],
    "uint16 array": lambda values: np.array(values, dtype=np.uint16),
    "uint64 array": lambda values: np.array(values, dtype=np.uint64),
    "big-endian array": lambda values: np.array(values, dtype=">i8"),
    "column-major array": lambda values: np.array(values).reshape(2, -1).copy(order="F"),
    "list of numpy scalars": lambda values: list(np.array(values)),
    "range": lambda values: range(values[0], values[-1] + 1),
    "array module": lambda values: array.array("q", values),
}


def read_only(values):
    array_ = np.array(values)
    array_.flags.writeable = False
    return array_


def unaligned(values):
    raw = bytearray(1 + 8 * len(values))
    view = np.frombuffer(raw, dtype=np.int64, offset=1)
    view[:] = values
    return view


MORE_FORMS |= {"read-only array": read_only, "unaligned array": unaligned}

NO_INTEGERS = {
    "bool tensor": torch.tensor([True, True]),
    "bool array": np.array([True, False]),
    "bools": [True, True],
    "float tensor": torch.tensor([4.0, 5.0]),
    "double array": np.array([4.0, 5.0]),
    "floats": [4.0, 5.5],
    "half tensor": torch.tensor([4.0], dtype=torch.bfloat16),
    "complex tensor": torch.tensor([4 + 0j]),
    "text": "4",
    "texts": ["4", "5"],
    "nothing": None,
    "objects": [object()],
    "integers past 64 bits": [2**64],
}


@pytest.mark.parametrize("form", sorted(MORE_FORMS))
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_every_form_of_integers_is_taken_alike(page_size, form):
    """Slots and lengths in any integer form give what a plain list gives, in every call."""
    make = MORE_FORMS[form]
    books = []
    for given in (make, list):
        allocator = PagedAllocator(20 * page_size, page_size)
        lengths = list(range(2, 6))
        first = allocator.alloc_extend(given([0, 0, 0, 0]) if form != "range" else [0] * 4, given(lengths), [-1] * 4)
        ends = (np.cumsum(lengths) - 1).tolist()
        lasts = first[ends].tolist()
        grown = allocator.alloc_decode(given([3, 4, 5, 6]), lasts, given([1, 2, 3, 4]))
        books.append((first.tolist(), grown.tolist(), snapshot(allocator)))
        allocator.clear()
        slots = allocator.alloc(12 * page_size).tolist()
        allocator.free(given(slots[: 2 * page_size]))
        allocator.free_segment(given(slots[2 * page_size : 4 * page_size]), start_pos=0)
        allocator.free_segments([(given(slots[4 * page_size : 6 * page_size]), page_size)])
        with allocator.defer_frees():
            allocator.free(given(slots[6 * page_size : 8 * page_size]))
            books.append(snapshot(allocator))
    assert books[:2] == books[2:]


@pytest.mark.parametrize("name", sorted(NO_INTEGERS))
def test_anything_but_integers_is_refused(name):
    """Booleans, floats, text and the like raise `TypeError` in every argument, and nothing moves."""
    values = NO_INTEGERS[name]
    allocator = PagedAllocator(32, 4)
    allocator.alloc(16)
    allocator.free_group_begin()
    before = snapshot(allocator)
    calls = [
        lambda: allocator.free(values),
        lambda: allocator.free_segment(values, start_pos=0),
        lambda: allocator.free_segments([([4, 5, 6, 7], 0), (values, 0)]),
        lambda: allocator.alloc_extend(values, [4], [-1]),
        lambda: allocator.alloc_extend([0], values, [-1]),
        lambda: allocator.alloc_extend([0], [4], values),
        lambda: allocator.alloc_decode(values, [-1]),
        lambda: allocator.alloc_decode([1], values),
    ]
    if values is not None:  # no owners at all
        calls += [
            lambda: allocator.alloc_extend([0], [4], [-1], values),
            lambda: allocator.alloc_decode([1], [-1], values),
        ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
        assert snapshot(allocator) == before


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_nothing_is_nothing_in_any_form(page_size, grouped):
    """No slots and no rows change nothing, whatever type says so, inside a group as well."""
    allocator = PagedAllocator(8 * page_size, page_size)
    allocator.alloc(4 * page_size)
    if grouped:
        allocator.free_group_begin()
    before = snapshot(allocator)
    empties = [[], (), range(0), np.array([]), np.empty((0, 3), dtype=np.int32)]
    empties += [torch.empty(0, dtype=dtype) for dtype in (torch.int64, torch.int32, torch.float32, torch.bool)]
    for empty in empties:
        allocator.free(empty)
        allocator.free_segment(empty, start_pos=page_size)
        allocator.free_segments([(empty, 0), (empty, 0)])
        for slots in (allocator.alloc_extend(empty, empty, empty, empty), allocator.alloc_decode(empty, empty)):
            assert (slots.dtype, slots.shape) == (torch.int64, (0,))
        assert snapshot(allocator) == before
    allocator.free_segments([])
    assert allocator.alloc(0).tolist() == []
    assert snapshot(allocator) == before


def test_a_single_slot_needs_no_list():
    """A tensor or array of no dimension is one slot."""
    allocator = TokenAllocator(4)
    slots = allocator.alloc(2)
    allocator.free(slots[0])
    allocator.free(slots.numpy()[1])
    assert allocator.available_size() == 4


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_results_and_arguments_are_the_callers_own(page_size):
    """Overwriting every tensor that came out or went in leaves the allocator as it was."""
    allocator = PagedAllocator(16 * page_size, page_size)
    row = allocator.alloc(3 * page_size)
    allocator.free(row[:page_size])
    columns = [torch.tensor([0, 0]), torch.tensor([1, page_size]), torch.tensor([-1, -1]), torch.tensor([8, 9])]
    grown = allocator.alloc_extend(*columns)
    last = torch.stack([grown[0], grown[-1]])
    lengths = columns[1] + 1
    more = allocator.alloc_decode(lengths, last)
    before = snapshot(allocator)
    for tensor in (row, grown, more, last, lengths, *columns):
        tensor.fill_(0)
    assert snapshot(allocator) == before
    allocator.audit()


@pytest.mark.parametrize("kind", ["alloc", "extend", "decode"])
def test_a_result_holds_on_to_no_more_than_itself(kind):
    """The slots handed out are memory of their own: they do not keep a list as large as the pool alive."""
    allocator = PagedAllocator(4096, 1)
    calls = {
        "alloc": lambda: allocator.alloc(3),
        "extend": lambda: allocator.alloc_extend([0], [3], [-1]),
        "decode": lambda: allocator.alloc_decode([1, 1, 1], [-1, -1, -1]),
    }
    assert calls[kind]().untyped_storage().nbytes() == 24


class Elsewhere(torch.Tensor):
    """A tensor that says it is not on the CPU, and counts how often it is copied there."""

    copies = 0

    @property
    def is_cpu(self):
        """No."""
        return False

    def numpy(self):
        """As another device's tensor."""
        message = "can't convert a tensor of another device to numpy"
        raise TypeError(message)

    def cpu(self):
        """The one copy that the documentation promises."""
        type(self).copies += 1
        return self.as_subclass(torch.Tensor)


def test_slots_on_another_device_are_copied_once(monkeypatch):
    """Every call that is handed another device's tensor copies it to the host, once, and does what it always does."""
    monkeypatch.setattr(Elsewhere, "copies", 0)
    allocator = PagedAllocator(32, 4)
    slots = allocator.alloc(32)
    away = slots.as_subclass(Elsewhere)
    allocator.free(away[:8])
    allocator.free_segment(away[8:16], start_pos=8)
    allocator.free_segments([(away[16:24], 16), (away[24:28], 24)])
    assert Elsewhere.copies == 4
    assert allocator.available_size() == 28
    assert allocator.alloc_decode(torch.tensor([2]).as_subclass(Elsewhere), away[28:29]).tolist() == [33]
    assert Elsewhere.copies == 6


@pytest.mark.parametrize("cls", [TokenAllocator, lambda size, device: PagedAllocator(size, 4, device=device)])
def test_slots_are_handed_out_on_the_pools_device(cls):
    """Results are int64 on the device named, bookkeeping stays on the host (`meta` shows where, and has no data)."""
    allocator = cls(32, device="meta")
    page_size = allocator.page_size
    num_rows = 8 // page_size  # so that each call takes 8 slots
    results = [
        allocator.alloc(8),
        allocator.alloc_extend([0], [8], [-1]),
        allocator.alloc_decode([1] * num_rows, [-1] * num_rows),
    ]
    for slots in results:
        assert (slots.dtype, slots.device, allocator.device) == (torch.int64, torch.device("meta"), slots.device)
    assert allocator.available_size() == 8
    allocator.free(np.arange(page_size, page_size + 24))
    assert allocator.available_size() == 32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_cuda_pool_answers_as_one_on_the_host():
    """The same calls with all tensors on the device give the same slots, on the device."""
    host, device = PagedAllocator(64, 4), PagedAllocator(64, 4, device="cuda")
    expected = host.alloc_extend([0, 0], [6, 3], [-1, -1])
    slots = device.alloc_extend([0, 0], [6, 3], [-1, -1])
    assert slots.is_cuda
    assert torch.equal(slots.cpu(), expected)
    lasts = slots[[5, 8]]
    assert device.alloc_decode([7, 4], lasts).tolist() == host.alloc_decode([7, 4], expected[[5, 8]]).tolist()
    device.free_segment(slots[:6], start_pos=0)
    host.free_segment(expected[:6], start_pos=0)
    assert snapshot(device) == snapshot(host)


def test_lengths_that_do_not_match_in_number_are_refused():
    """Columns of different lengths raise `InvalidSize` with both numbers, and nothing moves."""
    allocator = PagedAllocator(32, 4)
    before = snapshot(allocator)
    for columns in (([0], [1, 1], [-1, -1]), ([0, 0], [1, 1], [-1]), ([0], [1], []), ([], [1], [-1])):
        with pytest.raises(InvalidSize, match="entries"):
            allocator.alloc_extend(*columns)
    with pytest.raises(InvalidSize, match=r"\(2, 1\) entries"):
        allocator.alloc_decode([1, 1], [-1])
    for owners in ([], [1, 2]):
        with pytest.raises(InvalidSize, match="entries"):
            allocator.alloc_extend([0], [1], [-1], owners)
        with pytest.raises(InvalidSize, match="entries"):
            allocator.alloc_decode([1], [-1], owners)
    assert snapshot(allocator) == before


def test_a_failing_iterator_of_segments_frees_nothing():
    """When the pairs themselves fail half way, none of them is freed."""
    allocator = PagedAllocator(32, 4)
    slots = allocator.alloc(16)
    before = snapshot(allocator)

    def pairs():
        yield slots[:8], 0
        yield slots[8:], operator.index("no position")

    with pytest.raises(TypeError):
        allocator.free_segments(pairs())
    assert snapshot(allocator) == before


@pytest.mark.parametrize("fault", [ForeignPage, MisalignedSegment])
def test_a_bad_last_segment_takes_the_first_ones_back(fault):
    """Several segments are freed all or none, in a group as outside of one."""
    bad = {ForeignPage: ([0, 1, 2, 3], 0), MisalignedSegment: ([13, 14], 0)}[fault]
    for grouped in (False, True):
        allocator = PagedAllocator(32, 4)
        slots = allocator.alloc(16, owner=5)
        if grouped:
            allocator.free_group_begin()
        before = snapshot(allocator)
        with pytest.raises(fault):
            allocator.free_segments([(slots[:4], 0), (slots[4:8], 4), bad])
        assert snapshot(allocator) == before
        assert allocator.owners() == {5: 4}


def test_owner_tags_come_in_any_form():
    """Tags of any integer type and shape, in read-only arrays too, end up on the rows' new pages."""
    forms = [
        list,
        torch.tensor,
        np.array,
        read_only,
        lambda tags: np.array(tags, dtype=np.int32),
        lambda tags: np.array([tags], dtype=np.int32),
        lambda tags: np.array(tags[::-1], dtype=np.int32)[::-1],
        lambda tags: np.frombuffer(np.array(tags, dtype=np.int32).tobytes(), dtype=np.int32),
    ]
    for form in forms:
        allocator = PagedAllocator(32, 4)
        slots = allocator.alloc_extend([0, 0], [4, 9], [-1, -1], form([7, -8]))
        assert allocator.owners() == {7: 1, -8: 3}
        allocator.alloc_decode([5, 10], [slots[3], slots[12]], form([7, -8]))
        assert allocator.owners() == {7: 2, -8: 3}


def test_tags_of_32_bits_and_no_more():
    """The edges of int32 are tags; one past them raises `InvalidSize` in every call, and nothing moves."""
    allocator = PagedAllocator(64, 4)
    edges = [-(2**31), 2**31 - 1]
    for tag in edges:
        allocator.alloc(4, owner=tag)
    allocator.alloc_extend([0, 0], [4, 4], [-1, -1], edges)
    allocator.alloc_decode([1, 1], [-1, -1], edges)
    assert allocator.owners() == dict.fromkeys(edges, 3)
    before = snapshot(allocator)
    for tag in (-(2**31) - 1, 2**31):
        for call in (
            lambda tag=tag: allocator.alloc(4, owner=tag),
            lambda tag=tag: allocator.alloc_extend([0], [4], [-1], [tag]),
            lambda tag=tag: allocator.alloc_decode([1], [-1], [tag]),
        ):
            with pytest.raises(InvalidSize, match=str(tag)):
                call()
    assert snapshot(allocator) == before
