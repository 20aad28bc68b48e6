"""All of a small pool of two sides: every state that there is, and every operation in each of them.

Three full pages, two window pages, lowest first: then a state is who holds what and whether a group is open, and there
are few enough of them to visit all. Whatever order frees of both sides, of one side and of stretches come in, with and
without a group, it is a path between these states.
"""

from itertools import combinations, permutations, product

import pytest
from every_state import perform_everywhere, reachable
from window_pair import WindowPair

NUM_PAGES = 3
NUM_WINDOWS = 2
PAGES = range(1, NUM_PAGES + 1)
AROUND = range(NUM_PAGES + 2)


def steps(page_size):
    """Operations that lead from states to all others: (name, arguments)."""
    for num_pages in PAGES:
        yield "alloc", num_pages * page_size
        for with_peer in range(num_pages):
            yield "tail", [0], [num_pages * page_size], [-1], with_peer * page_size
    for page in PAGES:
        yield "free", [page * page_size]
        yield "free_swa", [page * page_size]
    for giver, taker in permutations(PAGES, 2):
        yield "move_window", [giver * page_size], [taker * page_size]
    yield from (("begin",), ("end",), ("clear",))


def key(pair):
    """A state: what each page is, which page it is linked to, and whether a group is open."""
    model = pair.model
    return tuple(model.states()), tuple(model.windows.states()), tuple(model.window_pages()), model.group is None


def slot_frees(page_size):
    """Every list of up to two of the pool's pages, padding and beyond, by slots here and there in them."""
    some = sorted({-1, page_size - 1, *(page * page_size + page % page_size for page in AROUND), 2 * page_size - 1})
    for slots in (list(chosen) for length in range(3) for chosen in product(some, repeat=length)):
        yield "free", slots
        yield "free_swa", slots
    for slot in some:
        yield "free_full", [slot]
        yield "free_window_pages", [slot // page_size, 2, 2]
    yield "window_slots", [*some, -1]
    yield "window_slots", [slot for slot in some if slot < (NUM_PAGES + 1) * page_size]


def segment_frees(page_size):
    """Rows of one, two and three distinct pages, the last in part, as one stretch and as many; starts may be wrong."""
    whole = {page: list(range(page * page_size, (page + 1) * page_size)) for page in AROUND}
    for pages in [(page,) for page in AROUND] + list(permutations(AROUND, 2)) + list(permutations(PAGES)):
        row = [slot for page in pages for slot in whole[page]][: len(pages) * page_size - page_size // 2]
        yield "free_segment", row
        yield "free_swa_segment", row
        parts = [(row[at : at + page_size], at) for at in range(0, len(row), page_size)]
        if len(parts) > 1:
            yield "free_segments", parts
            yield "free_swa_segments", parts
    yield from (("free_full_segment", whole[page]) for page in AROUND)
    for name in ("free", "free_full", "free_swa"):
        yield f"{name}_segments", []
        yield f"{name}_segments", [([], 0), (whole[1], 0)]
        yield f"{name}_segments", [(whole[1], 0), (whole[1], page_size)]
        yield f"{name}_segments", [(whole[1], 0), (whole[2][::-1] + whole[2], page_size)]
        yield f"{name}_segments", [(whole[1], 0), (whole[2], -page_size)]
        yield f"{name}_segment", whole[1], 1


def growths(page_size):
    """Rows behind any page, with windows or only at their end."""
    for num_pages in range(NUM_PAGES + 2):
        yield "alloc", num_pages * page_size
        for with_peer in range(num_pages + 2):
            yield "tail", [0], [num_pages * page_size], [-1], with_peer * page_size
    yield "tail", [0], [page_size], [-1], -1
    yield "tail", [0, 0], [page_size, page_size], [-1, -1], 0
    for page in AROUND:
        last = page * page_size
        yield "decode", [2], [last]
        yield "extend", [1], [1 + page_size], [last]
        yield "tail", [1], [1 + page_size], [last], 1
        yield "tail", [1], [2 * page_size], [last], page_size
        yield "tail", [1], [2 * page_size], [last], 0
        yield "decode", [1, 2], [-1, last]


def moves(page_size):
    """A window page between any two pages, and two window pages between any live ones."""
    for giver, taker in product(AROUND, repeat=2):
        yield "move_window", [giver * page_size], [taker * page_size]
    for giver, taker in product(PAGES, repeat=2):
        yield "move_window", [giver * page_size + page_size - 1] * 2, [taker * page_size + page_size - 1] * 2
    for one, other in combinations(product(PAGES, repeat=2), 2):
        yield "move_window", [one[0] * page_size, other[0] * page_size], [one[1] * page_size, other[1] * page_size]
    yield "move_window", [page_size], [2 * page_size + 1]
    yield "move_window", [page_size], []


def everything(page_size):
    """Operations with any arguments, for the most part wrong ones."""
    yield from slot_frees(page_size)
    yield from segment_frees(page_size)
    yield from growths(page_size)
    yield from moves(page_size)
    yield from (("begin",), ("end",), ("clear",))


@pytest.mark.parametrize("page_size", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_every_window_operation_in_every_state_agrees_with_the_model(page_size):
    """Wherever three pages and two windows have got to, the next call does as the model, or changes nothing."""

    def reach(path):
        pair = WindowPair(NUM_PAGES * page_size, NUM_WINDOWS * page_size, page_size, "lowest")
        pair.replay(path)
        return pair

    paths = reachable(reach, lambda _: steps(page_size), key)
    assert (
        len(paths) == 44 + 219
    )  # without and with a group; in one, who has lost a window page is live or parked, never free
    perform_everywhere(reach, paths.values(), lambda _: everything(page_size))
