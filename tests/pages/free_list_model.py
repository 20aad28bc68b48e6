"""The slow, obviously right free list: Python lists, dictionaries and sets of page ids."""

from kvstead.kernels.host import FREE, LIVE, PADDING, PARKED

ORDERS = ("lifo", "fifo", "lowest")


class FreeListModel:
    """Pages 1 .. `num_pages`; `free` holds the free ones in the order in which they are taken."""

    def __init__(self, num_pages, order):
        self.num_pages = num_pages
        self.order = order
        self.clear()

    def clear(self):
        """All free, ascending."""
        self.free = list(range(1, self.num_pages + 1))
        self.live = {}  # page -> owner
        self.parked = {}  # page -> owner at the time

    def take(self, num_pages, owner):
        """The next pages, or None."""
        if num_pages > len(self.free):
            return None
        pages, self.free = self.free[:num_pages], self.free[num_pages:]
        self.live |= dict.fromkeys(pages, owner)
        return pages

    def give(self, pages):
        """Live pages become free."""
        for page in pages:
            del self.live[page]
        self._list(pages)

    def park(self, pages):
        """Live pages become parked."""
        self.parked |= {page: self.live.pop(page) for page in pages}

    def unpark(self, pages):
        """Parked pages become free."""
        for page in pages:
            del self.parked[page]
        self._list(pages)

    def restore(self, pages):
        """Parked pages become live."""
        self.live |= {page: self.parked.pop(page) for page in pages}

    def states(self):
        """The state of every page, page 0 first."""
        where = dict.fromkeys(self.live, LIVE) | dict.fromkeys(self.parked, PARKED) | dict.fromkeys(self.free, FREE)
        return [PADDING, *(where[page] for page in range(1, self.num_pages + 1))]

    def _list(self, pages):
        if self.order == "lifo":
            self.free = [*pages, *self.free]
        elif self.order == "fifo":
            self.free = [*self.free, *pages]
        else:
            self.free = sorted([*self.free, *pages])
