"""A device-resident allocator with hot slots beside the host's."""

import torch
from device_pair import DevicePair, junk_after


class DeviceHotPair(DevicePair):
    """Rows that come, grow and go, and buffers made of their device slots."""

    def __init__(self, host, device, rnd):
        super().__init__(host, device, rnd)
        self.buffers = []
        self.mapping = device.device_pages

    def run(self, num_steps):
        """So many random calls, some of them about device slots."""
        steps = [self.extend_cold, self.buffer, self.buffer, self.end_buffer, self.cool]
        for _ in range(num_steps):
            self.rnd.choice(steps)()
            self.compare_books()
            super().run(1)

    def compare_books(self):
        """Both sides, the mapping, and where every token's device slot lies."""
        super().compare_books()
        host, device = self.host, self.device
        for count in ("logical_available_size", "device_available_size", "device_size", "size"):
            got = getattr(device, count)
            expected = getattr(host, count)
            assert (got() if callable(got) else got) == (expected() if callable(expected) else expected), count
        assert device.device_free_pages().tolist() == host.device_free_pages().tolist()
        assert device.device_pages is self.mapping
        assert device.device_pages.tolist() == host.device_pages.tolist()
        slots = torch.tensor([slot for row in self.rows for slot in row] + [-1, 0]).reshape(1, -1)
        assert torch.equal(device.device_slots(slots).long(), host.device_slots(slots))
        assert host.free_group is None
        assert device.free_group is None

    def may_grow(self, row):
        """Behind a token that is on the device, or from a page boundary on."""
        return len(row) % self.host.page_size == 0 or self.host.device_slots(row[-1:]).item() > 0

    def extend_cold(self):
        """Rows grow without device slots: those that have no other place to go on, and new ones."""
        may_grow, self.may_grow = self.may_grow, lambda row: not may_grow(row)
        self.extend("alloc_logical_only")
        self.may_grow = may_grow

    def buffer(self):
        """A buffer of some of a row's slots, of all of them, or of none."""
        named = list(self.rnd.choice(self.rows)) if self.rows else []
        named = self.rnd.choice([named, self.rnd.sample(named, self.rnd.randint(0, len(named))), []])
        wanted = self.rnd.randrange(5) * self.host.page_size
        got = self.device.alloc_device_buffer(torch.tensor(named, dtype=torch.int32), wanted)
        slots = self.same(got, self.host.alloc_device_buffer(named, wanted))
        if slots:
            self.buffers.append(slots)

    def end_buffer(self):
        """A buffer is done with; places that were never filled are named as well."""
        if self.buffers:
            named = [*self.buffers.pop(self.rnd.randrange(len(self.buffers))), 0, -1, 0]
            self.rnd.shuffle(named)
            junk_after(self.device.free_hisparse_indices, torch.tensor(named))
            self.host.free_hisparse_indices(named)

    def cool(self):
        """Rows lose device pages, by some of their slots in any order."""
        named = [slot for row in self.rows[:2] for slot in row if self.rnd.random() < 0.3]
        self.rnd.shuffle(named)
        junk_after(self.device.free_hisparse, torch.tensor(named, dtype=torch.int64))
        self.host.free_hisparse(named)

    def clear(self):
        """As new."""
        super().clear()
        self.buffers.clear()
