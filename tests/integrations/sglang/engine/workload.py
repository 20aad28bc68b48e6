"""What is asked of an engine: requests and aborts, each at a step of the scheduler, the same in every run."""

import random
from dataclasses import dataclass

from engine.models import VOCABULARY


@dataclass(frozen=True)
class Event:
    """A request, or an abort of one (no prompt), that reaches the scheduler at `step`."""

    step: int
    request: str
    prompt: tuple = ()
    new_tokens: int = 0


def _tokens(random_numbers, length):
    return tuple(random_numbers.randrange(3, VOCABULARY) for _ in range(length))


def waves(number):
    """Requests four at a time over three shared prefixes, and the first one once more at the end."""
    numbers = random.Random(0)
    prefixes = [_tokens(numbers, length) for length in (40, 37, 64)]
    events = []
    for index in range(number):
        prompt = prefixes[index % 3] + _tokens(numbers, numbers.randrange(3, 90))
        events.append(Event(index // 4 * 3, f"r{index}", prompt, numbers.randrange(8, 48)))
    return [*events, Event(14, "again", events[0].prompt, 20)]


def aborts(number):
    """The same with aborts: of requests that wait, prefill and decode."""
    stopped = ((5, "r1"), (9, "r6"), (10, "r10"), (12, "r9"))
    return waves(number) + [Event(step, request) for step, request in stopped]


def stream(number):
    """A request every other step over four prefixes: more than the pools hold, so that caches are evicted."""
    numbers = random.Random(0)
    prefixes = [_tokens(numbers, length) for length in (64, 48, 96, 32)]
    return [
        Event(
            2 * index,
            f"r{index}",
            prefixes[index % 4] + _tokens(numbers, numbers.randrange(3, 120)),
            numbers.randrange(16, 64),
        )
        for index in range(number)
    ]


WORKLOADS = {"waves": waves, "aborts": aborts, "stream": stream}
