"""A device-resident allocator beside the host's, driven by the same legal script: same ids, same counts."""

import torch

JUNK = -77  # what a caller's buffer holds once a call has returned


def junk_after(call, tensor, **position):
    """Call with a tensor that the caller overwrites at once."""
    buffer = tensor.clone()
    call(buffer, **position)
    buffer.fill_(JUNK)


class DevicePair:
    """Rows that come, grow and go. `rnd` decides; whatever it decides is legal."""

    def __init__(self, host, device, rnd):
        self.host, self.device, self.rnd = host, device, rnd
        self.rows = []  # slots of each row

    def run(self, num_steps):
        """So many random calls."""
        steps = [self.extend, self.extend, self.decode, self.free, self.free_segment, self.free_segments]
        steps += [self.alloc, self.toggle_group, self.free_tails]
        for _ in range(num_steps):
            (self.clear if self.rnd.random() < 0.03 else self.rnd.choice(steps))()
            self.compare_books()

    def compare_books(self):
        """Every count, and what is free in which order."""
        host, device = self.host, self.device
        for count in ("available_size", "parked_size", "live_size"):
            assert getattr(host, count)() == getattr(device, count)(), count
        assert device.free_pages().tolist() == host._free_list.contents().tolist()

    def same(self, got, expected):
        """The answers of both, as a list; None where both are short."""
        assert (got is None) == (expected is None)
        if got is None:
            return None
        assert got.dtype == self.device.index_dtype
        slots = got.tolist()
        got.fill_(JUNK)  # what comes out is the caller's
        assert slots == expected.tolist()
        return slots

    def extend(self):
        """A few rows grow, new ones too, some of them by nothing."""
        page_size = self.host.page_size
        chosen = self.rnd.sample(range(len(self.rows)), min(len(self.rows), self.rnd.randrange(4)))
        chosen += [None] * self.rnd.randrange(3)
        prefix = [0 if row is None else len(self.rows[row]) for row in chosen]
        by = [self.rnd.choice([0, 1, 2, page_size - 1, page_size, 3 * page_size + 1]) for _ in chosen]
        seq = [length + more for length, more in zip(prefix, by, strict=True)]
        last = [self.rows[row][-1] if length else -1 for row, length in zip(chosen, prefix, strict=True)]
        device_last = torch.tensor(last, dtype=self.rnd.choice([torch.int32, torch.int64]))
        got = self.device.alloc_extend(torch.tensor(prefix), seq, device_last)
        slots = self.same(got, self.host.alloc_extend(prefix, seq, last))
        if slots is None:
            return
        for row, more in zip(chosen, by, strict=True):
            new, slots = slots[:more], slots[more:]
            if row is not None:
                self.rows[row] += new
            elif new:
                self.rows.append(new)

    def decode(self):
        """Every row grows by one."""
        seq = [len(row) + 1 for row in self.rows]
        last = torch.tensor([row[-1] for row in self.rows], dtype=torch.int64)
        slots = self.same(self.device.alloc_decode(seq, last), self.host.alloc_decode(seq, last))
        for row, slot in zip(self.rows, slots or [], strict=False):
            row.append(slot)

    def alloc(self):
        """Whole pages, at times as many as there are, or one more."""
        there = self.host.available_size() // self.host.page_size
        wanted = self.rnd.choice([0, 1, 2, there, there + 1]) * self.host.page_size
        slots = self.same(self.device.alloc(wanted), self.host.alloc(wanted))
        if slots:
            self.rows.append(slots)

    def free(self):
        """A row or two, in any order, each page named by one of its slots at least."""
        if not self.rows:
            return
        named = []
        for _ in range(min(len(self.rows), 2)):
            row, size = self.pop(), self.host.page_size
            pages = [row[at : at + size] for at in range(0, len(row), size)]
            named += [slot for page in pages for slot in self.rnd.sample(page, self.rnd.randint(1, len(page)))]
        self.rnd.shuffle(named)
        slots = torch.tensor(named, dtype=self.rnd.choice([torch.int32, torch.int64]))
        num_pages = len({slot // self.host.page_size for slot in named})
        known = {} if self.rnd.random() < 0.5 else {"num_pages": num_pages}
        junk_after(self.device.free, slots, **known)
        self.host.free(slots)

    def free_segment(self):
        """A whole row."""
        if self.rows:
            slots = torch.tensor(self.pop())
            junk_after(self.device.free_segment, slots, start_pos=0)
            self.host.free_segment(slots, start_pos=0)

    def free_tails(self):
        """The end of a row, from a page boundary on."""
        if self.rows:
            row = self.rnd.randrange(len(self.rows))
            start = self.rnd.randrange(0, len(self.rows[row]), self.host.page_size)
            kept, tail = self.rows[row][:start], torch.tensor(self.rows[row][start:])
            junk_after(self.device.free_segment, tail, start_pos=start)
            self.host.free_segment(tail, start_pos=start)
            self.rows[row : row + 1] = [kept] if kept else []

    def free_segments(self):
        """Two rows in one call."""
        pairs = [(torch.tensor(self.pop()), 0) for _ in range(min(len(self.rows), 2))]
        copies = [(slots.clone(), start) for slots, start in pairs]
        self.device.free_segments(copies)
        for slots, _ in copies:
            slots.fill_(JUNK)
        self.host.free_segments(pairs)

    def toggle_group(self):
        """Open a group, or end the one that is open."""
        for allocator in (self.host, self.device):
            (allocator.free_group_begin if allocator.free_group is None else allocator.free_group_end)()
        assert (self.host.free_group is None) == (self.device.free_group is None)

    def clear(self):
        """As new."""
        self.host.clear()
        self.device.clear()
        self.rows.clear()

    def pop(self):
        """Some row, which is gone then."""
        return self.rows.pop(self.rnd.randrange(len(self.rows)))
