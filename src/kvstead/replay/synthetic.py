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
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import log
from random import Random
from typing import Any, NamedTuple

import numpy as np

from kvstead.replay.checks import require_from_to
from kvstead.replay.logs.fields import MAX_TOKENS
from kvstead.replay.trace import Trace, by_arrival
from kvstead.replay.writers import MooncakeRow, write_mooncake

__all__ = ["chat_rows", "make_trace", "write_mooncake"]

_SECONDS_PER_OUTPUT_TOKEN = 0.02  # a user reads the answer as it comes, at about 50 tokens/s

_MOST = 1 << 62
_RANGES = {
    "num_sessions": (1, _MOST),
    "turns": (1, _MOST),
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


class _Request(NamedTuple):
    """A turn of a session. order: by arrival, then as drawn."""

    arrival_ms: int
    order: int
    session: int
    system: int
    prompt_len: int
    output_len: int
    is_last: bool


def make_trace(*, name: str = "synthetic", **figures: Any) -> Trace:
    """The requests of `chat_rows`, whose parameters these are, as a trace. Raises as that does."""
    arrivals, prompt_lens, output_lens, blocks, block_sizes, *_ = zip(*chat_rows(**figures), strict=True)
    return by_arrival(
        name=name,
        format="mooncake",
        arrivals=np.array(arrivals) / 1000,
        prompt_lens=np.array(prompt_lens, dtype=np.int64),
        output_lens=np.array(output_lens, dtype=np.int64),
        block_sizes=np.array(block_sizes, dtype=np.int64),
        block_counts=np.array([len(ids) for ids in blocks], dtype=np.int64),
        block_ids=np.array([block for ids in blocks for block in ids], dtype=np.int64),
    )


def chat_rows(
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
) -> Iterator[MooncakeRow]:
    """Chat sessions that start in bursts, by arrival; the same arguments give the same requests.

    They are made as they are asked for: memory holds the sessions that have begun and not ended.

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
    return _rows(chat, starts)


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
    _order: Iterator[int] = field(default_factory=count)

    def session(self, session: int, start: float) -> Iterator[_Request]:
        """The requests of one session that begins at `start` seconds."""
        weights = [1 / (rank + 1) for rank in range(len(self.system_lens))]
        system = self.draw.random.choices(range(len(self.system_lens)), weights)[0]
        length = self.system_lens[system]
        length += self.draw.tokens(self.user_tokens, self.max_prompt_tokens - length)
        clock, ends = start, False
        while not ends:
            prompt_len, output_len = length, self.draw.tokens(self.output_tokens, MAX_TOKENS)
            arrival_ms = round(clock * 1000)
            ends = self.draw.random.random() * self.turns < 1
            if not ends:
                length += output_len + self.draw.tokens(self.user_tokens, MAX_TOKENS)
                clock += output_len * _SECONDS_PER_OUTPUT_TOKEN + self.draw.lognormal(self.think_seconds)
                ends = length > self.max_prompt_tokens
            yield _Request(arrival_ms, next(self._order), session, system, prompt_len, output_len, ends)


class _Blocks:
    """The ids of prompts' blocks, in order of appearance."""

    def __init__(self, chat: _Chat) -> None:
        self.size = chat.block_size
        self._num_shared = [length // chat.block_size for length in chat.system_lens]
        self._known: defaultdict[int, list[int]] = defaultdict(list)  # by session, or -1 - system prompt
        self._next = count()

    def of(self, request: _Request) -> list[int]:
        """The ids of a prompt: of the system prompt, of the session, and one for a partial block."""
        num_full = request.prompt_len // self.size
        num_shared = min(self._num_shared[request.system], num_full)
        shared = self._first(-1 - request.system, num_shared)
        own = self._first(request.session, num_full - num_shared)
        if request.is_last:
            del self._known[request.session]
        return shared + own if request.prompt_len % self.size == 0 else [*shared, *own, next(self._next)]

    def _first(self, key: int, num_blocks: int) -> list[int]:
        known = self._known[key]
        known.extend(next(self._next) for _ in range(num_blocks - len(known)))
        return known[:num_blocks]


def _rows(chat: _Chat, starts: Iterator[float]) -> Iterator[MooncakeRow]:
    """The requests by arrival: one goes out when no session that begins later can be before it."""
    blocks, waiting = _Blocks(chat), list[_Request]()
    for session, start in enumerate(starts):
        while waiting and waiting[0].arrival_ms <= round(start * 1000):
            yield _row(heappop(waiting), blocks)
        for request in chat.session(session, start):
            heappush(waiting, request)
    while waiting:
        yield _row(heappop(waiting), blocks)


def _row(request: _Request, blocks: _Blocks) -> MooncakeRow:
    return MooncakeRow(request.arrival_ms, request.prompt_len, request.output_len, blocks.of(request), blocks.size)
