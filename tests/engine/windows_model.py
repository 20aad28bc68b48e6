"""What a `KVCacheManager` should say of a model whose layers keep windows or chunks, page by page."""

from manager_model import ManagerModel


class WindowModel(ManagerModel):
    """`ManagerModel` with a second side: `windows` are the cached prefixes whose last page has a window page.

    A row keeps the windows from its `window_start` on. When that moves up to what the row needs, its `frontier`, is the
    manager's to say; what lies before it in the row's own pages is given back then, and that of the tree is not locked
    by it any more. `most_window_room` is what could be had if all rows kept no more than they need.
    """

    def __init__(self, num_pages, page_size, num_window_pages, needed_from, *, is_caching):
        super().__init__(num_pages, page_size)
        self.num_window_pages = num_window_pages
        self.needed_from = needed_from
        self.is_caching = is_caching
        self.windows: set[tuple] = set()
        self.parked_windows = 0

    def floor(self, position):
        """The beginning of the page of a position."""
        return position // self.page_size * self.page_size

    def is_restorable(self, space, tokens, end):
        """Whether a sequence can go on behind `end` cached tokens: all that it needs of the windows is live."""
        needed = self.prefixes(space, tokens, end)[self.needed_from(end) // self.page_size :]
        return self.windows.issuperset(needed)

    def usable(self, space, tokens):
        """The longest cached prefix that can be continued, of all of them."""
        ends = range(self.longest(space, tokens), 0, -self.page_size)
        return next((end for end in ends if self.is_restorable(space, tokens, end)), 0)

    def open(self, number, space, tokens):
        """A row on its cached prefix keeps of it what it needs to go on."""
        super().open(number, space, tokens)
        row = self.rows[number]
        row.window_start = self.floor(self.needed_from(row.protected))

    def frontier(self, row):
        """First position whose window is needed, by the row or by a request that finds what the row has computed."""
        return self.floor(self.needed_from(self.floor(row.computed) if self.is_caching else row.computed))

    def move_to(self, row, start):
        """The row's window begins at `start` from now on."""
        before = len(self.own_windows(row))
        row.window_start = start
        self.give_windows(before - len(self.own_windows(row)))

    def own_windows(self, row):
        """Pages of a row that are not the tree's and still have a window page."""
        return row.pages[max(row.window_start, row.protected) // self.page_size :]

    def locked_windows(self):
        """Cached prefixes whose last window page some row needs."""
        keys = set()
        for row in self.rows.values():
            keys.update(self.prefixes(row.space, row.tokens, row.protected)[row.window_start // self.page_size :])
        return keys

    def num_free_windows(self):
        """Window pages that no row and no prefix has."""
        own = sum(len(self.own_windows(row)) for row in self.rows.values())
        return self.num_window_pages - len(self.windows) - own - self.parked_windows

    def window_room(self, also=()):
        """Free window pages and cached ones that no row (nor `also`) needs."""
        return self.num_free_windows() + len(self.windows - self.locked_windows() - set(also))

    def most_window_room(self, also=()):
        """`window_room` if all rows kept no more than they need; in a group what they give back is not free yet."""
        starts = [(row, row.window_start, len(self.own_windows(row))) for row in self.rows.values()]
        for row, start, _ in starts:
            row.window_start = max(start, self.frontier(row))
        room = self.window_room(also)
        if self.parked is not None:
            room -= sum(num_pages - len(self.own_windows(row)) for row, _, num_pages in starts)
        for row, start, _ in starts:
            row.window_start = start
        return room

    def most_pages(self, wanted):
        """How many of so many pages could be had on both sides."""
        return min(super().most_pages(wanted), self.most_window_room())

    def give_windows(self, num_pages):
        """Free window pages: at once, or parked."""
        if self.parked is not None:
            self.parked_windows += num_pages

    def end_group(self):
        """What was parked is free on both sides."""
        super().end_group()
        self.parked_windows = 0

    def cache(self, row):
        """Share a row's computed whole pages; where the tree's page has lost its window it gets the row's."""
        if not self.is_caching:
            return
        end = self.floor(row.computed)
        live_from = max(row.window_start, row.protected)
        for i, key in enumerate(self.prefixes(row.space, row.tokens, end)):
            if row.pages[i] == self.cached.get(key) or i * self.page_size < live_from:
                continue
            if key in self.windows:
                self.give_windows(1)
            self.windows.add(key)
        is_more = end > row.protected
        super().cache(row)
        if is_more:
            row.window_start = self.floor(self.needed_from(end))

    def end(self, number):
        """Drop a row."""
        self.give_windows(len(self.own_windows(self.rows[number])))
        super().end(number)

    def clear(self):
        """Drop all prefixes."""
        super().clear()
        self.windows.clear()
