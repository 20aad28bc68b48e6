"""What holds of a device side, and the faults that users of other allocators met with one, at every page size."""

import numpy as np
import pytest
import torch
from allocator_pair import ORDERS, snapshot

from kvstead.allocators import CompressedHiSparseAllocator, HiSparseAllocator
from kvstead.errors import (
    AuditError,
    DoubleFree,
    ForeignPage,
    FreeGroupError,
    InvalidSize,
    MisalignedSize,
    UseAfterFree,
)
from kvstead.kernels.host import PADDING

every_page_size = pytest.mark.parametrize("page_size", [1, 2, 4, 16])
every_order = pytest.mark.parametrize("order", ORDERS)


def pool(page_size, num_hot=6, ratio=2, order="lifo"):
    """Twelve logical pages over six device pages."""
    return HiSparseAllocator(num_hot * page_size, page_size, ratio=ratio, order=order)


def compressed(page_size, full=8, window=8, num_hot=8, order="lifo"):
    """Eight pages a side, a device slot for every four tokens."""
    sizes = full * page_size, window * page_size, num_hot * page_size // 4
    return CompressedHiSparseAllocator(*sizes, page_size, order=order)


def row_of(allocator, length, *, start=0, last=-1, logical=False):
    """A row that grows to `length` tokens, on the device or not."""
    grow = allocator.alloc_logical_only if logical else allocator.alloc_extend
    return grow([start], [length], [last])


def sizes(allocator):
    """Free pages of the logical and the device side."""
    return (
        allocator.logical_available_size() // allocator.page_size,
        allocator.device_available_size() // allocator.device_page_size,
    )


def refuses(allocator, error, call, *args, match=r"\. "):
    """Whether a call raises, says the way out, and changes nothing."""
    before = snapshot(allocator)
    with pytest.raises(error, match=match):
        call(*args)
    assert snapshot(allocator) == before
    allocator.audit()


# Sizes.


def test_sizes_count_the_two_sides_apart():
    """Device slots are as many as asked for, logical ones `ratio` times that; the less roomy side is what is left."""
    allocator = HiSparseAllocator(26, 4, ratio=3)
    assert (allocator.size, allocator.device_size) == (76, 24)
    assert allocator.available_size() == allocator.device_available_size() == 24
    assert allocator.logical_available_size() == 76
    row_of(allocator, 4, logical=True)
    assert sizes(allocator) == (18, 6)
    allocator.alloc_device_buffer([], 16)
    assert sizes(allocator) == (18, 2)
    assert allocator.available_size() == 8


@pytest.mark.parametrize("wrong", [{"ratio": 0}, {"ratio": -1}, {"order": "best"}])
def test_a_pool_of_no_ratio_or_order_is_refused(wrong):
    """There are as many logical slots as device slots, or more."""
    with pytest.raises(InvalidSize, match=r"\. "):
        HiSparseAllocator(8, 4, **wrong)
    for numbers in ((-1, 4), (8, 0)):
        with pytest.raises(InvalidSize, match=r"\. "):
            HiSparseAllocator(*numbers)
    for numbers in ((8, 8, 8, 6), (8, 8, -1, 4), (-1, 8, 8, 4), (8, -1, 8, 4), (8, 8, 8, 0)):
        with pytest.raises(InvalidSize, match=r"\. "):
            CompressedHiSparseAllocator(*numbers)
    with pytest.raises(InvalidSize, match=r"\. "):
        CompressedHiSparseAllocator(8, 8, 8, 4, compress_ratio=0)


@every_order
@every_page_size
def test_a_side_without_room_leaves_the_other_alone(page_size, order):
    """Exactly what fits on both sides is handed out; one page more is None, and nothing has changed anywhere."""
    for num_hot, ratio, room in ((3, 2, 3), (3, 1, 3)):
        allocator = pool(page_size, num_hot, ratio, order)
        before = snapshot(allocator)
        assert allocator.alloc((room + 1) * page_size) is None
        assert row_of(allocator, room * page_size + 1) is None
        assert snapshot(allocator) == before
        assert row_of(allocator, room * page_size).numel() == room * page_size
    allocator = pool(page_size, 3, 1, order)
    row_of(allocator, page_size, logical=True)  # the logical side is the shorter one
    before = snapshot(allocator)
    assert allocator.alloc(3 * page_size) is None
    assert row_of(allocator, 3 * page_size) is None
    assert allocator.alloc_logical_only([0], [2 * page_size + 1], [-1]) is None
    assert snapshot(allocator) == before


# Who is on the device.


@every_page_size
def test_tokens_of_decode_have_no_device_side_whatever_page_they_lie_in(page_size):
    """A token that decode adds behind tokens on the device is not there; those before it still are."""
    allocator = pool(page_size)
    row = row_of(allocator, 2 * page_size - page_size // 2)
    slots = row.tolist()
    for length in range(len(slots), 3 * page_size):
        slots.append(int(allocator.alloc_decode([length + 1], slots[-1:])))
    found = allocator.device_slots(slots)
    assert (found[: row.numel()] > 0).all()
    assert not found[row.numel() :].any()
    assert sizes(allocator) == (9, 4)
    assert allocator.device_slots(torch.tensor([[-1, 0], [0, -1]])).tolist() == [[-1, 0], [0, -1]]
    refuses(allocator, ForeignPage, allocator.device_slots, [allocator.size + page_size])
    refuses(allocator, ForeignPage, allocator.device_slots, [-2])


@pytest.mark.parametrize("page_size", [2, 4, 16])
def test_no_row_grows_behind_a_token_that_is_not_on_the_device(page_size):
    """A row whose last token has no device slot starts its next stretch on a page boundary, never in the padding."""
    for prepare in ("decode", "logical", "buffer", "cold", "freed"):
        allocator = pool(page_size)
        sound = row_of(allocator, 1)
        row = row_of(allocator, page_size + 1, logical=prepare == "logical")
        length, last = page_size + 1, int(row[-1])
        if prepare == "decode" and page_size > 2:
            length, last = length + 1, int(allocator.alloc_decode([length + 1], [last]))
        elif prepare == "buffer":
            allocator.alloc_device_buffer(row, page_size)
        elif prepare == "cold":
            allocator.free_hisparse(row[-1:])
        elif prepare == "freed":
            allocator.free_hisparse_indices(allocator.device_slots(row[-1:]))
        elif prepare == "decode":
            continue
        columns = [1, length], [2, length + 1], [int(sound[-1]), last]
        refuses(allocator, UseAfterFree, allocator.alloc_extend, *columns, match=rf"row 1 .* slot {last}, .*\. ")
        allocator.alloc_extend([1, length], [1, length], columns[2])  # rows that stay as they are
        assert allocator.alloc_logical_only(*columns).tolist() == [sound[-1] + 1, last + 1]
        grown = list(range(length + 1, 2 * page_size + 1))
        tail = allocator.alloc_logical_only([length + 1], [2 * page_size], [last + 1]) if grown else row
        fresh = row_of(allocator, 3 * page_size, start=2 * page_size, last=int(tail[-1]) if tail.numel() else last + 1)
        assert (allocator.device_slots(fresh) >= page_size).all()
        allocator.audit()


def test_a_row_that_is_written_again_keeps_its_device_page():
    """Tokens that were thrown away and come anew take the same device slots, and no second page."""
    allocator = pool(4)
    row = row_of(allocator, 7)
    before = allocator.device_slots(row).tolist()
    again = row_of(allocator, 8, start=5, last=int(row[4]))
    assert again.tolist() == [*row[5:].tolist(), int(row[-1]) + 1]
    assert allocator.device_slots(row).tolist() == before
    assert sizes(allocator) == (10, 4)


# Frees.


@every_order
@every_page_size
def test_frees_take_effect_at_once_inside_a_group(page_size, order):
    """There is no group: what is freed in one is available at once, its mapping gone, and an end changes nothing."""
    allocator = pool(page_size, order=order)
    rows = [row_of(allocator, 2 * page_size) for _ in range(3)]
    allocator.free_group_begin()
    allocator.free_group_begin()
    assert allocator.free_group is None
    allocator.free(rows[0])
    assert sizes(allocator) == (8, 2)
    assert not allocator.device_slots(rows[0]).any()
    with allocator.defer_frees():
        allocator.free_segments([(rows[1][:page_size], 0), (rows[1][page_size:], page_size)])
        assert sizes(allocator) == (10, 4)
        allocator.free_segment(rows[2], start_pos=0)
    assert sizes(allocator) == (12, 6)
    assert allocator.parked_size() == 0
    allocator.free_group_end()
    allocator.audit()


@every_page_size
def test_padding_is_never_freed_on_either_side(page_size):
    """No slot of page 0 gets into a list, whichever of them is named; 0 and -1 stand for no device slot."""
    allocator = pool(page_size)
    row = row_of(allocator, page_size)
    for padding in range(page_size):
        refuses(allocator, ForeignPage, allocator.free, [int(row[0]), padding])
        refuses(allocator, ForeignPage, allocator.free_hisparse, [int(row[0]), padding])
        if padding:
            refuses(allocator, ForeignPage, allocator.free_hisparse_indices, [padding])
    before = snapshot(allocator)
    allocator.free_hisparse_indices([0, -1, 0])
    allocator.free_hisparse_indices([])
    assert snapshot(allocator) == before
    assert allocator.device_page_states()[0] == PADDING
    allocator.free_hisparse_indices([0, *allocator.device_slots(row).tolist(), -1])
    assert 0 not in allocator.pools["hot"].contents()
    assert sizes(allocator) == (11, 6)


@every_order
@every_page_size
def test_a_wrong_free_changes_neither_side(page_size, order):
    """A double free, a slot beyond the pool, or a good one beside them: the error, and nothing changed."""
    allocator = pool(page_size, order=order)
    row, other = row_of(allocator, 2 * page_size), row_of(allocator, page_size)
    allocator.free(other)
    good = int(row[0])
    for bad, error in ((int(other[0]), DoubleFree), (allocator.size + page_size, ForeignPage), (-1, ForeignPage)):
        refuses(allocator, error, allocator.free, [good, bad])
        refuses(allocator, error, allocator.free_segments, [([good], 0), ([bad - bad % page_size], 0)])
    hot = int(allocator.device_slots(row)[0])
    refuses(allocator, ForeignPage, allocator.free_hisparse_indices, [hot, allocator.device_size + page_size])
    refuses(allocator, ForeignPage, allocator.free_hisparse_indices, [hot, -2])
    buffer = allocator.alloc_device_buffer([], page_size)
    allocator.free_hisparse_indices(buffer)
    refuses(allocator, DoubleFree, allocator.free_hisparse_indices, [hot, int(buffer[-1])])
    refuses(allocator, ForeignPage, allocator.free_hisparse, [good, allocator.size + page_size])


@every_page_size
def test_the_device_side_goes_once_however_it_is_asked_to(page_size):
    """Freed alone, with the row, as device slots, twice: each device page comes back once, and no mapping is left."""
    for first in ("free_hisparse", "free_hisparse_indices", "free"):
        allocator = pool(page_size)
        row = row_of(allocator, 2 * page_size)
        if first == "free_hisparse_indices":
            allocator.free_hisparse_indices(allocator.device_slots(row))
        else:
            getattr(allocator, first)(row)
        allocator.free_hisparse(row)
        assert not allocator.device_slots(row).any()
        assert sizes(allocator)[1] == 6
        if first != "free":
            allocator.free(row)
        assert sizes(allocator) == (12, 6)
        allocator.audit()


def test_a_part_of_a_page_stands_for_the_page_on_the_device_too():
    """After any slot of a page is freed on the device, no other of its slots points there."""
    for offset in range(4):
        allocator = pool(4)
        row = row_of(allocator, 8)
        allocator.free_hisparse(row[offset : offset + 1])
        assert allocator.device_slots(row).tolist()[:4] == [0] * 4
        assert sizes(allocator) == (10, 5)
        other = row_of(allocator, 4)
        assert not set(allocator.device_slots(other).tolist()) & set(allocator.device_slots(row).tolist())


# Buffers.


def slots_of_pages(slots, page_size):
    return {int(slot) // page_size for slot in slots}


@every_page_size
@pytest.mark.parametrize("length", [1, 5, 16, 33])
def test_a_buffer_is_made_of_the_row_cut_off_or_filled_up(page_size, length):
    """Its slots begin with the row's, nothing is lost or doubled, and the row has no device side any more."""
    for num_pages in range(7):
        allocator = HiSparseAllocator(48 * page_size, page_size)
        row = row_of(allocator, length)
        held = allocator.device_slots(row).tolist()
        buffer = allocator.alloc_device_buffer(row, num_pages * page_size).tolist()
        assert len(set(buffer)) == num_pages * page_size
        assert buffer[: len(held)] == held[: len(buffer)]
        assert not allocator.device_slots(row).any()
        assert sizes(allocator)[1] == 48 - num_pages
        allocator.audit()
        allocator.free(row)
        assert sizes(allocator) == (96, 48 - num_pages)
        if buffer:
            allocator.free_hisparse_indices(buffer[::-1])
        assert sizes(allocator) == (96, 48)


@pytest.mark.parametrize("newest", range(8))
def test_a_page_that_a_buffer_keeps_in_part_is_not_freed_under_it(newest):
    """A buffer that takes one slot of a later page in keeps that page, and no one else gets a slot of it."""
    allocator = pool(4, num_hot=3, ratio=4)
    row = row_of(allocator, 12)
    order = [*row[:3].tolist(), int(row[4 + newest]), *row[3 : 4 + newest].tolist(), *row[5 + newest :].tolist()]
    buffer = allocator.alloc_device_buffer(order, 4)
    kept = slots_of_pages(buffer, 4)
    assert sizes(allocator)[1] == 3 - len(kept) == 1
    others = allocator.alloc_device_buffer([], 4)
    assert not slots_of_pages(others, 4) & kept
    assert allocator.alloc_device_buffer([], 4) is None
    allocator.audit()
    allocator.free_hisparse_indices(buffer)
    assert sizes(allocator)[1] == 2


@every_page_size
def test_a_buffer_without_room_leaves_the_row_on_the_device(page_size):
    """None, and the row is where it was; a wrong number of slots, or a slot named twice, is refused as well."""
    allocator = pool(page_size, num_hot=3)
    row = row_of(allocator, 2 * page_size)
    before = snapshot(allocator)
    assert allocator.alloc_device_buffer(row, 4 * page_size) is None
    assert snapshot(allocator) == before
    refuses(allocator, InvalidSize, allocator.alloc_device_buffer, row, -page_size)
    refuses(allocator, ForeignPage, allocator.alloc_device_buffer, [allocator.size + page_size], page_size)
    refuses(allocator, InvalidSize, allocator.alloc_device_buffer, torch.cat([row, row[:1]]), 2 * page_size)
    if page_size > 1:
        refuses(allocator, MisalignedSize, allocator.alloc_device_buffer, row, page_size + 1)
    given = row.clone()
    buffer = allocator.alloc_device_buffer(given, 3 * page_size)
    given.fill_(1)
    assert buffer.numel() == 3 * page_size
    assert sizes(allocator)[1] == 0


def test_a_buffer_outlives_the_row_that_it_was_made_of():
    """The row ends and its slots are handed out again; the buffer's device slots are still nobody else's."""
    allocator = pool(4)
    row = row_of(allocator, 8)
    buffer = allocator.alloc_device_buffer(row, 8)
    allocator.free(row)
    again = row_of(allocator, 16)
    assert not set(allocator.device_slots(again).tolist()) & set(buffer.tolist())
    allocator.free(again)
    allocator.free_hisparse_indices(buffer)
    assert sizes(allocator) == (12, 6)


def test_the_mapping_is_one_array_for_ever():
    """Whoever has got hold of the mapping sees every change in it, after `clear` too."""
    allocator = pool(2)
    mapping = allocator.device_pages
    row = row_of(allocator, 4)
    assert mapping[row[0] // 2] > 0
    allocator.clear()
    assert mapping is allocator.device_pages
    assert mapping.tolist() == [0] * 13 + [-1]
    assert sizes(allocator) == (12, 6)
    allocator.audit()


# Blocks of tokens.


@pytest.mark.parametrize("page_size", [4, 8, 64])
def test_a_block_is_on_the_device_with_its_last_token(page_size):
    """However a row gets to its length, every whole block has one slot, in order, found at its last token alone."""
    for length in range(1, 3 * page_size + 1):
        allocator = compressed(page_size)
        cut = length // 3
        row = row_of(allocator, cut) if cut else torch.empty(0, dtype=torch.int64)
        row = torch.cat([row, row_of(allocator, length, start=cut, last=int(row[-1]) if cut else -1)])
        found = allocator.device_slots(row)
        assert ((found > 0) == torch.tensor([at % 4 == 3 for at in range(length)])).all()
        blocks = found[found > 0]
        assert (blocks % (page_size // 4) == torch.arange(length // 4) % (page_size // 4)).all()
        assert sizes(allocator)[1] == 8 - -(-(length // 4) // (page_size // 4))
        assert allocator.window_slots(row).all()
        allocator.audit()


def test_a_page_gets_its_device_page_with_its_first_whole_block():
    """300 tokens in pages of 256 are two logical pages, and the second has a device page of its own."""
    allocator = CompressedHiSparseAllocator(512, 512, 128, 256)
    assert row_of(allocator, 300).numel() == 300
    assert (allocator.full_available_size(), allocator.device_available_size()) == (0, 0)
    allocator = CompressedHiSparseAllocator(512, 512, 64, 256)
    before = snapshot(allocator)
    assert row_of(allocator, 300) is None  # there is logical room, but no device page for the second
    assert allocator.alloc(512) is None
    assert snapshot(allocator) == before
    assert allocator.available_size() == allocator.full_available_size() == 256
    assert row_of(allocator, 259).numel() == 259  # three tokens are no block yet
    assert allocator.alloc_extend([259], [260], [514]) is None
    assert allocator.alloc_logical_only([259], [260], [514]).tolist() == [515]


def test_frees_of_all_three_sides_wait_for_one_group():
    """One list holds full, window and device pages, in the order of the calls; its end gives all of them back."""
    allocator = compressed(8)
    rows = [row_of(allocator, 16) for _ in range(4)]
    buffer = allocator.alloc_device_buffer(rows[3], 4)
    allocator.free_group_begin()
    with pytest.raises(FreeGroupError):
        allocator.free_group_begin()
    given = rows[0].clone()
    allocator.free(given)
    given.copy_(rows[1])
    allocator.free_hisparse(rows[1])
    allocator.free_swa(rows[2])
    allocator.free_hisparse_indices(buffer)
    assert sizes(allocator) == (0, 0)
    assert allocator.swa_available_size() == 0
    assert not allocator.device_slots(rows[1]).any()
    assert len(allocator.free_group) == 6
    allocator.audit()
    allocator.free_group_end()
    assert sizes(allocator) == (2, 6)
    assert allocator.swa_available_size() == 32
    allocator.free_full_segment(rows[2], start_pos=0)
    assert sizes(allocator) == (4, 8)
    allocator.free_segments([(rows[1], 0)])
    allocator.free(rows[3])
    assert sizes(allocator) == (8, 8)
    allocator.audit()


def test_a_tail_of_windows_takes_no_device_page():
    """A prompt that comes in by another way has logical slots and windows under its end, and nothing on the device."""
    allocator = compressed(8)
    row = allocator.alloc_extend_swa_tail([0], [24], [-1], 8)
    assert not allocator.device_slots(row).any()
    assert sizes(allocator) == (5, 8)
    allocator.free_group_begin()
    allocator.free(row)
    allocator.clear()
    assert allocator.free_group is None
    assert sizes(allocator) == (8, 8)


# An audit.


def forget_a_page(allocator):
    allocator.device_pages[1] = 0


def share_a_page(allocator):
    allocator.device_pages[3] = allocator.device_pages[1]


def point_beyond_the_pool(allocator):
    allocator.device_pages[1] = 99


def point_below_the_pool(allocator):
    allocator.device_pages[1] = -3


def swap_two_pages(allocator):
    allocator.device_pages[[1, 2]] = allocator.device_pages[[2, 1]]


def map_a_free_page(allocator):
    allocator.device_pages[3] = 6


def map_a_buffer(allocator):
    allocator.device_pages[3] = allocator.device_page_states().nonzero()[0][-1]


def take_a_page_for_a_buffer(allocator):
    allocator.pools["hot"].table.owner[allocator.device_pages[1]] = 0


def give_a_page_to_a_free_one(allocator):
    allocator.device_pages[[1, 11]] = allocator.device_pages[[11, 1]]
    allocator.pools["hot"].table.owner[allocator.device_pages[11]] = 11


def lose_the_last_entry(allocator):
    allocator.device_pages[-1] = 0


def overfill_a_page(allocator):
    allocator._hot.lens[1] = allocator.device_page_size + 1


def empty_a_page(allocator):
    allocator._hot.lens[1] = 0


def flip_a_state(allocator):
    allocator.device_page_states()[1] = 2


def drift_a_count(allocator):
    allocator.pools["hot"].table.num_free -= 1


@pytest.mark.parametrize(
    "damage",
    [
        forget_a_page,
        share_a_page,
        point_beyond_the_pool,
        point_below_the_pool,
        swap_two_pages,
        map_a_free_page,
        map_a_buffer,
        take_a_page_for_a_buffer,
        give_a_page_to_a_free_one,
        lose_the_last_entry,
        overfill_a_page,
        empty_a_page,
        flip_a_state,
        drift_a_count,
    ],
)
def test_a_damaged_device_side_does_not_pass_an_audit(damage):
    """Pages on the device, in a buffer and free pass an audit of either class; one change by hand does not."""
    for make in (pool, compressed):
        allocator = make(8) if make is pool else make(8, full=12, window=12, num_hot=6)
        row_of(allocator, 16)
        row_of(allocator, 8, logical=True)
        allocator.alloc_device_buffer(row_of(allocator, 8), allocator.device_page_size)
        allocator.audit()
        damage(allocator)
        with pytest.raises(AuditError, match=r"\. "):
            allocator.audit()


def test_integers_of_any_kind_are_taken():
    """Tensors, arrays, lists and tuples of any integer type, none of them kept or written to."""
    allocator = pool(2)
    row = row_of(allocator, 4)
    for form in (torch.int32, torch.int64):
        assert (allocator.device_slots(row.to(form)) > 0).all()
    allocator.free_hisparse(row.numpy().astype(np.int32)[::-1])
    allocator.free_hisparse(tuple(row.tolist()))
    buffer = allocator.alloc_device_buffer(row.to(torch.int32), 2)
    allocator.free_hisparse_indices(buffer.to(torch.int32))
    assert sizes(allocator) == (10, 6)
