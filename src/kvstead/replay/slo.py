"""A goal for the latencies of requests. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slo:
    """A goal for a request: its first token within `ttft_s`, each further one within `tpot_s` on average; None: any."""

    ttft_s: float | None = None
    tpot_s: float | None = None
