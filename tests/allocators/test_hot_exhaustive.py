"""All of a small pool with a device side: every state that there is, and every operation in each of them."""

from itertools import combinations_with_replacement

import pytest
from every_state import perform_everywhere, reachable
from hot_pair import HiSparsePair


def steps(pair):
    """Operations that lead from states to all others: (name, arguments)."""
    model, size = pair.model, pair.model.page_size
    pages = range(1, model.num_pages + 1)
    for num_pages in pages:
        yield "alloc", num_pages * size
        yield "logical_only", [0], [num_pages * size], [-1]
        yield "extend", [0], [num_pages * size - size // 2], [-1]
    for page in pages:
        yield "free", [page * size]
        yield "free_hisparse", [page * size]
        yield "buffer", [page * size], size
    for page in range(1, model.devices.num_pages + 1):
        yield "free_indices", [page * size]
    yield "buffer", [], size
    yield ("clear",)


def key(pair):
    """A state: what each page of both sides is, who owns whom, and how much of a page is there."""
    model = pair.model
    lens = [model.lens[page] for page in sorted(model.hot)]
    return tuple(model.states()), tuple(model.devices.states()), tuple(model.device_pages()), tuple(lens)


def everything(pair):
    """Operations with any arguments, for the most part wrong ones."""
    model, size = pair.model, pair.model.page_size
    around = range(model.num_pages + 2)
    some = sorted({-1, size - 1, *(page * size + page % size for page in around), 2 * size - 1})
    for slots in [[], *([slot] for slot in some), *(list(pair) for pair in combinations_with_replacement(some, 2))]:
        yield "free", slots
        yield "free_hisparse", slots
        yield "free_indices", slots[::-1]
        yield "buffer", slots, size
    whole = [slot for page in range(1, model.num_pages + 1) for slot in range(page * size, page * size + size)]
    for num_tokens in range(-1, 3 * size + 1):
        yield "buffer", whole, num_tokens
        yield "buffer", whole[::-1], num_tokens
        yield "alloc", num_tokens
    for page in around:
        for name in ("extend", "logical_only"):
            yield name, [0], [page * size], [-1]
            yield name, [1], [1 + size], [page * size]
            yield name, [size], [size + 1], [page * size + size - 1]
            yield name, [0, 1], [1, 2], [-1, page * size]
        yield "decode", [2], [page * size]
        yield "decode", [1, 2], [-1, page * size]
        yield "free_segment", list(range(page * size, page * size + size))
        yield "free_segments", [([page * size], 0), ([size], 0)]
    yield "device_slots", [*some, -1]
    yield "device_slots", [0, -1, *whole]
    yield from (("begin",), ("end",), ("clear",))


@pytest.mark.parametrize(("sizes", "num_states"), [((2, 1, 1), 34), ((2, 2, 3), 40), ((4, 2, 1), 56)])
def test_every_device_operation_in_every_state_agrees_with_the_model(sizes, num_states):
    """Wherever a few pages on two sides have got to, the next call does as the model, or changes nothing."""
    size, page_size, ratio = sizes

    def reach(path):
        pair = HiSparsePair(size, page_size, "lowest", ratio)
        pair.replay(path)
        return pair

    paths = reachable(reach, steps, key)
    assert len(paths) == num_states
    perform_everywhere(reach, paths.values(), everything)
