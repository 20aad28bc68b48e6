from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from trace_strategies import make_trace_of, traces

from kvstead.replay.readers import read_trace
from kvstead.replay.stats import LengthStats, ReuseStats, trace_stats
from kvstead.replay.trace import Trace

TRACES = Path(__file__).resolve().parents[2] / ".." / "shared" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the production traces are not beside this checkout")


def reuse_by_sets(trace: Trace) -> ReuseStats:
    """The reuse of a trace, told slowly: walk each prompt until the first block that no earlier prompt had."""
    seen: set[int] = set()
    hit_tokens = prompt_tokens = hit_blocks = num_blocks = 0
    for request in range(len(trace)):
        blocks = trace.blocks(request).tolist()
        if not blocks:
            continue
        left = int(trace.prompt_lens[request])
        prompt_tokens += left
        num_blocks += len(blocks)
        for block in blocks:
            if block not in seen:
                break
            hit_blocks += 1
            hit_tokens += min(left, int(trace.block_sizes[request]))
            left -= int(trace.block_sizes[request])
        seen.update(blocks)
    return ReuseStats(hit_tokens, prompt_tokens, hit_blocks, num_blocks)


@settings(deadline=None)
@given(trace=traces())
def test_reuse_is_the_count_by_sets(trace):
    """Reuse equals a set-based walk over the prompts, and is absent where no request carries ids."""
    reuse = trace_stats(trace).reuse
    assert reuse == (reuse_by_sets(trace) if trace.has_reuse else None)


@needs_traces
@pytest.mark.parametrize(
    ("name", "by_tokens", "by_blocks"), [("conversation", 37.36, 36.64), ("synthetic", 65.12, 63.96)]
)
def test_reuse_of_the_production_traces(name, by_tokens, by_blocks):
    """The Mooncake traces have the stated reuse by tokens and by blocks, as an independent count has it."""
    trace = read_trace(TRACES / f"mooncake_{name}.jsonl")
    reuse = trace_stats(trace).reuse
    assert round(100 * reuse.token_hit_rate, 2) == by_tokens
    assert round(100 * reuse.block_hit_rate, 2) == by_blocks
    assert reuse == reuse_by_sets(trace)


def test_a_partial_last_block_counts_its_own_tokens():
    """6,755 tokens in 14 blocks of 512, twice: the second prompt is known in full, its last block with 99 tokens."""
    trace = make_trace_of([(0, 6755, 1, list(range(14))), (1, 6755, 1, list(range(14)))], 512)
    assert trace_stats(trace).reuse == ReuseStats(6755, 13_510, 14, 28)
    other_end = make_trace_of([(0, 6755, 1, list(range(14))), (1, 6755, 1, [*range(13), 99])], 512)
    assert trace_stats(other_end).reuse == ReuseStats(6656, 13_510, 13, 28)


def test_reuse_needs_an_unbroken_prefix():
    """A known block behind an unknown one is no hit."""
    trace = make_trace_of([(0, 24, 1, [0, 1, 2]), (1, 24, 1, [0, 9, 2])], 8)
    assert trace_stats(trace).reuse == ReuseStats(8, 48, 1, 6)


def test_lengths_and_rates():
    """Counts, totals, percentiles and the request rate are those of the rows."""
    rows = [(float(i), i + 1, 2 * (i + 1), None) for i in range(101)]
    stats = trace_stats(make_trace_of(rows, 8, name="hundred", problems=("a row.",), format="azure"))
    assert (stats.name, stats.format, stats.requests, stats.rows_left_out) == ("hundred", "azure", 101, 1)
    assert (stats.duration_s, stats.requests_per_s) == (100.0, 1.01)
    assert stats.prompt_lens == LengthStats(mean=51.0, p50=51.0, p90=91.0, p99=100.0, max=101)
    assert stats.output_lens == LengthStats(mean=102.0, p50=102.0, p90=182.0, p99=200.0, max=202)
    assert (stats.prompt_tokens, stats.output_tokens) == (5151, 10_302)
    assert stats.reuse is None


def test_a_single_moment_has_no_rate():
    """Where all requests arrive at once there is no rate, and no division by zero."""
    assert trace_stats(make_trace_of([(0, 1, 1, None), (0, 1, 1, None)], 8)).requests_per_s is None


def test_percentiles_are_python_numbers():
    """Figures are Python numbers, so that they can be written as JSON."""
    stats = LengthStats.of(np.array([3, 1, 2]))
    assert {type(stats.mean), type(stats.p50), type(stats.p90), type(stats.p99)} == {float}
    assert type(stats.max) is int
