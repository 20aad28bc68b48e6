"""Long lives of many requests with windows, at random, beside the model."""

import random
from collections import Counter

import pytest
from allocator_pair import FORMS, ORDERS
from window_pair import WindowPair

NUM_PAGES = 24
NUM_WINDOWS = 14


class Lives:
    """Requests that come in, slide, lend each other windows and go, inside groups and outside."""

    def __init__(self, seed, page_size, order):
        self.rng = random.Random(seed)
        self.page_size = page_size
        self.pair = WindowPair(NUM_PAGES * page_size, NUM_WINDOWS * page_size, page_size, order)
        self.rows = []
        self.seen = Counter()

    def step(self):
        """Anything that a sound caller does."""
        doing = [self.come] * 4 + [self.grow] * 3 + [self.decode] * 5 + [self.slide] * 5 + [self.go] * 3
        doing += [self.take_over] * 3 + [self.group] * 3 + [self.ask]
        act = self.rng.choice(doing)
        before = self.pair.books
        act()
        what = self.pair.fault.__name__ if self.pair.fault else "change" if self.pair.books != before else "none"
        self.seen[act.__name__, what] += 1

    def come(self):
        """A request with windows everywhere, or under its end alone."""
        length = self.rng.randint(1, 5 * self.page_size)
        tag = [self.rng.randint(1, 9)]
        if self.rng.random() < 0.5:
            slots = self.pair.extend([0], [length], [-1], tag, self.form())
        else:
            head = self.rng.randint(0, length // self.page_size) * self.page_size
            slots = self.pair.tail([0], [length], [-1], length - head, tag, self.form())
        if slots:
            self.rows.append(slots)

    def grow(self):
        """Some rows grow by some tokens, those that are able to."""
        rows = self.some(self.able)
        lengths = [len(row) for row in rows]
        ends = [length + self.rng.randint(0, 2 * self.page_size) for length in lengths]
        slots = self.pair.extend(lengths, ends, [row[-1] for row in rows], form=self.form())
        for row, length, end in zip(rows, lengths, ends, strict=True):
            row.extend((slots or [])[: end - length])
            slots = slots and slots[end - length :]

    def decode(self):
        """Nearly all rows grow by a token; now and then one that has lost the window of its last page is among them."""
        rows = self.some(self.able if self.rng.random() < 0.8 else lambda _: True)
        slots = self.pair.decode([len(row) + 1 for row in rows], [row[-1] for row in rows], form=self.form())
        for row, slot in zip(rows, slots or [], strict=False):
            row.append(slot)

    def slide(self):
        """Windows move on over whole pages; rarely over the last one as well."""
        for row in self.some(lambda _: True):
            whole = len(row) // self.page_size
            end = self.rng.randint(0, whole if self.rng.random() < 0.3 else max(0, whole - 1)) * self.page_size
            start = self.rng.choice([0, self.rng.randint(0, end // self.page_size) * self.page_size])
            part = row[start:end]
            way = self.rng.randrange(4)
            if way == 0:
                self.pair.free_swa(self.rng.sample(part, len(part)), self.form())
            elif way == 1:
                self.pair.free_swa_segment(part, start, self.form())
            elif way == 2:
                self.pair.free_swa_segments([(part, start), (row[:end], 0)], self.form())
            else:
                self.pair.free_window_pages([slot // self.page_size for slot in part])

    def go(self):
        """Some requests end, their rows as a whole or the back first."""
        for row in self.some(lambda _: True)[:2]:
            cut = self.rng.randint(0, len(row) // self.page_size) * self.page_size
            way = self.rng.randrange(4)
            if way == 0:
                self.pair.free(row[cut:], self.form())
                self.pair.free_full(row[:cut], self.form())
            elif way == 1:
                self.pair.free_segment(row[cut:], cut, self.form())
                self.pair.free_full_segment(row[:cut], 0, self.form())
            elif way == 2:
                self.pair.free_segments([(row[:cut], 0), (row[cut:], cut)], self.form())
            else:
                self.pair.free_full_segments([(row[cut:], cut)], self.form())
                self.pair.free_segment(row[:cut], 0, self.form())
            self.rows = [other for other in self.rows if other is not row]

    def take_over(self):
        """A row that has lost windows gets those of another, which ends."""
        model = self.pair.model
        for giver in self.some(lambda _: True)[:1]:
            having = [page for page in self.pages(giver) if page in model.links]
            wanting = [p for row in self.rows if row is not giver for p in self.pages(row) if p not in model.links]
            count = min(len(having), len(wanting))
            src, dst = model.slots(having[:count]), model.slots(self.rng.sample(wanting, count))
            self.pair.move_window(src, dst, self.form())
            if self.rng.random() < 0.5:
                self.pair.free_segment(list(giver), 0, self.form())
                self.rows = [other for other in self.rows if other is not giver]

    def group(self):
        """The step begins or ends."""
        if self.pair.model.group is None:
            self.pair.begin()
        else:
            self.pair.end()

    def ask(self):
        """Where everybody's windows are."""
        self.pair.window_slots([-1, *(slot for row in self.rows for slot in row)], self.form())

    def able(self, row):
        """Whether a row can go on: its last page is full, or has a window."""
        return len(row) % self.page_size == 0 or row[-1] // self.page_size in self.pair.model.links

    def some(self, wanted):
        """Some rows that are as wanted, in any order."""
        rows = [row for row in self.rows if wanted(row)]
        return self.rng.sample(rows, self.rng.randint(0, len(rows)))

    def pages(self, row):
        """The pages of a row."""
        return [slot // self.page_size for slot in row[:: self.page_size]]

    def form(self):
        """Some type of integers."""
        return self.rng.choice(sorted(FORMS))


def live(seeds, num_steps):
    """Let some pools live; what happened in all of them, how often."""
    seen = Counter()
    for seed in seeds:
        lives = Lives(seed, (1, 2, 3, 4, 16)[seed % 5], ORDERS[seed % 3])
        for _ in range(num_steps):
            lives.step()
        seen += lives.seen
    return seen


def test_random_lives_agree_with_the_model():
    """Fifteen pools, two hundred steps each: every kind of step changes something; some find no room or no window."""
    seen = live(range(15), 200)
    for act in ("come", "grow", "decode", "slide", "go", "take_over", "group"):
        assert seen[act, "change"] > 20, act
    assert seen["decode", "UseAfterFree"] > 3
    assert seen["come", "none"] > 20


@pytest.mark.soak
def test_random_lives_agree_with_the_model_for_long():
    """The same with many more pools."""
    live(range(100, 400), 400)
