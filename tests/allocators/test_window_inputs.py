"""What may be handed to the window side: any integers, of any shape, from anywhere, and nothing else."""

import numpy as np
import pytest
import torch
from allocator_pair import PAGE_SIZES, snapshot
from test_allocator_inputs import MORE_FORMS, NO_INTEGERS, Elsewhere

import kvstead
from kvstead.allocators import PureSWAAllocator, SWAAllocator
from kvstead.errors import InvalidSize, MisalignedSegment


def test_both_classes_are_found_in_the_package():
    """`from kvstead import` gives the same classes as the layer."""
    assert kvstead.SWAAllocator is SWAAllocator
    assert kvstead.PureSWAAllocator is PureSWAAllocator


@pytest.mark.parametrize("form", sorted(MORE_FORMS))
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_the_window_side_takes_every_form_of_integers_alike(page_size, form):
    """Slots and pages in any integer form give what a plain list gives, in every call about windows."""
    make = MORE_FORMS[form]
    results = []
    for given in (make, list):
        allocator = SWAAllocator(12 * page_size, 12 * page_size, page_size)
        slots = allocator.alloc(12 * page_size).tolist()
        parts = [slots[at : at + 2 * page_size] for at in range(0, len(slots), 2 * page_size)]
        allocator.free_swa(given(parts[0]))
        allocator.free_swa_segment(given(parts[1]), start_pos=2 * page_size)
        with allocator.defer_frees():
            allocator.free_swa_segments([(given(parts[2]), 0), (given(parts[3]), 0)])
            allocator.free_window_pages(given([9, 10]))
            allocator.move_window(given(parts[5]), given(parts[0]))
            results.append((snapshot(allocator), allocator.window_slots(given(slots)).flatten().tolist()))
        allocator.free_full(given(parts[0]))
        allocator.free_full_segment(given(parts[1]), start_pos=0)
        allocator.free_full_segments([(given(parts[2]), 0)])
        results.append((snapshot(allocator),))
    assert results[:2] == results[2:]


@pytest.mark.parametrize("name", sorted(NO_INTEGERS))
def test_the_window_side_refuses_anything_but_integers(name):
    """Booleans, floats, text and the like raise `TypeError` in every argument, and nothing moves."""
    values = NO_INTEGERS[name]
    allocator = SWAAllocator(32, 32, 4)
    slots = allocator.alloc(16)
    allocator.free_group_begin()
    before = snapshot(allocator)
    calls = [
        lambda: allocator.free_swa(values),
        lambda: allocator.free_swa_segment(values, start_pos=0),
        lambda: allocator.free_swa_segments([(slots[:4], 0), (values, 0)]),
        lambda: allocator.free_window_pages(values),
        lambda: allocator.window_slots(values),
        lambda: allocator.move_window(values, slots[:2]),
        lambda: allocator.move_window(slots[:2], values),
        lambda: allocator.alloc_extend_swa_tail(values, [4], [-1], 4),
        lambda: allocator.alloc_extend_swa_tail([0], values, [-1], 4),
        lambda: allocator.alloc_extend_swa_tail([0], [4], values, 4),
        lambda: allocator.alloc_extend_swa_tail([0], [4], [-1], "4"),
        lambda: PureSWAAllocator(32, 4).window_slots(values),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
        assert snapshot(allocator) == before


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_no_windows_are_no_windows_in_any_form(page_size, grouped):
    """No slots change nothing and translate to nothing of that shape, whatever type says so."""
    allocator = SWAAllocator(8 * page_size, 8 * page_size, page_size)
    allocator.alloc(4 * page_size)
    if grouped:
        allocator.free_group_begin()
    before = snapshot(allocator)
    for empty in (
        [],
        (),
        range(0),
        np.empty((0, 3), dtype=np.int32),
        torch.empty(2, 0),
        torch.empty(0, dtype=torch.bool),
    ):
        allocator.free_swa(empty)
        allocator.free_swa_segment(empty, start_pos=page_size)
        allocator.free_swa_segments([(empty, 0), (empty, 0)])
        allocator.free_window_pages(empty)
        allocator.move_window(empty, empty)
        assert allocator.window_slots(empty).shape == np.shape(empty)
        assert allocator.window_slots(empty).dtype == torch.int64
    allocator.free_swa_segments([])
    row = allocator.alloc_extend_swa_tail([0], [0], [-1], 0)
    assert row.tolist() == []
    assert snapshot(allocator) == before


def test_a_single_slot_has_a_single_window_slot():
    """A tensor, array or number of no dimension is one slot, and so is the answer."""
    allocator = SWAAllocator(8, 8, 2)
    slots = allocator.alloc(4)
    for one in (slots[3], slots.numpy()[3], 5):
        assert allocator.window_slots(one).shape == ()
        assert int(allocator.window_slots(one)) == 5
    allocator.free_swa(slots[0])
    allocator.free_swa(slots.numpy()[3])
    assert allocator.swa_available_size() == 8


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_sizes_are_floored_to_pages_on_both_sides(page_size):
    """What fills no page is unusable on either side; a side of nothing gives nothing."""
    allocator = SWAAllocator(4 * page_size + page_size - 1, 2 * page_size + page_size // 2, page_size)
    assert (allocator.size, allocator.swa_size) == (4 * page_size, 2 * page_size)
    assert (allocator.num_pages, allocator.num_window_pages) == (4, 2)
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (4 * page_size, 2 * page_size)
    assert allocator.available_size() == 2 * page_size
    assert allocator.window_pages.dtype == np.int64
    assert allocator.window_pages.tolist() == [0] * 5 + [-1]
    for sizes in ((4 * page_size, page_size - 1), (page_size - 1, 4 * page_size)):
        allocator = SWAAllocator(*sizes, page_size)
        assert allocator.alloc(page_size) is None
        assert allocator.alloc(0).tolist() == []
    row = SWAAllocator(4 * page_size, 0, page_size).alloc_extend_swa_tail([0], [2 * page_size], [-1], 0)
    assert row.numel() == 2 * page_size


@pytest.mark.parametrize(
    "make",
    [
        lambda: SWAAllocator(-1, 8, 4),
        lambda: SWAAllocator(8, -1, 4),
        lambda: SWAAllocator(8, 8, 0),
        lambda: SWAAllocator(8, 8, 4, order="random"),
        lambda: PureSWAAllocator(-1, 4),
        lambda: PureSWAAllocator(8, 0),
    ],
)
def test_no_pool_is_made_of_impossible_sizes(make):
    """Negative sizes, pages of nothing and unknown orders are refused."""
    with pytest.raises(InvalidSize, match=r"\. "):
        make()


@pytest.mark.parametrize("name", ["free_swa_segment", "free_full_segment"])
@pytest.mark.parametrize("make", [lambda: SWAAllocator(32, 32, 4), lambda: PureSWAAllocator(32, 4)])
def test_a_window_segment_must_start_where_a_page_does(make, name):
    """Starts inside a page or before the row are refused, save where there is no full side to free."""
    allocator = make()
    slots = allocator.alloc(8)
    before = snapshot(allocator)
    for start in (-4, -1, 1, 6):
        if name == "free_full_segment" and isinstance(allocator, PureSWAAllocator):
            allocator.free_full_segment(slots, start_pos=start)
        else:
            with pytest.raises(MisalignedSegment):
                getattr(allocator, name)(slots, start_pos=start)
        assert snapshot(allocator) == before


def test_windows_of_slots_on_another_device_cost_one_copy(monkeypatch):
    """Every call about windows copies another device's tensor to the host once a tensor."""
    monkeypatch.setattr(Elsewhere, "copies", 0)
    allocator = SWAAllocator(32, 32, 4)
    away = allocator.alloc(32).as_subclass(Elsewhere)
    allocator.free_swa(away[:8])
    allocator.free_swa_segment(away[8:16], start_pos=8)
    assert Elsewhere.copies == 2
    assert allocator.window_slots(away).tolist() == [0] * 16 + list(range(20, 36))
    assert Elsewhere.copies == 3
    allocator.move_window(away[16:20], away[:4])
    assert Elsewhere.copies == 5
    assert allocator.window_slots(away[:4]).tolist() == [20, 21, 22, 23]


@pytest.mark.parametrize(
    "make", [SWAAllocator, lambda size, _, page_size, device: PureSWAAllocator(size, page_size, device=device)]
)
def test_window_slots_lie_on_the_pools_device(make):
    """Answers are int64 on the device named, in the question's shape (`meta` shows where, and carries no data)."""
    allocator = make(32, 32, 4, device="meta")
    allocator.alloc(8)
    for question in ([4, -1], np.array([[4], [5]], dtype=np.int32)):
        found = allocator.window_slots(question)
        assert (found.device.type, found.dtype, found.shape) == ("meta", torch.int64, np.shape(question))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_cuda_pool_has_the_windows_of_one_on_the_host():
    """The same calls with all tensors on the device give the same window slots, on the device."""
    host, device = SWAAllocator(64, 64, 4), SWAAllocator(64, 64, 4, device="cuda")
    slots = [allocator.alloc_extend_swa_tail([0], [14], [-1], 6) for allocator in (host, device)]
    found = [allocator.window_slots(row.reshape(2, 7)) for allocator, row in zip((host, device), slots, strict=True)]
    assert found[1].is_cuda
    assert torch.equal(found[1].cpu(), found[0])
    for allocator, row in zip((host, device), slots, strict=True):
        allocator.free_swa(row[8:12])
        allocator.free_segment(row, start_pos=0)
    assert snapshot(device) == snapshot(host)
