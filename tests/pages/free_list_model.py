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
        """All pages are free, ascending."""
        self.free = list(range(1, self.num_pages + 1))
        self.live = {}  # page -> owner
        self.parked = set()

    def take(self, num_pages, owner):
        """The next pages, or None."""
        if num_pages > len(self.free):
            return None
        pages, self.free = self.free[:num_pages], self.free[num_pages:]
        self.live |= dict.fromkeys(pages, owner)
        return pages

    def leave(self, pages, after):
        """Live pages become free or parked."""
        for page in pages:
            del self.live[page]
        if after == PARKED:
            self.parked |= set(pages)
        else:
            self._queue(pages)

    def unpark(self, parked):
        """Parked pages become free, call by call."""
        for pages in parked:
            self.parked -= set(pages)
            self._queue(pages)

    def states(self):
        """The state of every page, page 0 first."""
        where = dict.fromkeys(self.live, LIVE) | dict.fromkeys(self.parked, PARKED) | dict.fromkeys(self.free, FREE)
        return [PADDING, *(where[page] for page in range(1, self.num_pages + 1))]

    def _queue(self, pages):
        if self.order == "lifo":
            self.free = [*pages, *self.free]
        elif self.order == "fifo":
            self.free = [*self.free, *pages]
        else:
            self.free = sorted([*self.free, *pages])
