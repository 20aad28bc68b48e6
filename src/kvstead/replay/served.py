"""What became of each request of a replay: when it came, was admitted, had its first and its last token."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvstead.replay.result import Goodput, Latencies, Quantiles
from kvstead.replay.slo import Slo
from kvstead.replay.trace import Trace

Columns = Mapping[str, NDArray[np.float64] | NDArray[np.int64]]


class Served:
    """Times of a trace's requests, in seconds of its clock; NaN for what has not happened."""

    def __init__(self, trace: Trace) -> None:
        num = len(trace)
        self._trace = trace
        self.arrivals = trace.arrivals.copy()
        self._admitted, self._first, self._last = (np.full(num, np.nan) for _ in range(3))
        self._generated, self._cached, self._retractions = (np.zeros(num, dtype=np.int64) for _ in range(3))
        self.num_finished = 0

    @property
    def num_tokens(self) -> int:
        """Tokens generated for all requests."""
        return int(self._generated.sum())

    def admit(self, request: int, clock: float) -> None:
        """Note when a request got memory; only the first time counts."""
        if np.isnan(self._admitted[request]):
            self._admitted[request] = clock

    def start(self, request: int, num_cached: int, clock: float) -> None:
        """Note a request's first token, and how much of its prompt was cached."""
        self._first[request] = clock
        self._cached[request] = num_cached

    def end(self, request: int, num_generated: int, clock: float, num_retractions: int = 0) -> None:
        """Note a request's last token."""
        self._last[request] = clock
        self._generated[request] = num_generated
        self._retractions[request] = num_retractions
        self.num_finished += 1

    def latencies(self) -> Latencies:
        """Quantiles over the requests that came so far."""
        started, ended = ~np.isnan(self._first), ~np.isnan(self._last)
        return Latencies(
            ttft=Quantiles.of((self._first - self.arrivals)[started]),
            tpot=Quantiles.of(self._tpot()[self._generated > 1]),
            queue=Quantiles.of((self._admitted - self.arrivals)[started]),
            prefill=Quantiles.of((self._first - self._admitted)[started]),
            e2e=Quantiles.of((self._last - self.arrivals)[ended]),
        )

    def goodput(self, slo: Slo, clock: float) -> Goodput:
        """The requests that kept a goal. One with a single token has no time per token, and keeps that goal."""
        is_met = ~np.isnan(self._last)
        if slo.ttft_s is not None:
            is_met &= self._first - self.arrivals <= slo.ttft_s
        if slo.tpot_s is not None:
            is_met &= (self._generated <= 1) | (self._tpot() <= slo.tpot_s)
        met = int(is_met.sum())
        return Goodput(slo.ttft_s, slo.tpot_s, met, met / is_met.size, met / clock if clock else 0.0)

    def columns(self) -> Columns:
        """One value a request, in the order of the trace."""
        return {
            "arrival_s": self.arrivals,
            "admitted_s": self._admitted,
            "first_token_s": self._first,
            "last_token_s": self._last,
            "prompt_tokens": self._trace.prompt_lens,
            "cached_tokens": self._cached,
            "output_tokens": self._generated,
            "retractions": self._retractions,
        }

    def _tpot(self) -> NDArray[np.float64]:
        seconds: NDArray[np.float64] = (self._last - self._first) / np.maximum(self._generated - 1, 1)
        return seconds
