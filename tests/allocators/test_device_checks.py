import pytest
import torch

from kvstead.allocators import DevicePagedAllocator
from kvstead.errors import AuditError, DoubleFree, ForeignPage, MisalignedSegment, UseAfterFree


def start():
    """Pages 1 to 6 and 12 are live, 7 to 11 are free."""
    device = DevicePagedAllocator(48, 4, checked=True)
    pages = device.alloc(48)
    device.free_segment(pages[24:44], start_pos=24)
    return device


FAULTS = {
    "freed twice": (lambda d: (d.free([4]), d.free([5])), DoubleFree, r"page 1 was freed.* nobody held"),
    "freed twice, by segment": (lambda d: [d.free_segment([8], start_pos=0) for _ in "ab"], DoubleFree, "page 2 was"),
    "never held": (lambda d: d.free([4, 40, 44]), DoubleFree, "page 10 was freed"),
    "named twice": (
        lambda d: d.free_segment([8, 9, 10, 11, 8], start_pos=0),
        DoubleFree,
        "page 2 was freed",
    ),
    "padding": (lambda d: d.free([3]), ForeignPage, r"page 0 was freed.*1\.\.12"),
    "negative": (lambda d: d.free([-1, 4]), ForeignPage, "page -1 was freed"),
    "past the end": (lambda d: d.free_segment([52], start_pos=0), ForeignPage, "page 13 was freed"),
    "past the end, beside the last page": (lambda d: d.free([48, 52]), ForeignPage, "page 13 was freed"),
    "far past the end": (lambda d: d.free([1 << 40]), ForeignPage, f"page {1 << 38} was freed"),
    "a torn segment": (lambda d: d.free_segment([4, 5, 7], start_pos=0), MisalignedSegment, "slot 7 of a freed"),
    "a segment from inside a page": (lambda d: d.free_segment([5], start_pos=0), MisalignedSegment, "slot 5"),
    "a wrong number of pages": (lambda d: d.free([4, 8], num_pages=1), AuditError, "slots of 2 distinct pages"),
    "grown behind a wrong slot": (lambda d: d.alloc_extend([2], [3], [6]), MisalignedSegment, "slot 6"),
    "decoded behind a wrong slot": (lambda d: d.alloc_decode([9], [6]), MisalignedSegment, "slot 6"),
    "grown in a free page": (lambda d: d.alloc_extend([1], [2], [40]), UseAfterFree, "slot 40, in page 10"),
    "grown in the padding": (lambda d: d.alloc_decode([2], [0]), ForeignPage, "slot 0, in page 0"),
    "grown past the end": (lambda d: d.alloc_decode([2], [52]), ForeignPage, "slot 52, in page 13"),
    "two rows in a page": (lambda d: d.alloc_decode([2, 2], [4, 4]), UseAfterFree, "second row"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("grouped", [False, True])
def test_an_audit_tells_of_the_first_fault(fault, grouped):
    """What only the device can see raises at the next audit, by name and id, and at every audit until a clear."""
    call, error, text = FAULTS[fault]
    device = start()
    if grouped:
        device.free_group_begin()
    call(device)
    device.free([12, 44])  # another fault, after the first
    for _ in range(2):
        with pytest.raises(error, match=text):
            device.audit()
    device.clear()
    device.audit()


@pytest.mark.parametrize("call", ["alloc_extend", "alloc_decode"])
@pytest.mark.parametrize("others", [1, 5, 6])
def test_a_row_that_grows_in_a_page_that_the_call_hands_out(call, others):
    """A freed row is seen when its page goes to another row of the same batch, and where there is no room at all."""
    device = start()
    page = int(device.free_pages()[0])
    prefix, seq, last = [1] + [0] * others, [2] + [1] * others, [4 * page] + [-1] * others
    got = device.alloc_decode(seq, last) if call == "alloc_decode" else device.alloc_extend(prefix, seq, last)
    assert (got is None) == (others > 5)
    with pytest.raises(UseAfterFree, match=f"slot {4 * page}, in page {page}"):
        device.audit()


def test_rows_that_share_whole_pages_are_no_fault():
    """Rows that end with the same full page may grow in one batch, and one that does not grow is not looked at."""
    device = start()
    device.alloc_extend([4, 4, 6], [5, 6, 6], [7, 7, 99])
    device.audit()


def test_parked_pages_are_held_by_nobody():
    """Growing in a page that waits in a group, or freeing it again, is a fault."""
    for call, error in ((lambda d: d.alloc_decode([2], [4]), UseAfterFree), (lambda d: d.free([4]), DoubleFree)):
        device = start()
        device.free_group_begin()
        device.free([4])
        call(device)
        with pytest.raises(error):
            device.audit()


@pytest.mark.parametrize("slots", [[4, 4], [0], [3], [9]])
def test_an_audit_without_checks_finds_what_the_free_list_shows(slots):
    """A page listed twice, padding and pages of other pools are found even where no call was watched."""
    device = DevicePagedAllocator(8, 1)
    held = device.alloc(8)
    device.free(held[:3])
    device.free(slots)
    if slots == [4, 4]:
        slots = [4]
    with pytest.raises(AuditError, match=rf"pages \[{slots[0]}\]"):
        device.audit()


def test_an_audit_finds_pages_parked_outside_the_group():
    """The group is the only place for parked pages."""
    device = DevicePagedAllocator(8, 1)
    device.free_group_begin()
    device.free(device.alloc(2))
    device.free_group = None
    with pytest.raises(AuditError, match="2 pages are parked, the open group holds 0"):
        device.audit()


def test_an_audit_finds_states_that_are_not_those_of_the_list():
    """A page that is listed as free must be free by its state, too."""
    device = start()
    device._pool.checks.state[9] = 1
    with pytest.raises(AuditError, match=r"pages \[9\]"):
        device.audit()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_checks_change_no_ids(dtype):
    """The same script gives the same slots, watched or not."""
    answers = []
    for checked in (False, True):
        device = DevicePagedAllocator(64, 4, index_dtype=dtype, checked=checked)
        rows = device.alloc_extend([0, 0], [7, 9], [-1, -1])
        device.free(rows[:7])
        answers.append((rows.tolist(), device.alloc_decode([10], rows[-1:]).tolist(), device.free_pages().tolist()))
    assert answers[0] == answers[1]
