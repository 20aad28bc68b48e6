"""The result of a replay: every figure is described here once, as `summary.json` and the tables show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstead.model import MemorySplit
from kvstead.replay.card import CardMemory
from kvstead.replay.trace import Trace


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """Numbers of requests; `retracted` alone counts events."""

    total: int
    finished: int
    rejected: int
    retracted: int
    aborted: int


@dataclass(frozen=True, slots=True)
class PrefixFigures:
    """What the prefix cache held of the prompts, and what it evicted.

    Of `prompt_tokens`, those of requests that were admitted, `found_tokens` were in the cache at the first admission
    and `hit_tokens` could be used: `hit_rate` is their share, None where the trace says nothing about equal prefixes or
    no prompt was computed. The other tokens found are `lost_to_dead_windows`, or in a model with recurrent layers
    `lost_to_missing_states`: no state was kept where they end, or a window was missing.

    evicted_tokens: by side. tombstoned_tokens: those of them evicted from the window side alone. tombstone_tokens:
    tokens cached without their windows at the end. evicted_states_alone: those evicted while their tokens stayed.
    """

    hit_tokens: int
    prompt_tokens: int
    hit_rate: float | None
    found_tokens: int
    lost_to_dead_windows: int
    lost_to_missing_states: int
    evicted_tokens: dict[str, int]
    tombstoned_tokens: int
    tombstone_tokens: int
    evicted_states: int
    evicted_states_alone: int


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Bytes of one tensor-parallel rank; those in use are averages over the clock.

    peak_live_bytes, mean_live_bytes: what running requests held, which has to be there. peak_bytes, mean_bytes: with
    the cached prefixes, which fill what is left. by_state: adds up to `total_bytes`. In an arena free bytes are `hole`,
    free pages inside a pool's span, and `gap`, between spans; `free` is the sum of what is free. by_kind: adds up to
    `mean_bytes`. by_side: for each side that has bytes its `total_bytes` and the states that add up to it. Sides with
    bytes of their own add up to the memory, state by state; sides of an arena leave out the bytes between them.

    split: how the memory was divided, None if it was not. bytes_moved, moves_per_step: bytes of an arena copied to make
    room, and pages. state_copies: recurrent states copied into the cache or out of it. usable_at_first_refusal: the
    share of the memory that was live or cached when something did not fit for the first time, None if everything did.
    """

    total_bytes: int
    peak_live_bytes: int
    mean_live_bytes: int
    peak_bytes: int
    mean_bytes: int
    by_state: dict[str, int]
    free: int
    by_kind: dict[str, int]
    by_side: dict[str, dict[str, int]]
    split: MemorySplit | None
    bytes_moved: int
    moves_per_step: float
    state_copies: int
    usable_at_first_refusal: float | None


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of a latency in seconds; None where nothing was measured."""

    p50: float | None
    p90: float | None
    p99: float | None

    @classmethod
    def of(cls, seconds: NDArray[np.float64]) -> Quantiles:
        """Interpolate linearly between neighbours. seconds: float64[n], n may be 0."""
        if not seconds.size:
            return cls(None, None, None)
        return cls(*(float(value) for value in np.quantile(seconds, (0.5, 0.9, 0.99))))


@dataclass(frozen=True, slots=True)
class Latencies:
    """ttft: from a request's arrival to its first token, which is `queue`, until it was admitted, and `prefill`.

    tpot: the time per further token of a request. e2e: from its arrival to its last token.
    """

    ttft: Quantiles
    tpot: Quantiles
    queue: Quantiles
    prefill: Quantiles
    e2e: Quantiles


@dataclass(frozen=True, slots=True)
class Goodput:
    """The requests that kept a goal: how many, their share of all, and per second of the clock."""

    ttft_s: float | None
    tpot_s: float | None
    requests: int
    share: float
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class Overload:
    """Requests came faster than they were served. since_s: from then on some have waited at every moment.

    factor: the time that serving took, of the time in which requests came; arithmetic_factor: that of its arithmetic
    alone, 0 where steps take a constant time. waited_for: shares of that waiting by what was short: "memory", "compute"
    (the tokens of a step were spent) or "max_running". wants: what would carry more; "compute" also where arithmetic
    alone fills the time, so that no memory helps. bound: whether steps were bound by "compute" or by "bandwidth"; empty
    where steps take a constant time.
    """

    since_s: float
    factor: float
    arithmetic_factor: float
    waited_for: dict[str, float]
    wants: str
    bound: str


@dataclass(frozen=True, slots=True)
class Figures:
    """What a replay measured.

    Times are seconds of the trace's clock, but `wall_s` and `memory_us_per_step`: the wall time inside the manager.
    page_size: the one in use; a padded layout may need more than was asked for. throughput_tok_s: generated tokens per
    second of the clock. interrupted: whether Ctrl-C ended the replay; the figures then cover what was done before.
    overload, goodput: None where requests did not pile up, and where no goal was given.
    """

    page_size: int
    requests: RequestFigures
    prefix: PrefixFigures
    memory: MemoryFigures
    latency_s: Latencies
    throughput_tok_s: float
    steps: int
    memory_us_per_step: float
    wall_s: float
    output_tokens: int
    clock_s: float
    interrupted: bool
    overload: Overload | None = None
    goodput: Goodput | None = None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The figures of a replay and what they are made of.

    rejections: one message for each request that was rejected. timeline: samples over the clock, each with one value
    for each of `kvstead.replay.recorder.TIMELINE_COLUMNS`. requests: see `kvstead.replay.served.Served.columns`.
    card: None where steps take a constant time.
    """

    trace: Trace
    figures: Figures
    rejections: tuple[str, ...]
    timeline: tuple[tuple[float, ...], ...]
    requests: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    card: CardMemory | None = None
