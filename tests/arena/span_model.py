"""The slow, obviously right span: sets of page numbers."""

LOW, HIGH = -1, 1


class SpanModel:
    """Used pages, and two edges that follow from them and from the end at which the span is anchored."""

    def __init__(self, first, limit, place, used=()):
        self.first, self.limit, self.place = first, limit, place
        self.used = set(used)

    @property
    def edges(self):
        """Around the used pages, out to the anchored end; None where the span is empty and anchored nowhere."""
        home = {LOW: self.first, HIGH: self.limit}.get(self.place)
        if not self.used:
            return None if home is None else (home, home)
        lo, hi = min(self.used), max(self.used) + 1
        return (home if self.place == LOW else lo), (home if self.place == HIGH else hi)

    @property
    def holes(self):
        """The pages between the edges that are not used, ascending."""
        lo, hi = self.edges or (0, 0)
        return [page for page in range(lo, hi) if page not in self.used]

    def band(self, side, num_pages):
        """The outermost pages on a side."""
        lo, hi = self.edges
        return set(range(hi - num_pages, hi) if side == HIGH else range(lo, lo + num_pages))

    def retreat(self, side, num_pages):
        """What has to move from a band, and to where: holes outside, farthest first, then pages beyond them.

        Returns (src, dst, pages beyond the opposite edge). The used pages of the band move, in ascending order.
        """
        lo, hi = self.edges
        if num_pages >= hi - lo:
            src = sorted(self.used)
            start = hi - num_pages - len(src) if side == HIGH else lo + num_pages
            dst = list(range(start, start + len(src)))
            fresh = num_pages - len(self.holes)
        else:
            band = self.band(side, num_pages)
            src = sorted(band & self.used)
            holes = self.holes if side == HIGH else self.holes[::-1]
            far = [hole for hole in holes if hole not in band]
            dst = far[: len(src)]
            fresh = len(src) - len(dst)
            dst += list(range(lo - fresh, lo) if side == HIGH else range(hi, hi + fresh))
        return src, dst, fresh

    def move(self, src, dst):
        """Pages change places."""
        assert set(src) <= self.used
        assert not set(dst) & self.used
        self.used = self.used - set(src) | set(dst)
