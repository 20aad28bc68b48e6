"""Which layouts there are, found by trying all of them. Shares nothing with the code under test."""

from functools import cache

LOW, MIDDLE, HIGH = -1, 0, 1


def starts(page_bytes, place, count, below, total, sink):
    """Every page at which `count` pages of a pool can begin, above byte `below`."""
    first, limit = -(-sink // page_bytes), total // page_bytes
    everywhere = {LOW: [first], HIGH: [limit - count], MIDDLE: range(first, limit - count + 1)}[place]
    return [at for at in everywhere if at >= first and at + count <= limit and at * page_bytes >= below and count]


@cache
def some_layout(pools, total, sink, below=0):
    """Whether pools of (page bytes, place, pages) can lie one above the other, packed, each on its own grid."""
    if not pools:
        return True
    page_bytes, place, count = pools[0]
    if not count:
        return some_layout(pools[1:], total, sink, below)
    return any(
        some_layout(pools[1:], total, sink, (at + count) * page_bytes)
        for at in starts(page_bytes, place, count, below, total, sink)
    )


def room_unmoved(pools, index, total, sink):
    """How many pages one pool can take while no used page moves; pools are (page bytes, place, used pages).

    Tries every pair of edges that contains the pool's used pages and stays clear of those of the others.
    """
    page_bytes, place, used = pools[index]
    first, limit = -(-sink // page_bytes), total // page_bytes
    below = max(((max(pages) + 1) * size for size, _, pages in pools[:index] if pages), default=sink)
    above = min((min(pages) * size for size, _, pages in pools[index + 1 :] if pages), default=total)
    best = 0
    for lo in [first] if place == LOW else range(first, limit + 1):
        for hi in [limit] if place == HIGH else range(lo, limit + 1):
            inside = lo * page_bytes >= below and hi * page_bytes <= above
            if inside and all(lo <= page < hi for page in used):
                best = max(best, hi - lo - len(used))
    return best
