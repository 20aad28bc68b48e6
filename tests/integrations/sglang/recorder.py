"""Records random legal scripts of an allocator, SGLang's say, to be replayed on another by `replayer.replay`.

A script is what callers do: rows of slots that grow, lose their windows, and go, in whole or from the end. No page is
freed twice, and no row grows behind a freed page.
"""

from __future__ import annotations

import random
from types import MappingProxyType

import torch
from replayer import Op, Script

from drop_in import DropIn


class Row(list):
    """Slots of a request. The first `dead` have no window side any more; if it is `cold`, some have no device side."""

    dead = 0
    cold = False


class Recorder:
    """Drives one pool and writes down what it answers. `rows` are the live requests, lists of slots."""

    counts = ("available",)
    methods = MappingProxyType(
        {"group_begin": "free_group_begin", "group_end": "free_group_end", "translate": "window_slots"}
    )

    def __init__(self, subject: DropIn, seed: int) -> None:
        self.subject = subject
        self.page_size = subject.page_size
        self.rng = random.Random(seed)
        self.rows: list[Row] = []
        self.ops: list[Op] = []
        self.in_group = False

    def record(self, name: str, kind: str, num_ops: int) -> Script:
        """A script of `num_ops` calls and more, at the end of which everything was given back and taken once."""
        while len(self.ops) < num_ops:
            self.rng.choice(self.acts())()
        while self.rows:
            self.finish()
        if self.in_group:
            self.group()
        self.start()
        return Script(name, kind, self.subject.size, self.page_size, always_lowest=False, ops=self.ops)

    def acts(self):
        """What may come next; what comes more often is named more often."""
        growing = [self.start] * 3 if self.page_size == 1 else [self.start, self.extend, self.extend, self.decode]
        return [*growing * 2, self.finish, self.finish, self.cut, self.group, self.group, *[self.rarely] * 2]

    def start(self):
        """A row of whole pages."""
        num_slots = self.rng.randint(0, 6) * self.page_size
        slots = self.do("alloc", n=num_slots)
        if slots:
            self.rows.append(Row(slots))

    def extend(self):
        """New rows and old ones grow in one batch, some of them by nothing."""
        old = [row for row in self.rows if self.rng.random() < 0.4]
        batch = [*old, *(Row() for _ in range(self.rng.randint(0, 2)))]
        self.rng.shuffle(batch)
        ends = [
            len(row) + self.rng.choice([0, 1, self.page_size, self.rng.randint(1, 3 * self.page_size)]) for row in batch
        ]
        slots = self.do("alloc_extend", **self.columns(batch, ends))
        if slots is None:
            return
        for row, end in zip(batch, ends, strict=True):
            new, slots = slots[: end - len(row)], slots[end - len(row) :]
            if not row and new:
                self.rows.append(row)
            row.extend(new)

    def decode(self):
        """Some rows grow by one."""
        batch = [row for row in self.rows if self.rng.random() < 0.7]
        if not self.fits_decode(batch):
            return
        columns = self.columns(batch, [len(row) + 1 for row in batch])
        slots = self.do("alloc_decode", seq_lens=columns["seq_lens"], last_locs=columns["last_locs"])
        for row, slot in zip(batch, slots or [], strict=False):
            row.append(slot)

    def fits_decode(self, batch):
        """Whether to try; the answer may be that the pool is short."""
        return bool(batch)

    def finish(self):
        """Free a row."""
        if self.rows:
            self.give(self.rows.pop(self.rng.randrange(len(self.rows))), 0)

    def cut(self):
        """Free the end of a row, whole pages at a time."""
        rows = [row for row in self.rows if len(row) > row.dead + self.page_size]
        if rows:
            row = self.rng.choice(rows)
            start = self.rng.randint(row.dead // self.page_size + 1, (len(row) - 1) // self.page_size) * self.page_size
            self.give(row, start)
            del row[start:]

    def give(self, row, start):
        """Free the end of a row by one of the ways there are."""
        slots, way = row[start:], self.rng.randrange(3)
        if way == 0:
            self.do("free", slots=self.rng.sample(slots, len(slots)))
        elif way == 1:
            self.do("free_segment", slots=slots, start_pos=start)
        else:
            middle = self.rng.randint(0, len(slots) // self.page_size) * self.page_size
            pieces = [(slots[:middle], start), (slots[middle:], start + middle)]
            self.do("free_segments", segments=[[part, at] for part, at in pieces])

    def group(self):
        """Open a group or close it."""
        self.do("group_end" if self.in_group else "group_begin")
        self.in_group = not self.in_group

    def rarely(self):
        """An end without a group, or everything anew."""
        if not self.in_group:
            self.do("group_end")
        if self.rng.random() < 0.1:
            self.do("clear")
            self.rows.clear()
            self.in_group = False

    def columns(self, batch, ends):
        """Lengths and last slots of rows."""
        last = [row[-1] if row else -1 for row in batch]
        return {"prefix_lens": [len(row) for row in batch], "seq_lens": ends, "last_locs": last}

    def do(self, name, **given):
        """One call: put to the subject, and written down with what it answered and what it counts then."""
        arguments = {key: self.argument(key, value) for key, value in given.items()}
        position = {"start_pos": arguments.pop("start_pos")} if "start_pos" in given else {}
        answer = getattr(self.subject, self.methods.get(name, name))(*arguments.values(), **position)
        result = None if answer is None else answer.tolist()
        op = {"op": name, **given, "result": result, **self.beside(name, answer)}
        self.ops.append(op | {count: getattr(self.subject, f"{count}_size")() for count in self.counts})
        return result

    def argument(self, key, value):
        """Slots to be freed go as tensors; counts, lengths and last slots stay what they are."""
        if key == "segments":
            return [(torch.tensor(slots, dtype=torch.int64), start) for slots, start in value]
        return torch.tensor(value, dtype=torch.int64) if key == "slots" else value

    def beside(self, _name, _answer):
        """What else to write down with an answer."""
        return {}


class WindowRecorder(Recorder):
    """Drives two sides. A row's last page keeps its window side, so that the row can grow."""

    counts = ("available", "full_available", "swa_available")

    def acts(self):
        """Windows that move on, and prompts that need windows at their end alone, besides."""
        paged = [self.tail, self.tail] if self.page_size > 1 else []
        return [*super().acts(), *paged, self.slide, self.slide, self.slide, self.ask]

    def start(self):
        """A row of whole pages; at larger page sizes it grows from nothing."""
        if self.page_size == 1:
            super().start()
        else:
            self.extend()

    def tail(self):
        """A row with windows at its end."""
        seq = self.rng.randint(1, 5 * self.page_size)
        dead = self.rng.randint(0, (seq - 1) // self.page_size) * self.page_size
        row = self.do("alloc_extend_swa_tail", **self.columns([[]], [seq]), tail_len=seq - dead)
        if row:
            self.rows.append(Row(row))
            self.rows[-1].dead = dead

    def fits_decode(self, batch):
        """Not where one side is short and the other is not: then SGLang loses what it took from the other.

        Windows in rings take nothing.
        """
        if self.subject.swa_req_ring:
            return bool(batch)
        pages = sum(len(row) % self.page_size == 0 for row in batch)
        fits = {pages * self.page_size <= self.subject.full_available_size()}
        fits.add(pages * self.page_size <= self.subject.swa_available_size())
        return bool(batch) and len(fits) == 1

    def slide(self):
        """The windows of some rows move on, over whole pages."""
        for row in self.rows:
            end = (len(row) - 1) // self.page_size * self.page_size
            if self.rng.random() < 0.5 and row.dead < end:
                dead = self.rng.randrange(row.dead + self.page_size, end + 1, self.page_size)
                part = row[row.dead : dead]
                if self.rng.random() < 0.5:
                    self.do("free_swa_segment", slots=part, start_pos=row.dead)
                else:
                    self.do("free_swa", slots=self.rng.sample(part, len(part)))
                row.dead = dead

    def ask(self):
        """Where windows are."""
        slots = [slot for row in self.rows for slot in row if self.rng.random() < 0.3]
        self.do("translate", slots=[-1, *slots])

    def give(self, row, start):
        """Pages without a window side are freed on their own."""
        if start < row.dead:
            position = self.rng.choice([{}, {"start_pos": start}])
            name = "free_full_segment" if position else "free_full"
            self.do(name, slots=row[start : row.dead], **position)
        super().give(row, max(start, row.dead))

    def beside(self, name, answer):
        """The window side of new slots."""
        is_new = name.startswith("alloc") and answer is not None
        return {"window": self.subject.window_slots(answer).tolist()} if is_new else {}


class PureWindowRecorder(WindowRecorder):
    """Drives one pool on both sides: pages behind the window belong to other rows when the row is freed."""

    def acts(self):
        """Rows by `alloc` alone, and windows that move on."""
        return [*Recorder.acts(self), self.slide, self.slide]

    def beside(self, _name, _answer):
        """Every slot is its own window side."""
        return {}
