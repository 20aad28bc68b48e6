"""What a recorder derives from what it was told."""

from types import SimpleNamespace

import numpy as np
import pytest
from kind_models import MODELS, manager_for
from trace_strategies import make_trace_of

from kvstead.replay.recorder import Recorder
from kvstead.replay.result import Quantiles
from tiny_model import tiny_manager


def _figures(recorder, **ending):
    ending = {"wall_s": 1.0, "memory_s": 0.0, "retracted": 0, "interrupted": False, **ending}
    return recorder.result(**ending).figures


def _trace(blocks=(0, 1)):
    """Two requests of 8 prompt tokens each."""
    return make_trace_of([(0.0, 8, 4, blocks), (1.0, 8, 4, blocks)], 4)


def test_rates_are_shares_of_what_was_counted():
    """4 of 16 tokens hit and 3 lost; 30 tokens in a minute; 42 us in 12 steps."""
    recorder = Recorder(_trace(), tiny_manager(20))
    recorder.start(0, 4, 1, 1.0)
    recorder.start(1, 0, 2, 2.0)
    recorder.served.end(0, 12, 12.0)
    recorder.served.end(1, 18, 19.0)
    for step in range(12):
        recorder.step(5.0 * (step + 1))
    figures = _figures(recorder, memory_s=42e-6, retracted=3)
    prefix = figures.prefix
    assert (prefix.hit_tokens, prefix.found_tokens, prefix.prompt_tokens, prefix.hit_rate) == (4, 7, 16, 0.25)
    assert (figures.output_tokens, figures.throughput_tok_s) == (30, 0.5)
    assert (figures.steps, figures.memory_us_per_step) == (12, pytest.approx(3.5))
    assert (figures.requests.total, figures.requests.finished, figures.requests.retracted) == (2, 2, 3)
    assert figures.latency_s.ttft.p50 == 1.0
    assert figures.latency_s.tpot.p50 == 1.0


@pytest.mark.parametrize(("kind", "cause"), [("windows", "dead_windows"), ("states", "missing_states")])
def test_lost_tokens_have_one_cause(kind, cause):
    """Unused tokens count as lost to states if the model has some, else to windows; the other figure is 0."""
    recorder = Recorder(_trace(), manager_for(MODELS[kind], "static", 1, 40))
    recorder.start(0, 2, 3, 1.0)
    prefix = _figures(recorder).prefix
    lost = {"dead_windows": prefix.lost_to_dead_windows, "missing_states": prefix.lost_to_missing_states}
    assert lost == {"dead_windows": 0, "missing_states": 0} | {cause: 3}


def test_no_rate_without_a_denominator():
    """There is no hit rate where the trace carries no reuse, and where no prompt was computed."""
    recorder = Recorder(_trace(None), tiny_manager(20))
    recorder.start(0, 0, 0, 1.0)
    assert _figures(recorder).prefix.hit_rate is None
    assert _figures(Recorder(_trace(), tiny_manager(20))).prefix.hit_rate is None


def test_what_is_free_is_summed_and_moves_are_counted_per_step(monkeypatch):
    """In an arena holes and gap are free; six moves in twelve steps are a half; without a step there are none."""
    manager = manager_for(MODELS["states"], "unified", 1, 40)
    chain = manager.chain
    moved = SimpleNamespace(bytes_moved=1200, num_moves=6, by_state=chain.by_state)
    recorder = Recorder(_trace(), manager)
    monkeypatch.setattr(manager, "chain", moved)
    assert _figures(recorder).memory.moves_per_step == 0
    for step in range(12):
        recorder.step(float(step))
    memory = _figures(recorder).memory
    assert (memory.bytes_moved, memory.moves_per_step) == (1200, 0.5)
    assert memory.free == memory.by_state["hole"] + memory.by_state["gap"] > 0
    assert memory.mean_bytes == memory.by_state["live"] + memory.by_state["cached"]


def test_a_latency_without_samples_has_no_quantiles():
    """Without a sample each quantile is None; of some they lie between neighbours."""
    assert Quantiles.of(np.array([])) == Quantiles(None, None, None)
    assert Quantiles.of(np.array([0.0, 10.0])) == Quantiles(5.0, 9.0, 9.9)
