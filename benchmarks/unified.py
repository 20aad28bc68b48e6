"""Scenarios of the allocators whose pools share one arena: requests that end, rows that grow, pages that move.

    windows               | sink | window >>> ............................ <<< full |
    states                | sink | state >>> ............................. <<< full |
    windows and states    | sink | state >>> ...... << window >> ......... <<< full |

A request holds `REQUEST` tokens, with their window slots where there are windows, and a state where there are states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from statistics import median

import torch

from sides import KINDS, Call, UnifiedPool, UnifiedSide
from timing import collector_off, median_of, microseconds

MILLION = 1 << 20
REQUEST = 2048  # tokens of a request
RUNNING = 8  # requests that hold pages meanwhile
TURNS = 16  # samples, after some that do not count
WARM_UP = 3
PAGE = 64
ROWS = 32  # rows that decode
LENGTH = 512  # tokens of the shortest of them
TIGHT = 1 << 16  # tokens that an arena has room for in which pages must move
STATES = 32  # states that are taken there, as many bytes as a request has on one side

Request = tuple[torch.Tensor, torch.Tensor | None]
Free = Callable[[torch.Tensor], None]


def unified_figures(side: UnifiedSide) -> Iterator[tuple[str, float]]:
    """Name and microseconds of every scenario that the side can run, and the bytes that takes move."""
    for kind, mode in product(KINDS, ("lazy", "eager")):
        eager = mode == "eager"
        for page_size, millions in product((1, PAGE), (1, 4)):
            pool = side.unified_pool(kind, millions * MILLION, page_size, eager=eager)
            freed, taken = turnover(pool, pool.free)
            yield f"unified {kind} free page {page_size} {millions}M {mode}", freed
            if millions == 1:
                yield f"unified {kind} alloc page {page_size} {mode}", taken
                pool.clear()
                freed, _ = turnover(pool, partial(pool.free_segment, start_pos=0))
                yield f"unified {kind} free_segment page {page_size} {mode}", freed
                pool.clear()
                if (spent := decode(pool, page_size)) is not None:
                    yield f"unified {kind} decode page {page_size} {mode}", spent
    for kind in KINDS:
        spent, moved = take_that_moves(side.unified_pool(kind, TIGHT, PAGE, eager=False), kind)
        yield f"unified {kind} take lazy", spent
        yield f"unified {kind} moved lazy", moved


def turnover(pool: UnifiedPool, free: Free) -> tuple[float, float]:
    """The oldest of the requests ends and another one begins; most of the arena is free.

    Eager pools close the holes that the one leaves, lazy ones give them to the other.
    """
    running = [begin(pool) for _ in range(RUNNING)]
    freed, taken = [], []
    with collector_off():
        for _ in range(WARM_UP + TURNS):
            freed.append(microseconds(partial(end, pool, free, running.pop(0))))
            taken.append(microseconds(lambda: running.append(begin(pool))))
    return median(freed[WARM_UP:]), median(taken[WARM_UP:])


def begin(pool: UnifiedPool) -> Request:
    """Slots for a request, and its state."""
    slots = pool.alloc(REQUEST)
    assert slots is not None, "the arena is made large enough"
    return slots, pool.alloc_states(1) if pool.has_states else None


def end(pool: UnifiedPool, free: Free, request: Request) -> None:
    slots, state = request
    free(slots)
    if state is not None:
        pool.free_states(state)


def decode(pool: UnifiedPool, page_size: int) -> float | None:
    """Rows grow by one token, a step; of 64 tokens a page, one row begins a page in every other step.

    None where the library cannot do that on a CPU.
    """
    seq = LENGTH + 2 * torch.arange(ROWS)
    whole = -(-seq // page_size) * page_size
    slots = pool.alloc(int(whole.sum()))
    assert slots is not None, "the arena is made large enough"
    if pool.decode_call(seq, slots[:ROWS]) is None:
        return None
    outcome = [slots[torch.cumsum(whole, 0) - whole + seq - 1]]

    def step() -> float:
        seq.add_(1)
        call = pool.decode_call(seq.clone(), outcome.pop())
        return microseconds(lambda: outcome.append(call()))

    return median_of(lambda: (step() + step()) / 2, repeats=50)


def take_that_moves(pool: UnifiedPool, kind: str) -> tuple[float, float]:
    """What a take costs for which pages have to move, and the bytes that it moves.

    The arena is full. Then every other page of the side that has to give way is freed, its edges apart: there are holes
    enough, and none of them is of use to the side that takes.
    """
    spent, moved = [], []
    with collector_off():
        for _ in range(WARM_UP + TURNS):
            pool.clear()
            slots = pool.alloc(pool.available_size() // PAGE * PAGE)
            assert slots is not None, "as many as are available"
            call = make_holes(pool, kind, slots.view(-1, PAGE)[1:-1:2].flatten())
            before, outcome = pool.bytes_moved(), []
            spent.append(microseconds(lambda call=call, outcome=outcome: outcome.append(call())))
            moved.append(pool.bytes_moved() - before)
            assert outcome[0] is not None, "a layout has room"
    return median(spent[WARM_UP:]), median(moved[WARM_UP:])


def make_holes(pool: UnifiedPool, kind: str, slots: torch.Tensor) -> Call:
    """Free the side of slots that is to give way: windows for the tokens of a request, or tokens for states."""
    if kind == "states":
        pool.free(slots)
        return partial(pool.alloc_states, STATES)
    pool.drop_windows(slots)
    return partial(pool.alloc, REQUEST)
