import gzip
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_strategies import make_trace_of, traces

from kvstead.errors import InvalidSize, TraceError
from kvstead.replay.readers import read_trace
from kvstead.replay.sample import SAMPLE_PATH, make_sample
from kvstead.replay.stats import trace_stats
from kvstead.replay.synthetic import make_trace
from kvstead.replay.trace import Trace, merge
from kvstead.replay.writers import mooncake_lines, write_mooncake

COLUMNS = ("arrivals", "prompt_lens", "output_lens", "block_sizes", "block_offsets", "block_ids")


def assert_same(one: Trace, other: Trace) -> None:
    for column in COLUMNS:
        assert np.array_equal(getattr(one, column), getattr(other, column)), column


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**64), block_size=st.sampled_from([5, 7, 16, 64]))
def test_the_seed_decides(seed, block_size):
    """The same arguments give the same trace, another seed another one."""
    figures = {"num_sessions": 5, "block_size": block_size}
    assert_same(make_trace(seed=seed, **figures), make_trace(seed=seed, **figures))
    other = make_trace(seed=seed + 1, **figures)
    assert other.prompt_lens.tolist() != make_trace(seed=seed, **figures).prompt_lens.tolist()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), block_size=st.sampled_from([5, 7, 16, 64]))
def test_turns_extend_each_other(seed, block_size):
    """A turn's prompt begins with the full blocks of the turn before, and holds its answer and something new."""
    trace = make_trace(seed=seed, num_sessions=1, turns=6, block_size=block_size)
    for turn in range(1, len(trace)):
        before = int(trace.prompt_lens[turn - 1])
        assert trace.prompt_lens[turn] > before + trace.output_lens[turn - 1]
        num_full = before // block_size
        assert np.array_equal(trace.blocks(turn)[:num_full], trace.blocks(turn - 1)[:num_full])
        if before % block_size:
            assert trace.blocks(turn)[num_full] != trace.blocks(turn - 1)[num_full]
        assert trace.arrivals[turn] >= trace.arrivals[turn - 1] + 0.02 * trace.output_lens[turn - 1] - 0.002


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), num_system_prompts=st.integers(1, 3), block_size=st.sampled_from([5, 7, 16]))
def test_block_ids_are_chained(seed, num_system_prompts, block_size):
    """Every block always stands behind the same block, so equal ids are equal prefixes."""
    trace = make_trace(seed=seed, num_sessions=12, num_system_prompts=num_system_prompts, block_size=block_size)
    before: dict[int, int | None] = {}
    for request in range(len(trace)):
        previous = None
        for block in trace.blocks(request).tolist():
            assert before.setdefault(block, previous) == previous
            previous = block
    firsts = {int(trace.blocks(request)[0]) for request in range(len(trace))}
    assert len(firsts) <= num_system_prompts + 12  # a system prompt below one block is not shared


def test_sessions_share_their_system_prompt():
    """One-turn sessions over one system prompt share exactly its full blocks."""
    trace = make_trace(
        seed=3, num_sessions=20, turns=1, num_system_prompts=1, spread=0, system_tokens=100, block_size=16
    )
    shared = trace.blocks(0)[:6]
    assert all(np.array_equal(trace.blocks(request)[:6], shared) for request in range(20))
    assert len({int(trace.blocks(request)[6]) for request in range(20)}) == 20


def test_lengths_and_times_have_the_medians_asked_for():
    """Medians, rate, mean number of turns and burstiness come out as asked, within sampling error."""
    lone = make_trace(
        seed=5, num_sessions=4000, turns=1, num_system_prompts=1, system_tokens=1, output_tokens=300, spread=0.7,
        user_tokens=200, sessions_per_second=2, burstiness=5,
    )  # fmt: skip
    gaps = np.diff(lone.arrivals)
    assert np.median(lone.output_lens) == pytest.approx(300, rel=0.06)
    assert np.median(lone.prompt_lens) == pytest.approx(200, rel=0.06)
    assert np.log(lone.output_lens).std() == pytest.approx(0.7, rel=0.06)
    assert len(lone) / lone.arrivals[-1] == pytest.approx(2, rel=0.15)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(5, rel=0.25)
    several = make_trace(seed=5, num_sessions=3000, turns=3, max_prompt_tokens=1 << 20)
    assert len(several) / 3000 == pytest.approx(3, rel=0.06)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), most=st.integers(2, 300))
def test_prompts_keep_their_bound(seed, most):
    """No prompt exceeds the bound, and every session has a first turn whatever the bound is."""
    trace = make_trace(seed=seed, num_sessions=5, turns=9, max_prompt_tokens=most, user_tokens=20)
    assert trace.prompt_lens.max() <= most
    assert len(trace) >= 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_sessions", 0),
        ("turns", 0.5),
        ("block_size", 0),
        ("num_system_prompts", 0),
        ("system_tokens", 0),
        ("user_tokens", -5),
        ("output_tokens", math.nan),
        ("spread", 3.5),
        ("sessions_per_second", 0),
        ("burstiness", 0),
        ("think_seconds", -1),
        ("max_prompt_tokens", 1),
    ],
)
def test_figures_out_of_range_are_refused(name, value):
    """A figure that cannot be is refused by name."""
    with pytest.raises(InvalidSize, match=f"{name} is {value}"):
        make_trace(**{"seed": 0, "num_sessions": 1, name: value})


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_written_traces_are_read_back(tmp_path, suffix):
    """A written trace reads back as it was, compressed by suffix, and the same trace gives the same bytes."""
    trace = make_trace(seed=9, num_sessions=8, block_size=32)
    path = tmp_path / f"made{suffix}"
    write_mooncake(trace, path)
    assert_same(read_trace(path), trace)
    once = path.read_bytes()
    write_mooncake(trace, path)
    assert path.read_bytes() == once
    assert once.startswith({".jsonl": b"{", ".jsonl.gz": b"\x1f\x8b", ".jsonl.zst": b"\x28\xb5\x2f\xfd"}[suffix])


@settings(deadline=None)
@given(trace=traces())
def test_written_rows_are_the_requests(trace):
    """Each row has a request's figures, and its ids if it has some."""
    for request, line in enumerate(mooncake_lines(trace)):
        ids = {"hash_ids": trace.blocks(request).tolist(), "block_size": trace.block_size}
        assert json.loads(line) == {
            "timestamp": trace.arrivals[request] * 1000,
            "input_length": trace.prompt_lens[request],
            "output_length": trace.output_lens[request],
        } | (ids if trace.block_sizes[request] else {})


def test_a_refused_trace_leaves_the_file_unchanged(tmp_path):
    """A trace that cannot be written, and a place that cannot be written to, are errors; no file is touched."""
    path = tmp_path / "kept.jsonl"
    path.write_text("before")
    of_two_sizes = merge([make_trace_of([(0, 5, 1, [0])], size) for size in (8, 16)])
    with pytest.raises(TraceError, match=r"has block sizes 8, 16. Write the traces of each block size on their own"):
        write_mooncake(of_two_sizes, path)
    assert path.read_text() == "before"
    with pytest.raises(TraceError, match="cannot be written"):
        write_mooncake(make_trace_of([(0, 5, 1, [0])], 8), tmp_path / "missing" / "trace.jsonl")


def test_the_sample_is_what_its_seed_makes():
    """The bundled sample is, row for row, the trace that its recorded seed and figures make."""
    rows = gzip.decompress(SAMPLE_PATH.read_bytes()).decode().splitlines()
    assert rows == list(mooncake_lines(make_sample()))
    assert_same(read_trace(SAMPLE_PATH), make_sample())


def test_the_sample_fits_its_purpose():
    """The sample is small, replays in seconds, and reuses more tokens than a cache of 32,768 can hold."""
    stats = trace_stats(read_trace(SAMPLE_PATH))
    assert SAMPLE_PATH.stat().st_size < 200_000
    assert 300 <= stats.requests <= 600
    assert stats.rows_left_out == 0
    assert 120 < stats.duration_s < 400
    assert 1_000_000 < stats.prompt_tokens < 2_000_000
    assert 0.5 < stats.reuse.token_hit_rate < 0.9
    assert stats.reuse.prompt_tokens - stats.reuse.hit_tokens > 2 * 32_768
    assert stats.prompt_lens.max + stats.output_lens.max < 32_768
