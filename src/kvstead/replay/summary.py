"""A replay's result as one JSON object. Keys are only ever added."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvstead.replay.options import ReplayOptions
from kvstead.replay.result import ReplayResult

_MOST_MESSAGES = 20
# Figures that were added after the options had their place.
_BEHIND_OPTIONS = ("output_tokens", "clock_s", "interrupted", "overload", "goodput")


def summarize(result: ReplayResult, options: ReplayOptions) -> dict[str, Any]:
    """The summary of a replay: plain dicts, lists, strings and numbers, no NaN.

    The figures are those of `kvstead.replay.result.Figures`, by the names of its fields; None is null. The other keys
    say what was replayed on what. `trace` lists the traces as they were named, `gpu` is null where every step took the
    same time. `rejections` and `excluded` (rows of the trace that were left out) hold the first messages;
    `requests.rejected` and `excluded_rows` count all. `guesses`: what the trace did not say and was assumed.
    `card`: what one GPU has to hold, null where every step took the same time.
    """
    figures = asdict(result.figures)
    behind = {name: figures.pop(name) for name in _BEHIND_OPTIONS}
    problems = result.trace.problems
    return {
        "trace": list(options.traces),
        "model": options.model,
        "layout": str(options.layout),
        **figures,
        "mode": str(options.mode),
        "policy": options.policy,
        "gpu": None if options.step_seconds is not None else options.gpu,
        "cache_dtype": options.cache_dtype,
        "state_dtype": options.state_dtype,
        "state_interval": options.state_interval,
        "tensor_parallel": options.tensor_parallel,
        "mfu": options.mfu,
        "mbu": options.mbu,
        "step_overhead_s": options.overhead_seconds,
        "card": None if result.card is None else asdict(result.card) | {"fits": result.card.fits},
        **behind,
        "excluded_rows": result.trace.num_left_out,
        "excluded": list(problems[:_MOST_MESSAGES]),
        "guesses": list(result.trace.guesses),
        "rejections": list(result.rejections[:_MOST_MESSAGES]),
    }
