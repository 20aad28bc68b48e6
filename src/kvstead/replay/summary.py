"""A replay's result as one JSON object. Keys are only ever added."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvstead.replay.options import ReplayOptions
from kvstead.replay.records import ReplayResult

_MOST_MESSAGES = 20


def summarize(result: ReplayResult, options: ReplayOptions) -> dict[str, Any]:
    """The summary of a replay: plain dicts, lists, strings and numbers, no NaN.

    `trace` lists the traces as they were named. Bytes are of one tensor-parallel rank. `requests.retracted` counts
    events, its other figures requests. `prefix.hit_rate` is the fraction of prompt tokens found in the cache, null
    where the trace carries no reuse. Of `found_tokens` the cache still knew the whole sequence, and
    `lost_to_dead_windows` of them could not be used for want of their windows; in a model with recurrent layers
    `lost_to_missing_states` counts those instead, as no state was kept where they end, or a window was missing.
    `evicted_tokens` counts by side, `tombstoned_tokens` those of the window side that went alone, `tombstone_tokens`
    those that were without their windows at the end. `evicted_states` counts all, `evicted_states_alone` those whose
    tokens stayed.

    `memory.by_state` is averaged over the clock and sums to `total_bytes`. In an arena what is free is `hole`, free
    pages in the midst of a pool, and `gap`, between pools; `free` is their sum and stands beside `by_state`. `by_side`
    has for each side that has bytes what sums to its `total_bytes`; sides with bytes of their own sum to the memory,
    sides that share bytes have only what is theirs. `by_kind` sums to `mean_bytes`; it and `peak_bytes` count live and
    cached bytes. `split` is null where nothing is divided. `bytes_moved` and `moves_per_step` (pages) are what an arena
    copied to make room, `state_copies` the recurrent states that were copied. `usable_at_first_refusal` is the fraction
    of the memory that was live or cached when it was short for the first time, null if it never was.

    `page_size` is the one in use; a padded layout may need more than was asked for. Latencies are null where nothing
    was measured. `rejections` and `excluded` hold the first twenty messages; `requests.rejected` and `excluded_rows`
    count all.
    """
    problems = result.trace.problems
    return {
        "trace": list(options.traces),
        "model": options.model,
        "layout": str(options.layout),
        "page_size": result.page_size,
        "requests": {
            "total": result.total,
            "finished": result.finished,
            "rejected": result.rejected,
            "retracted": result.retracted,
            "aborted": result.aborted,
        },
        "prefix": {
            "hit_tokens": result.hit_tokens,
            "prompt_tokens": result.prompt_tokens,
            "hit_rate": result.hit_rate,
            "found_tokens": result.hit_tokens + result.lost_tokens,
            "lost_to_dead_windows": 0 if result.has_states else result.lost_tokens,
            "lost_to_missing_states": result.lost_tokens if result.has_states else 0,
            "evicted_tokens": dict(result.evicted_tokens),
            "tombstoned_tokens": result.tombstoned_tokens,
            "tombstone_tokens": result.tombstone_tokens,
            "evicted_states": result.evicted_states,
            "evicted_states_alone": result.evicted_states_alone,
        },
        "memory": {
            "total_bytes": result.total_bytes,
            "peak_bytes": result.peak_bytes,
            "mean_bytes": result.mean_bytes,
            "by_state": dict(result.mean_by_state),
            "free": result.free_bytes,
            "by_kind": dict(result.mean_by_kind),
            "by_side": {name: dict(side) for name, side in result.mean_by_side.items()},
            "split": None if result.split is None else asdict(result.split),
            "bytes_moved": result.bytes_moved,
            "moves_per_step": result.moves_per_step,
            "state_copies": result.state_copies,
            "usable_at_first_refusal": result.usable_at_first_refusal,
        },
        "latency_s": {"ttft": asdict(result.ttft), "tpot": asdict(result.tpot)},
        "throughput_tok_s": result.throughput_tok_s,
        "steps": result.steps,
        "memory_us_per_step": result.memory_us_per_step,
        "wall_s": result.wall_s,
        "mode": str(options.mode),
        "policy": options.policy,
        "gpu": None if options.step_seconds is not None else options.gpu,
        "cache_dtype": options.cache_dtype,
        "state_dtype": options.state_dtype,
        "state_interval": options.state_interval,
        "tensor_parallel": options.tensor_parallel,
        "output_tokens": result.output_tokens,
        "clock_s": result.clock_s,
        "interrupted": result.interrupted,
        "excluded_rows": len(problems),
        "excluded": list(problems[:_MOST_MESSAGES]),
        "rejections": list(result.rejections[:_MOST_MESSAGES]),
    }
