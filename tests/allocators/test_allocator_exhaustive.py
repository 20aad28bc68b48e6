"""All of a small pool: every state within a few operations, and every operation in each of them."""

from itertools import combinations, permutations, product

import pytest
from allocator_pair import ORDERS, Pair
from every_state import perform_everywhere, reachable

NUM_PAGES = 3


def ordered_subsets(pages):
    return [chosen for k in range(1, len(pages) + 1) for chosen in permutations(pages, k)]


def operations(pair):
    """The operations that lead from a state to others: (name, arguments)."""
    page_size = pair.model.page_size
    yield from (("alloc", num_pages * page_size) for num_pages in range(NUM_PAGES + 1))
    for pages in ordered_subsets(pair.model.live):
        yield "free", pair.model.slots(pages)
        yield "free_segment", pair.model.slots(pages)
    yield from (("begin",), ("end",), ("clear",))


def key(pair):
    """A state as a tuple: all pages and counts, and where in its ring the free list lies."""
    pool = pair.real._pool
    where = () if pool.order == "lowest" else (pool._head, pool._fresh)
    group = pair.model.group
    parked = None if group is None else tuple(map(tuple, group))
    return tuple(pair.model.states()), tuple(pair.model.free_pages), parked, where


def allocations(page_size):
    """Every amount from one below nothing to one above everything, and owner tags at the edges of 32 bits."""
    for num_tokens in range(-1, (NUM_PAGES + 1) * page_size + 1):
        yield "alloc", num_tokens
    for owner in (-(2**31), 2**31 - 1, -(2**31) - 1, 2**31):
        yield "alloc", page_size, owner


def frees(page_size):
    """Every list of up to two slots in and around the pool, and of three of a few slots, by both ways of freeing."""
    around = [*range(-1, (NUM_PAGES + 1) * page_size + 1), 2**63 - 1, -(2**63)]
    slots = [list(chosen) for length in range(3) for chosen in product(around, repeat=length)]
    slots += [list(chosen) for chosen in product(range(NUM_PAGES + 1), repeat=3)]
    for chosen in slots:
        yield "free", chosen
        yield "free_segment", chosen
    for start_pos in (-page_size, -1, 1, page_size):
        yield "free_segment", [page_size], start_pos


def segments(page_size):
    """Every stretch of up to two pages and one of another page, which may be partial; starts may be wrong."""
    whole = {page: list(range(page * page_size, (page + 1) * page_size)) for page in range(NUM_PAGES + 2)}
    stretches = [[], *whole.values(), *(whole[a] + whole[b] for a, b in combinations(whole, 2))]
    for first, second in product(stretches, whole.values()):
        yield "free_segments", [(first, 0), (second[: max(1, page_size - 1)], page_size)]
    yield "free_segments", [(whole[1], 0), (whole[2], -page_size)]
    yield "free_segments", [(whole[1], 0), (whole[2], 1)]


def growths(page_size):
    """A row of any length around a page behind any slot, and two rows in any two pages."""
    lasts = [*range(-1, (NUM_PAGES + 1) * page_size + 1), -(2**63), 2**63 - 2]
    for prefix in range(-1, page_size + 2):
        for seq in {prefix - 1, prefix, prefix + 1, NUM_PAGES * page_size}:
            yield from (("extend", [prefix], [seq], [last], [7]) for last in lasts)
        yield from (("decode", [prefix + 1], [last], [7]) for last in lasts)
    for first, second in product(range(NUM_PAGES + 2), repeat=2):
        two = [first * page_size, second * page_size]
        yield "decode", [2, 2], two
        yield "extend", [1, 1], [1 + page_size, 2], two
    yield "extend", [0], [1], []
    yield "extend", [0], [1, 1], [-1]
    yield "extend", [0], [1], [-1], []
    yield "decode", [1], []
    yield "decode", [1], [-1], [1, 2]


def everything(page_size):
    """Operations with any arguments, for the most part wrong ones."""
    yield from allocations(page_size)
    yield from frees(page_size)
    yield from segments(page_size)
    yield from growths(page_size)
    yield from (("begin",), ("end",), ("clear",))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("page_size", [1, 2])
@pytest.mark.parametrize("depth", [5, pytest.param(6, marks=pytest.mark.soak)])
def test_every_operation_in_every_state_agrees_with_the_model(page_size, order, depth):
    """Whatever three pages went through in a few operations, the next one does as the model, or changes nothing."""

    def reach(path):
        pair = Pair(NUM_PAGES * page_size, page_size, order)
        pair.replay(path)
        return pair

    paths = reachable(reach, operations, key, depth)
    perform_everywhere(reach, paths.values(), lambda _: everything(page_size))
