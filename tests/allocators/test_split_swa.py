import random
from collections import Counter

import pytest
from allocator_pair import FORMS, ORDERS
from split_pair import SplitPair

from kvstead.allocators.loose_windows import SplitSWAAllocator
from kvstead.errors import AuditError

NUM_PAGES, NUM_WINDOWS = 7, 5
EVERYTHING = {
    *{(act, "change") for act in ("whole", "full", "window", "give", "part", "join", "free", "slide", "group")},
    *{("give", fault) for fault in ("DoubleFree", "ForeignPage", "WindowTaken")},
    ("part", "ForeignPage"),
    *{("join", f) for f in ("InvalidSize", "MisalignedSegment", "ForeignPage", "UseAfterFree", "WindowTaken")},
    ("join", "DoubleFree"),
    *{(act, fault) for act in ("full", "window") for fault in ("InvalidSize", "MisalignedSize")},
    *{(act, "none") for act in ("full", "window", "part", "join")},
}


class Calls:
    """Any call with nearly any pages, so that most of them are faults."""

    def __init__(self, seed, page_size, order):
        self.rng = random.Random(seed)
        self.page_size = page_size
        self.pair = SplitPair(NUM_PAGES * page_size, NUM_WINDOWS * page_size, page_size, order)
        self.seen = Counter()

    def step(self):
        """One of them."""
        freeing = [self.give, self.part, self.free, self.slide, self.group]
        act = self.rng.choice([self.whole, self.full, self.window, self.join, self.join, *freeing])
        before = self.pair.books, set(self.pair.model.loose)
        act()
        after = self.pair.books, self.pair.model.loose
        what = self.pair.fault.__name__ if self.pair.fault else "change" if before != after else "none"
        self.seen[act.__name__, what] += 1

    def whole(self):
        """Pages with their window pages."""
        self.pair.alloc(self.rng.randint(0, 2) * self.page_size)

    def full(self):
        """Full pages alone."""
        self.pair.alloc_full(self.number())

    def window(self):
        """Window pages alone."""
        self.pair.alloc_window(self.number())

    def give(self):
        """Window pages that are loose, or not."""
        some = self.pages(self.pair.model.loose, NUM_WINDOWS)
        self.pair.free_window(self.slots(some), self.form())

    def part(self):
        """Window pages from their pages."""
        self.pair.detach(self.slots(self.pages(self.pair.model.links, NUM_PAGES)), self.form())

    def join(self):
        """Pages of both sides, that fit or do not."""
        full = self.pages(set(self.pair.model.live) - set(self.pair.model.links), NUM_PAGES)
        linked_pages = self.pages(self.pair.model.loose, NUM_WINDOWS)
        if self.rng.random() < 0.9:
            full, linked_pages = full[: len(linked_pages)], linked_pages[: len(full)]
        if self.rng.random() < 0.2:
            full, linked_pages = list(self.pair.model.links), list(self.pair.model.links.values())
        parts = [[slot for page in side for slot in self.whole_page(page)] for side in (full, linked_pages)]
        start = self.rng.randrange(self.page_size)
        if self.rng.random() < 0.5:
            parts = [part[start:] for part in parts]
        elif self.rng.random() < 0.1:
            parts[0] = parts[0][::-1]
        self.pair.attach(*parts, self.form())

    def free(self):
        """Pages with what window pages they have."""
        self.pair.free(self.slots([page for page in self.pair.model.live if self.rng.random() < 0.4]), self.form())

    def slide(self):
        """Window pages alone."""
        self.pair.free_swa(self.slots([page for page in self.pair.model.links if self.rng.random() < 0.4]), self.form())

    def group(self):
        """Open, close, and rarely start anew."""
        if self.rng.random() < 0.1:
            self.pair.clear()
        elif self.pair.real.free_group is None:
            self.pair.begin()
        else:
            self.pair.end()

    def pages(self, likely, count):
        """Some of the likely pages, and rarely any other."""
        some = [page for page in likely if self.rng.random() < 0.7]
        self.rng.shuffle(some)
        return [*some, *([self.rng.randint(-1, count + 1)] if self.rng.random() < 0.2 else [])]

    def slots(self, pages):
        """A slot or two of each page."""
        return [page * self.page_size + self.rng.randrange(self.page_size) for page in pages * self.rng.randint(1, 2)]

    def whole_page(self, page):
        """All slots of a page."""
        return [page * self.page_size + offset for offset in range(self.page_size)]

    def number(self):
        """How many slots to ask for; rarely a wrong number."""
        pages = self.rng.randint(0, 3) * self.page_size
        return self.rng.choice([pages] * 8 + [-self.page_size, pages + 1])

    def form(self):
        """Any shape of integers."""
        return self.rng.choice(list(FORMS))


@pytest.mark.parametrize("order", ORDERS)
def test_sides_come_apart_and_together_as_in_the_model(order):
    """Any call gives the model's answer, error and state, and a refused one changes nothing; all kinds come up."""
    seen = Counter()
    for page_size in (1, 2, 4):
        calls = Calls(page_size, page_size, order)
        for _ in range(350):
            calls.step()
        seen += calls.seen
    assert not EVERYTHING - set(seen)


def test_windows_move_from_a_duplicate_to_the_page_that_is_kept():
    """Detached and attached again, window pages go to the kept pages, duplicates lose theirs, and all are freed."""
    pair = SplitPair(16, 16, 4, "lifo")
    kept, duplicate = pair.alloc(8), pair.alloc(8)
    windows = pair.window_slots(duplicate)
    pair.free_swa(kept)
    pair.detach(duplicate)
    pair.attach(kept, windows)
    pair.begin()
    pair.free(duplicate)
    assert pair.window_slots(kept) == windows
    assert [release.pages.size for release in pair.real.window_releases()] == []
    pair.free_swa(kept[:1])
    assert [release.pages.tolist() for release in pair.real.window_releases()] == [[windows[0] // 4]]
    pair.end()
    assert pair.real.window_releases() == []
    pair.free(kept)
    assert (pair.real.full_available_size(), pair.real.swa_available_size()) == (16, 16)


def test_audit_finds_a_window_page_that_nobody_holds():
    """A live window page that is neither a window page nor loose is lost, and one that is both is there twice."""
    allocator = SplitSWAAllocator(8, 8, 2)
    allocator.alloc_window(4)
    allocator.audit()
    allocator._window.loose[1] = False
    with pytest.raises(AuditError, match="window pages"):
        allocator.audit()
    allocator = SplitSWAAllocator(8, 8, 2)
    allocator.alloc(2)
    allocator._window.loose[1] = True
    with pytest.raises(AuditError, match="window pages"):
        allocator.audit()
