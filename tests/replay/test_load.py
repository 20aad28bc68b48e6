"""Overload, goals, and whether a model fits its GPU."""

import numpy as np
import pytest
from trace_strategies import make_trace_of

from kvstead.engine import Scheduler
from kvstead.errors import InvalidSize
from kvstead.model.weight_precision import WeightPrecision
from kvstead.replay.card import card_memory
from kvstead.replay.cost import FixedCost, RooflineCost
from kvstead.replay.gpus import gpu
from kvstead.replay.simulate import Replay
from kvstead.replay.slo import Slo
from tiny_model import tiny_manager


def figures_of(rows, num_slots=64, cost=None, slo=None, **limits):
    trace = make_trace_of([(arrival, prompt, output, None) for arrival, prompt, output in rows], 4)
    scheduler = Scheduler(tiny_manager(num_slots, 4, max_requests=8), decode_headroom=0, **limits)
    return Replay(trace, scheduler, cost or FixedCost(1.0), slo=slo).run()


def test_requests_that_are_served_as_they_come_are_no_overload():
    """Two seconds of work every ten seconds, and all at one time: neither piles up while requests come."""
    assert figures_of([(10.0 * i, 4, 2) for i in range(8)]).figures.overload is None
    assert figures_of([(0.0, 4, 2) for _ in range(20)]).figures.overload is None


@pytest.mark.parametrize(
    ("limits", "wants"),
    [({"num_slots": 16}, "memory"), ({"max_running": 1}, "max_running"), ({"chunk_tokens": 4}, "compute")],
)
def test_what_is_short_is_named(limits, wants):
    """A request of eight steps every two seconds: too little memory, too few at once, or too few tokens a step."""
    output = 1 if wants == "compute" else 8
    prompt = 16 if wants == "compute" else 8
    overload = figures_of([(2.0 * i, prompt, output) for i in range(30)], **limits).figures.overload
    assert overload.wants == wants
    assert overload.waited_for[wants] == max(overload.waited_for.values())
    assert sum(overload.waited_for.values()) == pytest.approx(1)
    assert overload.factor > 1.5
    assert 0 <= overload.since_s < 20
    assert (overload.arithmetic_factor, overload.bound) == (0, "")


def test_arithmetic_that_fills_the_time_wants_compute():
    """Where the work of all steps takes longer than the requests take to come, no memory helps."""
    figure = {"total_params": 1e9, "active_params": 1e9, "attention_flops_per_pair": 1.0, "kv_bytes_per_token": 1.0}
    cost = RooflineCost(gpu("h100-sxm"), **figure, mfu=1e-9)
    overload = figures_of([(0.01 * i, 8, 1) for i in range(30)], num_slots=16, cost=cost).figures.overload
    assert (overload.wants, overload.bound) == ("compute", "compute")
    assert overload.arithmetic_factor > 1


def test_waiting_in_the_queue_is_split_from_prefill():
    """One at a time, three steps each: the second waits three seconds, and its first token takes one more."""
    result = figures_of([(0.0, 4, 3), (0.0, 4, 3)], max_running=1)
    columns = result.requests
    assert columns["admitted_s"].tolist() == [0.0, 3.0]
    assert columns["first_token_s"].tolist() == [1.0, 4.0]
    assert columns["last_token_s"].tolist() == [3.0, 6.0]
    assert columns["output_tokens"].tolist() == [3, 3]
    latency = result.figures.latency_s
    assert (latency.queue.p50, latency.prefill.p50, latency.ttft.p50, latency.e2e.p50) == (1.5, 1.0, 2.5, 4.5)


@pytest.mark.parametrize(
    ("slo", "kept"), [(Slo(ttft_s=1.0), 1), (Slo(ttft_s=4.0), 2), (Slo(tpot_s=0.9), 0), (Slo(4.0, 1.0), 2), (Slo(), 2)]
)
def test_goodput_counts_what_kept_the_goal(slo, kept):
    """Of two requests, one at a time: first tokens at 1 and 4 s, the others a second each, six seconds in all."""
    goodput = figures_of([(0.0, 4, 3), (0.0, 4, 3)], max_running=1, slo=slo).figures.goodput
    assert (goodput.requests, goodput.share, goodput.requests_per_s) == (kept, kept / 2, kept / 6)


def test_a_card_holds_weights_cache_and_the_engine():
    """131.4 GiB of weights over eight GPUs fit 80 GB with 40 GiB of cache, not with 70; the arithmetic is told."""
    precision = WeightPrecision("bfloat16", 2.0, "as given")
    sizes = {"num_weights": 70.6e9 / 8, "overhead_bytes": 2 << 30}
    card_memory(gpu("h100-sxm"), precision, cache_bytes=40 << 30, **sizes).require_fit()
    with pytest.raises(
        InvalidSize, match=r"16\.4 GiB of weights, 70\.0 GiB of cache .* of one h100-sxm: at most 56\.1 GiB"
    ):
        card_memory(gpu("h100-sxm"), precision, cache_bytes=70 << 30, **sizes).require_fit()
    with pytest.raises(InvalidSize, match="no cache fits"):
        card_memory(gpu("l4"), precision, num_weights=70.6e9, cache_bytes=1, overhead_bytes=0).require_fit()


def test_live_memory_is_what_requests_hold():
    """Requests one after another that leave their prompts cached: the live peak is that of one, not of the cache."""
    memory = figures_of([(10.0 * i, 8, 1) for i in range(6)]).figures.memory
    one = 8 * memory.total_bytes // (64 + 4)
    assert memory.peak_live_bytes == one
    assert memory.peak_bytes == 6 * one
    assert np.isclose(memory.mean_live_bytes, one * 6 / 51, rtol=0.01)
