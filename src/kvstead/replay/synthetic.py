"""Chat traffic from a seed: sessions of several turns over shared system prompts.

    turn 1   [ system prompt | user 1 ]                                    the answer is output 1
    turn 2   [ system prompt | user 1 | output 1 | user 2 ]                the answer is output 2
    turn 3   [ system prompt | user 1 | output 1 | user 2 | output 2 | user 3 ]
             '- shared by --''-- shared with the session's earlier turns --'
               sessions

A full block of a prompt keeps its id in later turns. The partial block at a prompt's end has an id of its own, since
the next turn holds other tokens there: reuse ends at the last full block, as in recorded traces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from random import Random
from typing import NamedTuple

import numpy as np

from kvstead.replay.checks import require_from_to
from kvstead.replay.rows import MAX_TICKS, MAX_TOKENS
from kvstead.replay.trace import Trace, by_arrival
from kvstead.replay.writers import write_mooncake

__all__ = ["make_trace", "write_mooncake"]

_SECONDS_PER_OUTPUT_TOKEN = 0.02  # a user reads the answer as it comes, at about 50 tokens/s

_RANGES = {
    "num_sessions": (1, MAX_TICKS),
    "turns": (1, MAX_TICKS),
    "block_size": (1, MAX_TOKENS),
    "num_system_prompts": (1, MAX_TOKENS),
    "system_tokens": (1, MAX_TOKENS),
    "user_tokens": (1, MAX_TOKENS),
    "output_tokens": (1, MAX_TOKENS),
    "spread": (0, 3),
    "sessions_per_second": (1e-6, 1e6),
    "burstiness": (1e-3, 1e3),
    "think_seconds": (0, 1e6),
    "max_prompt_tokens": (2, MAX_TOKENS),
}

_BlockKey = tuple[int, int]  # (session, block), (-1 - system prompt, block) or (session, -1 - turn) for a partial block


class _Request(NamedTuple):
    arrival_ms: int
    prompt_len: int
    output_len: int
    blocks: list[_BlockKey]


def make_trace(
    *,
    seed: int,
    num_sessions: int,
    turns: float = 4.0,
    block_size: int = 16,
    num_system_prompts: int = 4,
    system_tokens: float = 800.0,
    user_tokens: float = 120.0,
    output_tokens: float = 200.0,
    spread: float = 0.8,
    sessions_per_second: float = 1.0,
    burstiness: float = 4.0,
    think_seconds: float = 10.0,
    max_prompt_tokens: int = 32_768,
    name: str = "synthetic",
) -> Trace:
    """Chat sessions that start in bursts; the same arguments give the same trace.

    turns: the mean number of turns of a session (geometric). num_system_prompts: how many there are; the k-th is chosen
    in proportion to 1 / k. system_tokens, user_tokens, output_tokens, think_seconds: medians of lognormals, whose
    logarithm has the standard deviation `spread`; the think time passes between an answer and the next turn.
    sessions_per_second, burstiness: gaps between session starts are gamma distributed with this rate and squared
    coefficient of variation; 1 is a Poisson process, more comes in bursts. A session ends before a prompt would exceed
    `max_prompt_tokens`; a system prompt takes at most half of them. Times are whole milliseconds.

    Raises `InvalidSize` for a figure out of range.
    """
    figures = locals()
    for figure, (lowest, highest) in _RANGES.items():
        require_from_to(figure, figures[figure], lowest, highest)
    draw = _Draw(Random(seed), spread)  # noqa: S311 - traffic, no secret
    system_lens = [draw.tokens(system_tokens, max_prompt_tokens // 2) for _ in range(num_system_prompts)]
    chat = _Chat(draw, turns, block_size, system_lens, user_tokens, output_tokens, think_seconds, max_prompt_tokens)
    starts = draw.starts(num_sessions, sessions_per_second, burstiness)
    requests = [request for session, start in enumerate(starts) for request in chat.session(session, start)]
    return _trace(requests, block_size, name)


@dataclass(frozen=True, slots=True)
class _Draw:
    """Draws the random figures."""

    random: Random
    spread: float

    def lognormal(self, median: float) -> float:
        return self.random.lognormvariate(log(median), self.spread) if median > 0 else 0.0

    def tokens(self, median: float, most: int) -> int:
        return max(1, min(round(self.lognormal(median)), most))

    def starts(self, num_sessions: int, rate: float, burstiness: float) -> Iterator[float]:
        """When sessions start; the gap to the next one is drawn only when that one is asked for."""
        start = 0.0
        for _ in range(num_sessions):
            yield start
            start += self.random.gammavariate(1 / burstiness, burstiness / rate)


@dataclass(frozen=True, slots=True)
class _Chat:
    """How sessions run. Fields as in `make_trace`; system_lens: tokens of each system prompt."""

    draw: _Draw
    turns: float
    block_size: int
    system_lens: list[int]
    user_tokens: float
    output_tokens: float
    think_seconds: float
    max_prompt_tokens: int

    def session(self, session: int, start: float) -> Iterator[_Request]:
        """The requests of one session that begins at `start` seconds."""
        weights = [1 / (rank + 1) for rank in range(len(self.system_lens))]
        system = self.draw.random.choices(range(len(self.system_lens)), weights)[0]
        length = self.system_lens[system]
        length += self.draw.tokens(self.user_tokens, self.max_prompt_tokens - length)
        clock = start
        turn = 0
        while length <= self.max_prompt_tokens:
            output_len = self.draw.tokens(self.output_tokens, MAX_TOKENS)
            yield _Request(round(clock * 1000), length, output_len, self._blocks(session, system, turn, length))
            if self.draw.random.random() * self.turns < 1:
                return
            length += output_len + self.draw.tokens(self.user_tokens, MAX_TOKENS)
            clock += output_len * _SECONDS_PER_OUTPUT_TOKEN + self.draw.lognormal(self.think_seconds)
            turn += 1

    def _blocks(self, session: int, system: int, turn: int, length: int) -> list[_BlockKey]:
        """What the blocks of a prompt are; those wholly inside the system prompt belong to it."""
        num_full = length // self.block_size
        num_shared = self.system_lens[system] // self.block_size
        blocks = [(-1 - system if block < num_shared else session, block) for block in range(num_full)]
        return blocks if length % self.block_size == 0 else [*blocks, (session, -1 - turn)]


def _trace(requests: list[_Request], block_size: int, name: str) -> Trace:
    """The requests by arrival, their blocks numbered in order of appearance, time counted from the first."""
    requests = sorted(requests, key=lambda request: request.arrival_ms)
    numbers: defaultdict[_BlockKey, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    origin = requests[0].arrival_ms
    return by_arrival(
        name=name,
        format="mooncake",
        arrivals=np.array([request.arrival_ms - origin for request in requests]) / 1000,
        prompt_lens=np.array([request.prompt_len for request in requests], dtype=np.int64),
        output_lens=np.array([request.output_len for request in requests], dtype=np.int64),
        block_sizes=np.full(len(requests), block_size, dtype=np.int64),
        block_counts=np.array([len(request.blocks) for request in requests], dtype=np.int64),
        block_ids=np.array([numbers[block] for request in requests for block in request.blocks], dtype=np.int64),
    )
