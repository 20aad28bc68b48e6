import json
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvstead.engine.stats import STATES
from kvstead.model import MemorySplit
from kvstead.replay.options import Layout, Mode, ReplayOptions
from kvstead.replay.result import (
    Figures,
    Latencies,
    MemoryFigures,
    PrefixFigures,
    Quantiles,
    ReplayResult,
    RequestFigures,
)
from kvstead.replay.summary import summarize
from kvstead.replay.trace import Trace, by_arrival

OPTIONS = ReplayOptions(("a.jsonl", "-"), "llama-3.1-8b", num_bytes=1000, page_size=4)

CONTRACT = {
    "trace": None,
    "model": None,
    "layout": None,
    "page_size": None,
    "requests": {"total", "finished", "rejected", "retracted", "aborted"},
    "prefix": {
        "hit_tokens",
        "prompt_tokens",
        "hit_rate",
        "found_tokens",
        "lost_to_dead_windows",
        "evicted_tokens",
        "tombstoned_tokens",
        "tombstone_tokens",
        "lost_to_missing_states",
        "evicted_states",
        "evicted_states_alone",
    },
    "memory": {
        "total_bytes",
        "peak_live_bytes",
        "mean_live_bytes",
        "peak_bytes",
        "mean_bytes",
        "by_state",
        "free",
        "by_kind",
        "by_side",
        "split",
        "bytes_moved",
        "moves_per_step",
        "state_copies",
        "usable_at_first_refusal",
    },
    "latency_s": {"ttft", "tpot", "queue", "prefill", "e2e"},
    "throughput_tok_s": None,
    "steps": None,
    "memory_us_per_step": None,
    "wall_s": None,
}


def _trace(problems: tuple[str, ...] = ()) -> Trace:
    column = np.array([5, 7])
    return by_arrival(
        name="a.jsonl",
        format="mooncake",
        arrivals=np.array([0.0, 1.0]),
        prompt_lens=column,
        output_lens=column,
        block_sizes=np.array([8, 8]),
        block_counts=np.array([1, 1]),
        block_ids=np.array([0, 0]),
        problems=problems,
    )


FIGURES = Figures(
    page_size=4,
    requests=RequestFigures(total=2, finished=1, rejected=1, retracted=3, aborted=0),
    prefix=PrefixFigures(
        hit_tokens=4,
        prompt_tokens=16,
        hit_rate=0.25,
        found_tokens=7,
        lost_to_dead_windows=3,
        lost_to_missing_states=0,
        evicted_tokens={"full": 24, "window": 40},
        tombstoned_tokens=16,
        tombstone_tokens=8,
        evicted_states=0,
        evicted_states_alone=0,
    ),
    memory=MemoryFigures(
        total_bytes=1000,
        peak_live_bytes=600,
        mean_live_bytes=300,
        peak_bytes=700,
        mean_bytes=500,
        by_state={"live": 300, "cached": 200, "parked": 0, "free": 450, "padding": 50},
        free=450,
        by_kind={"full": 300, "window": 200},
        by_side={
            "full": {"total_bytes": 700, "live": 200, "cached": 100, "parked": 0, "free": 370, "padding": 30},
            "window": {"total_bytes": 300, "live": 100, "cached": 100, "parked": 0, "free": 80, "padding": 20},
        },
        split=MemorySplit(560, 240, 0.5, "as given"),
        bytes_moved=0,
        moves_per_step=0.0,
        state_copies=0,
        usable_at_first_refusal=0.75,
    ),
    latency_s=Latencies(
        ttft=Quantiles(0.1, 0.2, 0.3),
        tpot=Quantiles(None, None, None),
        queue=Quantiles(0.0, 0.1, 0.1),
        prefill=Quantiles(0.1, 0.1, 0.2),
        e2e=Quantiles(0.1, 0.2, 0.3),
    ),
    throughput_tok_s=0.5,
    steps=12,
    memory_us_per_step=3.5,
    wall_s=0.25,
    output_tokens=30,
    clock_s=60.0,
    interrupted=False,
)
RESULT = ReplayResult(_trace(), FIGURES, rejections=("request 1: too long",), timeline=((0.0,) * 19,))


def _summary_with(options=OPTIONS, **memory):
    """The summary of the same result, but for these figures of its memory."""
    figures = replace(FIGURES, memory=replace(FIGURES.memory, **memory))
    return summarize(replace(RESULT, figures=figures), options)


def test_the_keys_are_the_contract():
    """Every key of the contract is there; nested objects hold their keys and no others."""
    summary = summarize(RESULT, OPTIONS)
    for key, inner in CONTRACT.items():
        assert key in summary
        assert inner is None or set(summary[key]) == inner
    states = {"live", "cached", "parked", "free", "padding"}
    assert set(summary["memory"]["by_state"]) == states
    assert all(set(side) == {"total_bytes", *states} for side in summary["memory"]["by_side"].values())
    assert set(summary["memory"]["split"]) == {"num_slots", "num_window_slots", "ratio", "source", "num_states"}
    assert all(set(latency) == {"p50", "p90", "p99"} for latency in summary["latency_s"].values())


def test_the_values_are_those_of_the_result():
    """Every figure of the result has its place, under its own name."""
    summary = summarize(RESULT, OPTIONS)
    assert summary["trace"] == ["a.jsonl", "-"]
    assert (summary["model"], summary["layout"], summary["page_size"]) == ("llama-3.1-8b", "static", 4)
    assert summary["requests"] == {"total": 2, "finished": 1, "rejected": 1, "retracted": 3, "aborted": 0}
    assert summary["prefix"] == {
        "hit_tokens": 4,
        "prompt_tokens": 16,
        "hit_rate": 0.25,
        "found_tokens": 7,
        "lost_to_dead_windows": 3,
        "evicted_tokens": {"full": 24, "window": 40},
        "tombstoned_tokens": 16,
        "tombstone_tokens": 8,
        "lost_to_missing_states": 0,
        "evicted_states": 0,
        "evicted_states_alone": 0,
    }
    memory = summary["memory"]
    assert memory["by_kind"] == {"full": 300, "window": 200}
    assert memory["by_state"] == {"live": 300, "cached": 200, "parked": 0, "free": 450, "padding": 50}
    expected = {"num_slots": 560, "num_window_slots": 240, "ratio": 0.5, "source": "as given", "num_states": 0}
    assert memory["split"] == expected
    assert (memory["free"], memory["usable_at_first_refusal"]) == (450, 0.75)
    assert [memory[name] for name in ("bytes_moved", "moves_per_step", "state_copies")] == [0, 0, 0]
    assert [summary["memory"][f"{name}_bytes"] for name in ("total", "peak", "mean")] == [1000, 700, 500]
    assert summary["latency_s"]["ttft"] == {"p50": 0.1, "p90": 0.2, "p99": 0.3}
    assert summary["latency_s"]["tpot"] == {"p50": None, "p90": None, "p99": None}
    assert summary["throughput_tok_s"] == 0.5
    assert (summary["steps"], summary["memory_us_per_step"], summary["wall_s"]) == (12, 3.5, 0.25)
    assert (summary["gpu"], summary["mode"], summary["policy"]) == ("h100-sxm", "batched", "lru")


SIZES = st.lists(st.integers(0, 2**62), min_size=5, max_size=5)


@given(SIZES, st.none() | SIZES)
def test_states_sum_to_the_total_through_json(full, window):
    """Bytes stay whole numbers through JSON, however large, so that states sum to sides and sides to the total."""
    sides = {}
    for name, sizes in {"full": full, "window": window}.items():
        if sizes is not None:
            sides[name] = {"total_bytes": sum(sizes), **dict(zip(STATES, sizes, strict=True))}
    total = sum(side["total_bytes"] for side in sides.values())
    sums = {state: sum(side[state] for side in sides.values()) for state in STATES}
    held = sums["live"] + sums["cached"]
    summary = _summary_with(by_side=sides, by_state=sums, total_bytes=total, mean_bytes=held)
    memory = json.loads(json.dumps(summary, allow_nan=False))["memory"]
    assert memory["by_side"] == sides
    assert sum(memory["by_state"].values()) == memory["total_bytes"]
    assert memory["mean_bytes"] == memory["by_state"]["live"] + memory["by_state"]["cached"]
    for state in STATES:
        assert memory["by_state"][state] == sum(side[state] for side in memory["by_side"].values())


ARENA = {"live": 300, "cached": 200, "parked": 0, "hole": 90, "gap": 330, "sink": 60, "padding": 20}


def test_options_are_reported_beside_the_figures():
    """The page size is that of the memory, not the one asked for; layout, interval and dtype of states are options."""
    options = replace(OPTIONS, layout=Layout.UNIFIED, state_interval=64)
    figures = replace(FIGURES, page_size=8, memory=replace(FIGURES.memory, by_state=ARENA, free=90 + 330))
    summary = summarize(replace(RESULT, figures=figures), options)
    assert (summary["memory"]["by_state"], summary["memory"]["free"]) == (ARENA, 420)
    assert (summary["layout"], summary["page_size"]) == ("unified", 8)
    assert (summary["state_interval"], summary["state_dtype"]) == (64, "float32")


def test_what_was_not_measured_is_null():
    """Null says that nothing was divided, that memory was never short, that nothing is known about reuse."""
    memory = _summary_with(split=None, usable_at_first_refusal=None)["memory"]
    assert (memory["split"], memory["usable_at_first_refusal"]) == (None, None)
    figures = replace(FIGURES, prefix=replace(FIGURES.prefix, hit_rate=None))
    assert summarize(replace(RESULT, figures=figures), OPTIONS)["prefix"]["hit_rate"] is None


def test_messages_are_counted_in_full_and_listed_in_part():
    """Of many rejections and rows left out the first twenty are listed; the counts are of all."""
    rejections = tuple(f"request {index}: too long" for index in range(50))
    problems = tuple(f"a.jsonl, line {index}: nothing." for index in range(30))
    figures = replace(FIGURES, requests=replace(FIGURES.requests, rejected=50))
    result = replace(RESULT, trace=_trace(problems), figures=figures, rejections=rejections)
    summary = summarize(result, OPTIONS)
    assert (summary["requests"]["rejected"], summary["excluded_rows"]) == (50, 30)
    assert summary["rejections"] == list(rejections[:20])
    assert summary["excluded"] == list(problems[:20])


def test_mode_policy_and_interrupt_are_reported():
    """How the replay ran is in the summary: a constant step has no GPU, an interrupt is said."""
    options = replace(OPTIONS, step_seconds=0.01, mode=Mode.SERIAL, policy="lfu", cache_dtype="int8", tensor_parallel=2)
    summary = summarize(replace(RESULT, figures=replace(FIGURES, interrupted=True)), options)
    assert (summary["gpu"], summary["mode"], summary["policy"]) == (None, "serial", "lfu")
    assert (summary["cache_dtype"], summary["tensor_parallel"], summary["interrupted"]) == ("int8", 2, True)
