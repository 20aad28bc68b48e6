"""Collects the rows of a log into the columns of a trace."""

from __future__ import annotations

import hashlib
from array import array

import numpy as np
from numpy.typing import NDArray

from kvstead.errors import TraceError
from kvstead.replay.logs.fields import Row
from kvstead.replay.logs.options import LogOptions
from kvstead.replay.logs.rows import RowReader
from kvstead.replay.trace import Trace, by_arrival

_MOST_PROBLEMS = 10
_LEAST_OF_A_CLOCK, _MOST_PER_SECOND, _MOST_DAYS = 20, 1000, 366  # requests; what a clock that is right says at most
_INT64 = range(-(1 << 63), 1 << 63)


class Columns:
    """Rows in the order of the log; those that are inconsistent are counted, and the first ten are named.

    A row without a time is the next turn of its session and follows the one before it, `think_seconds` after that has
    ended unless the row says when; without a session too it arrives at random, `rate` a second.
    """

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._seconds, self._delays = array("d"), array("d")
        self._prompt_lens, self._output_lens = array("q"), array("q")
        self._block_counts, self._block_ids = array("q"), array("q")
        self._follows = array("q")
        self._last_of: dict[str, int] = {}  # the last row of each session
        self._first_seconds = np.inf
        self.problems: list[str] = []
        self.num_left_out = 0

    def leave_out(self, place: str, fault: str) -> None:
        """Count a row that is left out, and name it if it is one of the first."""
        self.num_left_out += 1
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(f"{place}: {fault}.")

    def add(self, row: Row) -> None:
        """Add a row that is consistent."""
        follows = -1
        if row.session is not None:
            if row.seconds is None:
                follows = self._last_of.get(row.session, -1)
            self._last_of[row.session] = len(self._seconds)
        self._seconds.append(np.nan if row.seconds is None else row.seconds)
        self._follows.append(follows)
        self._delays.append(0.0 if follows < 0 else self._options.think_seconds if row.delay is None else row.delay)
        self._prompt_lens.append(row.prompt_len)
        self._output_lens.append(row.output_len)
        ids = row.block_ids
        self._block_counts.append(-1 if ids is None else len(ids))
        if isinstance(ids, np.ndarray):
            self._block_ids.frombytes(ids.tobytes())
        elif ids is not None:
            self._block_ids.extend(map(_number_of, ids))

    def note_time(self, seconds: float | None) -> None:
        """Let the trace begin no later than at this row, whether it is left out or not."""
        if seconds is not None:
            self._first_seconds = min(self._first_seconds, seconds)

    def trace(self, source: str, name: str, reader: RowReader) -> Trace:
        """The trace of all rows of a reader. Raises `TraceError` when there is none."""
        if not self._seconds:
            reason = f"all {self.num_left_out} rows are left out" if self.num_left_out else "it has no rows"
            first = f" The first: {self.problems[0]}" if self.problems else ""
            raise TraceError(f"{source} holds no request: {reason}.{first}")
        counts = np.array(self._block_counts, dtype=np.int64)
        follows = np.array(self._follows, dtype=np.int64)
        seconds, sampled = self._arrivals(follows)
        return by_arrival(
            name=name,
            format=reader.format,
            arrivals=seconds,
            prompt_lens=np.array(self._prompt_lens, dtype=np.int64),
            output_lens=np.array(self._output_lens, dtype=np.int64),
            block_sizes=np.where(counts < 0, 0, reader.block_size),
            block_counts=np.maximum(counts, 0),
            block_ids=_numbered(np.array(self._block_ids, dtype=np.int64)),
            follows=follows,
            delays=np.array(self._delays),
            problems=tuple(self.problems),
            num_left_out=self.num_left_out,
            guesses=(*reader.guesses, *sampled, *self._clock_faults(seconds)),
        )

    def _clock_faults(self, seconds: NDArray[np.float64]) -> tuple[str, ...]:
        """What is odd about the times, in words."""
        num, duration = seconds.size, float(seconds.max() - seconds.min())
        if self._options.time_unit is None and num >= _LEAST_OF_A_CLOCK and 0 < duration < num / _MOST_PER_SECOND:
            text = f"{num:,} requests arrive within {duration:.3g} s"
        elif self._options.time_unit is None and duration > _MOST_DAYS * 86_400:
            text = f"requests arrive over {duration / 86_400:,.0f} days"
        else:
            return ()
        return (f"{text}: is that the unit of time? Set another with --time-unit",)

    def _arrivals(self, follows: NDArray[np.int64]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """When requests arrive, turns that follow others no earlier than these allow; and what was assumed."""
        seconds = np.array(self._seconds)
        unknown = np.isnan(seconds) & (follows < 0)
        if np.isfinite(self._first_seconds):
            seconds -= self._first_seconds
        num = int(unknown.sum())
        gaps = np.random.Generator(np.random.PCG64(0)).exponential(1 / self._options.rate, num)
        seconds[unknown] = np.cumsum(gaps) - gaps[:1].sum()
        for turn in np.flatnonzero(follows >= 0).tolist():
            seconds[turn] = seconds[follows[turn]] + self._delays[turn]
        guesses = (f"arrivals are random, {self._options.rate:g} a second ({num:,} requests)",) if num else ()
        return seconds, guesses


def _number_of(name: int | str) -> int:
    """A name of a block as a number of 64 bits: whole numbers as they are, others by a hash."""
    if type(name) is int and name in _INT64:
        return name
    return int.from_bytes(hashlib.blake2b(f"{name}".encode(), digest_size=8).digest(), "little", signed=True)


def _numbered(names: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers from 0 without gaps, in the order in which names appear first."""
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    ranks = np.empty(first.size, dtype=np.int64)
    ranks[np.argsort(first)] = np.arange(first.size)
    return ranks[inverse]
