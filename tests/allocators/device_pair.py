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
        assert device.free_pages().tolist() == host._pool.contents().tolist()

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

    def may_grow(self, _row):
        """Whether a row may be extended."""
        return True

    def extend(self, call="alloc_extend"):
        """A few rows grow, new ones too, some of them by nothing."""
        page_size = self.host.page_size
        able = [number for number, row in enumerate(self.rows) if self.may_grow(row)]
        chosen = self.rnd.sample(able, min(len(able), self.rnd.randrange(4)))
        chosen += [None] * self.rnd.randrange(3)
        prefix = [0 if row is None else len(self.rows[row]) for row in chosen]
        by = [self.rnd.choice([0, 1, 2, page_size - 1, page_size, 3 * page_size + 1]) for _ in chosen]
        seq = [length + more for length, more in zip(prefix, by, strict=True)]
        last = [self.rows[row][-1] if length else -1 for row, length in zip(chosen, prefix, strict=True)]
        device_last = torch.tensor(last, dtype=self.rnd.choice([torch.int32, torch.int64]))
        got = getattr(self.device, call)(torch.tensor(prefix), seq, device_last)
        slots = self.same(got, getattr(self.host, call)(prefix, seq, last))
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


class DeviceWindowPair(DevicePair):
    """The same with a window side. Pages at the front of a row may have lost their window pages, never the last one."""

    def __init__(self, host, device, rnd):
        super().__init__(host, device, rnd)
        self.bare = {}  # tokens at the front of a row without window side, by its first slot
        self.mapping = device.window_pages

    def run(self, num_steps):
        """So many random calls, some of them about windows."""
        for _ in range(num_steps):
            self.rnd.choice([self.tail, self.slide, self.slide, self.free_any_windows, self.compare_slots])()
            self.compare_books()
            super().run(1)

    def compare_books(self):
        """Both sides, and the mapping."""
        super().compare_books()
        host, device = self.host, self.device
        for count in ("full_available_size", "swa_available_size", "swa_parked_size", "swa_live_size"):
            assert getattr(host, count)() == getattr(device, count)(), count
        assert device.window_free_pages().tolist() == host.pools["window"].contents().tolist()
        assert device.window_pages is self.mapping
        assert device.window_pages.tolist() == host.window_pages.tolist()

    def compare_slots(self):
        """Where the window side lies, in any shape."""
        slots = torch.tensor([slot for row in self.rows for slot in row] + [-1, 0, -1]).reshape(-1, 1)
        assert torch.equal(self.device.window_slots(slots).long(), self.host.window_slots(slots))

    def tail(self):
        """A new row with windows under its end."""
        seq = self.rnd.randrange(4 * self.host.page_size)
        start = self.rnd.randrange(0, seq + 1, self.host.page_size)
        got = self.device.alloc_extend_swa_tail([0], [seq], torch.tensor([-1]), seq - start)
        slots = self.same(got, self.host.alloc_extend_swa_tail([0], [seq], [-1], seq - start))
        if slots:
            self.rows.append(slots)
            self.bare[slots[0]] = start

    def slide(self):
        """The window of a row moves on."""
        if self.rows:
            row = self.rnd.choice(self.rows)
            start = self.bare.get(row[0], 0)
            end = self.rnd.randrange(start, max(start, len(row) - 1) + 1)
            end -= end % self.host.page_size
            slots = torch.tensor(row[start:end], dtype=torch.int64)
            free = self.rnd.choice(["free_swa_segment", "free_swa_segments", "free_swa"])
            for allocator in (self.host, self.device):
                if free == "free_swa_segments":
                    allocator.free_swa_segments([(slots, start), (slots[:0], 0)])
                else:
                    getattr(allocator, free)(slots.clone(), **({"start_pos": start} if free != "free_swa" else {}))
            self.bare[row[0]] = max(start, end)

    def free_any_windows(self):
        """All that lies in front of the last page of two rows, in any order, whether it is there or not."""
        named = []
        for row in self.rows[:2]:
            end = (len(row) - 1) // self.host.page_size * self.host.page_size
            named += row[:end]
            self.bare[row[0]] = max(end, self.bare.get(row[0], 0))
        self.rnd.shuffle(named)
        junk_after(self.device.free_swa, torch.tensor(named, dtype=torch.int32))
        self.host.free_swa(named)

    def free(self):
        """Slots of rows in any order, by either name."""
        if self.rows:
            row = self.pop()
            self.bare.pop(row[0], None)
            self.rnd.shuffle(row)
            slots = torch.tensor(row)
            junk_after(*self.rnd.choice([(self.device.free_full, slots), (self.device.free, slots)]))
            self.host.free(slots)

    def free_segment(self):
        """A row, its two parts each as what it is."""
        if self.rows:
            row = self.pop()
            start = self.bare.pop(row[0], 0)
            front, back = torch.tensor(row[:start], dtype=torch.int64), torch.tensor(row[start:], dtype=torch.int64)
            for allocator in (self.host, self.device):
                allocator.free_full_segment(front.clone(), start_pos=0)
                allocator.free_segment(back.clone(), start_pos=start)

    def free_segments(self):
        """The same in one call each."""
        if self.rows:
            row = self.pop()
            start = self.bare.pop(row[0], 0)
            front, back = torch.tensor(row[:start], dtype=torch.int64), torch.tensor(row[start:], dtype=torch.int64)
            for allocator in (self.host, self.device):
                allocator.free_full_segments([(front, 0)])
                allocator.free_segments([(back, start)])

    def free_tails(self):
        """Rows of which nothing is bare, by a number of pages that the caller knows."""
        for row in [row for row in self.rows if not self.bare.get(row[0])][:1]:
            self.rows.remove(row)
            self.device.free(torch.tensor(row), num_pages=-(-len(row) // self.host.page_size))
            self.host.free(row)

    def clear(self):
        """As new."""
        super().clear()
        self.bare.clear()
