"""Statistics of a trace, and how much of it an unlimited cache would reuse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvstead.replay.trace import Trace


@dataclass(frozen=True, slots=True)
class LengthStats:
    """Of a number of tokens per request: the mean, percentiles (linear between neighbours) and the largest."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int

    @classmethod
    def of(cls, lengths: NDArray[np.int64]) -> LengthStats:
        """lengths: int64[n], n at least 1."""
        p50, p90, p99 = (float(value) for value in np.percentile(lengths, (50, 90, 99)))
        return cls(float(lengths.mean()), p50, p90, p99, int(lengths.max()))


@dataclass(frozen=True, slots=True)
class ReuseStats:
    """What an unlimited cache would reuse, over the requests that carry prefix ids.

    A block is a hit when it and every block before it in its prompt were in prompts of earlier requests; it counts with
    the tokens that the prompt has in it, so a partial last block counts its tokens, and only if its own id was seen.
    `hit_tokens / prompt_tokens` is the hit rate by tokens, `hit_blocks / blocks` by blocks; the two differ because a
    partial block is a whole block. Generated text counts only where later prompts name its blocks. No cache can reach
    the figure exactly: a prompt that is known in full still has one token to compute.
    """

    hit_tokens: int
    prompt_tokens: int
    hit_blocks: int
    blocks: int

    @property
    def token_hit_rate(self) -> float:
        """Hit tokens as a fraction of prompt tokens."""
        return self.hit_tokens / self.prompt_tokens

    @property
    def block_hit_rate(self) -> float:
        """Hit blocks as a fraction of blocks."""
        return self.hit_blocks / self.blocks


@dataclass(frozen=True, slots=True)
class TraceStats:
    """The figures of a trace. reuse: None where no request carries prefix ids; reuse is then unknown, not 0 %.

    duration_s: from the trace's first row to the last arrival. requests_per_s: None where that is 0.
    prompt_tokens, output_tokens: totals. rows_left_out: rows that cannot be read or are inconsistent. sessions: chats
    whose turns wait for one another. problems, guesses: what was left out and assumed, as `Trace` has them.
    """

    name: str
    format: str
    requests: int
    rows_left_out: int
    sessions: int
    duration_s: float
    requests_per_s: float | None
    prompt_lens: LengthStats
    output_lens: LengthStats
    prompt_tokens: int
    output_tokens: int
    reuse: ReuseStats | None
    problems: tuple[str, ...]
    guesses: tuple[str, ...]


def trace_stats(trace: Trace) -> TraceStats:
    """The figures of `trace`. O(n log n) in its requests and blocks."""
    duration = float(trace.arrivals[-1])
    return TraceStats(
        name=trace.name,
        format=trace.format,
        requests=len(trace),
        rows_left_out=trace.num_left_out,
        sessions=len(np.unique(session_of(trace)[trace.follows >= 0])),
        duration_s=duration,
        requests_per_s=len(trace) / duration if duration > 0 else None,
        prompt_lens=LengthStats.of(trace.prompt_lens),
        output_lens=LengthStats.of(trace.output_lens),
        prompt_tokens=int(trace.prompt_lens.sum()),
        output_tokens=int(trace.output_lens.sum()),
        reuse=_reuse(trace) if trace.has_reuse else None,
        problems=trace.problems,
        guesses=trace.guesses,
    )


def session_of(trace: Trace) -> NDArray[np.int64]:
    """The first request of each request's session: int64[n], the request itself where no turn waits for another."""
    first = np.arange(len(trace))
    for turn in np.flatnonzero(trace.follows >= 0).tolist():  # ascending, so the turn before is known
        first[turn] = first[trace.follows[turn]]
    return first


def _reuse(trace: Trace) -> ReuseStats:
    counts = np.diff(trace.block_offsets)
    hit_blocks = _leading_hits(trace, counts)
    # Only the last block of a prompt can be partial, so fewer tokens than the blocks hold means it is a hit.
    hit_tokens = np.minimum(hit_blocks * trace.block_sizes, trace.prompt_lens)
    return ReuseStats(
        hit_tokens=int(hit_tokens.sum()),
        prompt_tokens=int(trace.prompt_lens[counts > 0].sum()),
        hit_blocks=int(hit_blocks.sum()),
        blocks=len(trace.block_ids),
    )


def _leading_hits(trace: Trace, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each request, how many of its first blocks were all in earlier prompts: int64[n]."""
    requests = np.repeat(np.arange(len(trace)), counts)
    first_request = np.full(trace.num_blocks, len(trace))
    np.minimum.at(first_request, trace.block_ids, requests)
    position = np.arange(len(requests)) - np.repeat(trace.block_offsets[:-1], counts)
    is_new = first_request[trace.block_ids] == requests
    hits = counts.copy()
    np.minimum.at(hits, requests[is_new], position[is_new])
    return hits
