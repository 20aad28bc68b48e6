"""How a figure is taken: garbage collection off, a warm-up, then the median of single timed calls."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch

SECONDS = 3
FEWEST = 5


def microseconds(call: Callable[[], Any]) -> float:
    """How long one call takes, result thrown away."""
    start = perf_counter_ns()
    call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()  # what the call has launched is part of it
    return (perf_counter_ns() - start) / 1e3


def microseconds_each(call: Callable[[], Any], times: int) -> float:
    """The mean over a tight loop, for calls that are too short for the clock."""
    start = perf_counter_ns()
    for _ in range(times):
        call()
    return (perf_counter_ns() - start) / 1e3 / times


def median_of(sample: Callable[[], float], *, repeats: int, warm_up: int = 5) -> float:
    """The median of `repeats` samples (fewer where they take longer than `SECONDS`), after some that do not count."""
    with collector_off():
        for _ in range(warm_up):
            sample()
        samples: list[float] = []
        stop = perf_counter_ns() + SECONDS * 10**9
        while len(samples) < FEWEST or (len(samples) < repeats and perf_counter_ns() < stop):
            samples.append(sample())
        return median(samples)


@contextmanager
def collector_off() -> Iterator[None]:
    """No garbage collection inside, one before."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
