"""Scenarios of allocators whose indices live on a device: the GPU if there is one, else the CPU in its place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from allocators import GROUP, MILLION, REQUEST, decode, extend, free_in_group, free_segment
from sides import AllocatorSide
from timing import median_of, microseconds

PAGE_SIZE = 16


def device_figures(side: AllocatorSide) -> Iterator[tuple[str, float]]:
    """Name and microseconds of every scenario."""
    scenarios = {
        "alloc": alloc,
        "extend": extend,
        "decode": decode,
        "free": free,
        "free_segment": free_segment,
        "group": free_segments_in_group,
        "token group": free_in_group,
    }
    with torch.device(device()):
        for millions in (1, 4):
            for name, scenario in scenarios.items():
                yield f"device {name} {millions}M", scenario(side, millions * MILLION)


def device() -> str:
    """Where the indices are."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def alloc(side: AllocatorSide, size: int) -> float:
    """A request's slots, of which nothing is cached."""
    pool = side.paged_pool(size, PAGE_SIZE)
    outcome: list[torch.Tensor] = []

    def sample() -> float:
        spent = microseconds(lambda: outcome.append(pool.alloc(REQUEST)))
        pool.free_segment(outcome.pop(), start_pos=0)
        return spent

    return median_of(sample, repeats=200)


def free(side: AllocatorSide, size: int) -> float:
    """A request's slots, in any order."""
    pool = side.paged_pool(size, PAGE_SIZE)

    def sample() -> float:
        slots = pool.alloc(REQUEST)[torch.randperm(REQUEST)]
        return microseconds(partial(pool.free, slots))

    return median_of(sample, repeats=200)


def free_segments_in_group(side: AllocatorSide, size: int) -> float:
    """All requests of a step, each as one segment inside one group, its end included."""
    pool = side.paged_pool(size, PAGE_SIZE)

    def sample() -> float:
        rows = [pool.alloc(REQUEST) for _ in range(GROUP)]
        return microseconds(partial(end_all, pool, rows))

    return median_of(sample, repeats=60)


def end_all(pool, rows: list[torch.Tensor]) -> None:
    pool.free_group_begin()
    for row in rows:
        pool.free_segment(row, start_pos=0)
    pool.free_group_end()
