"""What a `KVCacheManager` should say of a model whose layers keep windows or chunks, page by page."""

from manager_model import ManagerModel


class WindowModel(ManagerModel):
    """`ManagerModel` with a second side: `windows` are the cached prefixes whose last page has a window page.

    A row keeps the windows from its `window_start` on; the model moves it when the manager says it does: when the row
    grows or is cached, and for all rows when window pages are asked for. What lies before it in the row's own pages is
    given back then, and that of the tree is not locked by it any more.
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
        """The longest cached prefix that can be gone on from, of all of them."""
        ends = range(self.longest(space, tokens), 0, -self.page_size)
        return next((end for end in ends if self.is_restorable(space, tokens, end)), 0)

    def open(self, number, space, tokens):
        """A row on its cached prefix keeps of it what it needs to go on."""
        super().open(number, space, tokens)
        row = self.rows[number]
        row.window_start = self.floor(self.needed_from(row.protected))

    def frontier(self, row):
        """First position whose window a row needs: so that it can go on, and whoever finds what it has computed."""
        return self.floor(self.needed_from(self.floor(row.computed) if self.is_caching else row.computed))

    def slide(self, row, *, is_exact):
        """The row's window moves on; inside of what the tree has only if every page counts."""
        frontier = self.frontier(row)
        if frontier >= row.protected or is_exact:
            self.move_to(row, max(row.window_start, frontier))

    def move_to(self, row, start):
        """The row's window begins at `start` from now on."""
        before = len(self.own_windows(row))
        row.window_start = start
        self.give_windows(before - len(self.own_windows(row)))

    def reclaim(self):
        """No row keeps a window that it does not need."""
        for row in self.rows.values():
            self.slide(row, is_exact=True)

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
        """Window pages that nobody has."""
        own = sum(len(self.own_windows(row)) for row in self.rows.values())
        return self.num_window_pages - len(self.windows) - own - self.parked_windows

    def window_room(self, also=()):
        """Free window pages and cached ones that no row (nor `also`) needs."""
        return self.num_free_windows() + len(self.windows - self.locked_windows() - set(also))

    def most_pages(self, wanted):
        """Rows let go what they need no more only when it is asked for."""
        pages = super().most_pages(wanted)
        if pages > self.window_room():
            self.reclaim()
        return min(pages, self.window_room())

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
