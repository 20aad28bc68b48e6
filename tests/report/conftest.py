from typing import Any

import pytest

from kvstead.replay.recorder import TIMELINE_COLUMNS


@pytest.fixture
def summary() -> dict[str, Any]:
    """A summary of 98 finished requests, 2 rejected ones and 5 retractions in a pool of 1,000,000 bytes."""
    return {
        "trace": ["chat [1].jsonl"],
        "model": "tiny",
        "layout": "static",
        "page_size": 16,
        "requests": {"total": 100, "finished": 98, "rejected": 2, "retracted": 5, "aborted": 0},
        "prefix": {
            "hit_tokens": 250,
            "prompt_tokens": 1000,
            "hit_rate": 0.25,
            "found_tokens": 250,
            "lost_to_dead_windows": 0,
            "evicted_tokens": {"full": 640, "window": 0},
            "tombstoned_tokens": 0,
            "tombstone_tokens": 0,
            "lost_to_missing_states": 0,
            "evicted_states": 0,
            "evicted_states_alone": 0,
        },
        "memory": {
            "total_bytes": 1_000_000,
            "peak_live_bytes": 800_000,
            "mean_live_bytes": 300_001,
            "peak_bytes": 900_000,
            "mean_bytes": 500_000,
            "by_state": {"live": 300_001, "cached": 199_999, "parked": 0, "free": 499_990, "padding": 10},
            "free": 499_990,
            "by_kind": {"full": 500_000},
            "by_side": {
                "full": {
                    "total_bytes": 1_000_000,
                    "live": 300_001,
                    "cached": 199_999,
                    "parked": 0,
                    "free": 499_990,
                    "padding": 10,
                },
            },
            "split": None,
            "bytes_moved": 0,
            "moves_per_step": 0.0,
            "state_copies": 0,
            "usable_at_first_refusal": None,
        },
        "latency_s": {
            "ttft": {"p50": 0.0125, "p90": 1.5, "p99": 250.0},
            "tpot": {"p50": 0.0002, "p90": None, "p99": None},
            "queue": {"p50": 0.0, "p90": 1.0, "p99": 200.0},
            "prefill": {"p50": 0.0125, "p90": 0.5, "p99": 50.0},
            "e2e": {"p50": 5.0, "p90": 10.0, "p99": 300.0},
        },
        "throughput_tok_s": 1234.56,
        "steps": 4321,
        "memory_us_per_step": 35.25,
        "wall_s": 2.0,
        "mode": "batched",
        "policy": "lru",
        "gpu": "h100-sxm",
        "cache_dtype": "bfloat16",
        "tensor_parallel": 1,
        "output_tokens": 4900,
        "clock_s": 3723.0,
        "interrupted": False,
        "overload": None,
        "goodput": None,
        "card": None,
        "excluded_rows": 0,
        "excluded": [],
        "rejections": ["request 3: too long", "request 4: too long"],
    }


@pytest.fixture
def windowed(summary) -> dict[str, Any]:
    """The same memory in two sides: 600,000 bytes for whole sequences, 400,000 for windows."""
    full = {"total_bytes": 600_000, "live": 200_001, "cached": 99_999, "parked": 0, "free": 299_994, "padding": 6}
    window = {"total_bytes": 400_000, "live": 100_000, "cached": 100_000, "parked": 0, "free": 199_996, "padding": 4}
    memory = summary["memory"] | {
        "by_kind": {"full": 300_000, "window": 200_000},
        "by_side": {"full": full, "window": window},
        "split": {
            "num_slots": 6000,
            "num_window_slots": 1500,
            "ratio": 0.25,
            "source": "so it was said",
            "num_states": 0,
        },
    }
    prefix = summary["prefix"] | {
        "found_tokens": 1000,
        "lost_to_dead_windows": 750,
        "evicted_tokens": {"full": 640, "window": 1280},
        "tombstoned_tokens": 960,
        "tombstone_tokens": 320,
    }
    return summary | {"memory": memory, "prefix": prefix}


@pytest.fixture
def in_arena(summary) -> dict[str, Any]:
    """The same memory as an arena of full pages, windows and states."""
    states = {"live": 300_001, "cached": 199_999, "parked": 0, "hole": 90_000, "gap": 409_990, "sink": 6, "padding": 4}
    memory = summary["memory"] | {
        "by_state": states,
        "free": 499_990,
        "by_kind": {"full": 200_000, "window": 100_000, "state": 200_000},
        "by_side": {
            "full": {"total_bytes": 200_000, "live": 150_000, "cached": 50_000, "parked": 0, "hole": 0},
            "window": {"total_bytes": 160_000, "live": 50_000, "cached": 50_000, "parked": 0, "hole": 60_000},
            "state": {"total_bytes": 230_000, "live": 100_001, "cached": 99_999, "parked": 0, "hole": 30_000},
        },
        "bytes_moved": 3_145_728,
        "moves_per_step": 0.125,
        "state_copies": 1234,
        "usable_at_first_refusal": 0.875,
    }
    prefix = summary["prefix"] | {
        "found_tokens": 1000,
        "lost_to_missing_states": 750,
        "evicted_tokens": {"full": 640, "window": 1280},
        "tombstoned_tokens": 960,
        "tombstone_tokens": 320,
        "evicted_states": 50,
        "evicted_states_alone": 40,
    }
    return summary | {"layout": "unified", "memory": memory, "prefix": prefix}


@pytest.fixture
def samples() -> list[tuple[float, ...]]:
    """Forty samples of a pool of 1,000,000 bytes, one a second, in the columns of a timeline."""
    return [
        (
            float(second),
            second % 7,
            second % 3,
            second,
            20_000 * second,
            1000,
            999_000 - 20_000 * second,
            second**2,
            50 * second,
            0,
            0,
            0,
            0,
            0,
            second // 10,
            16 * second,
            0,
            0,
            0.5 * second,
        )
        for second in range(40)
    ]


@pytest.fixture
def columns() -> tuple[str, ...]:
    """The names of a timeline's columns."""
    return TIMELINE_COLUMNS
