import random

import pytest
import torch

from kvstead.allocators.device_split_swa import DeviceSplitSWAAllocator
from kvstead.allocators.loose_windows import SplitSWAAllocator
from kvstead.errors import AuditError, DoubleFree, InvalidSize

ORDERS = ("lifo", "fifo")
NUM_PAGES, NUM_WINDOWS = 12, 9


class Transfers:
    """Pages that come in one side at a time, are paired, parted and given back, on both allocators alike."""

    def __init__(self, seed, page_size, order):
        self.rng = random.Random(seed)
        sizes = (NUM_PAGES * page_size, NUM_WINDOWS * page_size, page_size)
        self.host = SplitSWAAllocator(*sizes, order=order)
        self.device = DeviceSplitSWAAllocator(*sizes, order=order, checked=True)
        self.page_size = page_size
        self.bare, self.loose, self.paired = [], [], []  # slots of a page each

    def step(self):
        """One call."""
        self.rng.choice([self.whole, self.full, self.window, self.join, self.part, self.give, self.go, self.group])()
        self.compare()

    def whole(self):
        """Pages with their window pages."""
        self.paired += self.both("alloc", self.rng.randint(0, 3) * self.page_size)

    def full(self):
        """Full pages alone."""
        self.bare += self.both("alloc_full", self.rng.randint(0, 4) * self.page_size)

    def window(self):
        """Window pages alone."""
        self.loose += self.both("alloc_window", self.rng.randint(0, 4) * self.page_size)

    def join(self):
        """As many pages as there are on both sides."""
        count = min(len(self.bare), len(self.loose))
        full, window = ([side.pop() for _ in range(count)] for side in (self.bare, self.loose))
        self.both("attach_windows", self.flat(full), self.flat(window))
        self.paired += full

    def part(self):
        """Some pages from their window pages, whose slots are asked for first."""
        pages = self.some(self.paired)
        linked_pages = self.host.window_slots(self.flat(pages))
        assert torch.equal(self.device.window_slots(self.flat(pages)), linked_pages)
        self.both("detach_windows", self.flat([*pages, *self.bare[:1]]))
        self.bare += pages
        self.loose += self.cut(linked_pages)

    def give(self):
        """Window pages go."""
        self.both("free_window", self.flat(self.some(self.loose)))

    def go(self):
        """Full pages go, with their window pages or without."""
        self.both("free_segment", self.flat(self.some(self.paired)), start_pos=0)
        self.both("free_full_segment", self.flat(self.some(self.bare)), start_pos=0)

    def group(self):
        """Open or close; rarely start anew."""
        if self.rng.random() < 0.1:
            self.both("clear")
            self.bare, self.loose, self.paired = [], [], []
        else:
            self.both("free_group_end" if self.host.free_group is not None else "free_group_begin")

    def compare(self):
        """What is free in which order, which pages are linked, and what the group holds."""
        host, device = self.host, self.device
        assert device.free_pages().tolist() == host.free_pages().tolist()
        assert device.window_free_pages().tolist() == host.window_free_pages().tolist()
        assert device.window_pages.tolist() == host.window_pages.tolist()
        parked = [[release.pages.tolist() for release in side.window_releases()] for side in (device, host)]
        assert parked[0] == parked[1]
        host.audit()
        device.audit()

    def both(self, name, *args, **position):
        """One call on both, with one answer: pages of slots."""
        got, expected = (getattr(side, name)(*args, **position) for side in (self.device, self.host))
        assert (got is None) == (expected is None)
        if got is None:
            return []
        assert torch.equal(got, expected)
        return self.cut(got)

    def some(self, pages):
        """Some of the pages, taken out of the list."""
        chosen = [page for page in pages if self.rng.random() < 0.4]
        pages[:] = [page for page in pages if page not in chosen]
        return chosen

    def cut(self, slots):
        """Slots page by page."""
        return [tuple(page) for page in slots.reshape(-1, self.page_size).tolist()]

    def flat(self, pages):
        """Slots of pages as callers pass them."""
        return torch.tensor([slot for page in pages for slot in page], dtype=torch.int64)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("page_size", [1, 4])
def test_sides_come_apart_as_on_the_host(page_size, order):
    """Legal calls on one side give the host's slots, mapping, group and free lists."""
    transfers = Transfers(page_size, page_size, order)
    for _ in range(250):
        transfers.step()


def test_more_than_is_held_and_unequal_numbers_are_refused():
    """What the host can count is refused at once."""
    allocator = DeviceSplitSWAAllocator(8, 8, 2)
    full, window = allocator.alloc_full(4), allocator.alloc_window(2)
    for part in (full, full[:1]):
        with pytest.raises(InvalidSize):
            allocator.attach_windows(part, window)
    with pytest.raises(DoubleFree):
        allocator.free_window(torch.arange(2, 6))
    assert allocator.alloc_window(8) is None
    allocator.audit()


def test_audit_finds_a_window_page_that_nobody_holds_on_the_device():
    """A live window page that is neither a window page nor loose is lost."""
    allocator = DeviceSplitSWAAllocator(8, 8, 2)
    allocator.alloc_window(4)
    allocator.audit()
    allocator._loose[1] = False
    with pytest.raises(AuditError, match="window pages"):
        allocator.audit()
