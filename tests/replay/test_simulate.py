"""The replay on a scheduler: clock, counts, memory over time."""

from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_oracles import LinearCost
from trace_strategies import make_trace_of, traces

from kvstead.engine import Request, Scheduler
from kvstead.replay.cost import FixedCost
from kvstead.replay.recorder import TIMELINE_COLUMNS, Recorder
from kvstead.replay.simulate import CostRunner, Replay, Stopwatch
from tiny_model import TOKEN_BYTES, tiny_manager

LIMITS = st.fixed_dictionaries(
    {
        "chunk_tokens": st.integers(1, 20),
        "max_running": st.integers(1, 8),
        "decode_headroom": st.sampled_from([0, 4]),
        "overlap": st.booleans(),
    }
)


def replay_of(trace, manager, cost, **options):
    """A replay on a scheduler with such limits."""
    report = options.pop("report", None)
    reporting = {} if report is None else {"report": report}
    return Replay(trace, Scheduler(manager, **options), cost, **reporting)


@given(traces(), st.sampled_from([1, 2, 4]), st.integers(1, 30), LIMITS)
def test_every_step_costs_what_its_tokens_cost(trace, page_size, num_pages, limits):
    """The runner's time is the sum over steps of a count that looks at every computed token by itself."""
    manager = tiny_manager(num_pages * page_size, page_size)
    scheduler = Scheduler(manager, **limits)
    cost, spent = LinearCost(), []
    runner = CostRunner(trace, cost, manager.table.num_rows, spent.append)
    requests = [Request(i, trace.prompt_tokens(i), int(trace.output_lens[i])) for i in range(len(trace))]
    for request in requests:
        scheduler.add(request)
    expected = []
    while (step := scheduler.schedule()) is not None:
        stretches = [(length - 1, length) for length in step.lengths.tolist()]
        stretches += [(chunk.start, chunk.end) for chunk in step.chunks]
        num_tokens = sum(end - start for start, end in stretches)
        read = sum(end for _, end in stretches)
        pairs = sum(position + 1 for start, end in stretches for position in range(start, end))
        expected.append(cost.seconds(num_tokens, read, pairs))
        scheduler.process(step, runner.launch(step).tokens())
    assert spent == expected
    assert runner.seconds == sum(expected)
    for request in requests:
        if not request.reason:
            base = trace.output_token_base(request.request_id)
            assert request.output.tolist() == list(range(base, base + request.max_new_tokens))


@given(traces(), st.sampled_from([1, 2, 4]), st.integers(1, 30), LIMITS)
def test_counts_add_up(trace, page_size, num_pages, limits):
    """Each request ends as finished or rejected; tokens, bytes and times fit together."""
    manager = tiny_manager(num_pages * page_size, page_size)
    replay = replay_of(trace, manager, LinearCost(), **limits)
    result = replay.run()
    figures = result.figures
    manager.audit()
    fits = -(-(trace.prompt_lens + trace.output_lens - 1) // page_size) <= num_pages
    requests = figures.requests
    assert requests.finished + requests.rejected + requests.aborted == requests.total == len(trace)
    assert figures.requests.finished == fits.sum()
    assert [text.split(":")[0] for text in result.rejections] == [f"request {i}" for i in np.flatnonzero(~fits)]
    assert figures.output_tokens == trace.output_lens[fits].sum()
    assert figures.prefix.prompt_tokens == trace.prompt_lens[fits].sum()
    assert 0 <= figures.prefix.hit_tokens <= figures.prefix.prompt_tokens
    assert figures.memory.total_bytes == (num_pages + 1) * page_size * TOKEN_BYTES
    assert sum(figures.memory.by_state.values()) == figures.memory.total_bytes
    assert min(figures.memory.by_state.values()) >= 0
    assert figures.memory.mean_bytes <= figures.memory.peak_bytes <= num_pages * page_size * TOKEN_BYTES
    if fits.any():
        assert figures.memory.peak_bytes >= trace.prompt_lens[fits].min() * TOKEN_BYTES
        assert figures.latency_s.ttft.p50 > 0
        assert figures.clock_s >= trace.arrivals[fits].max()
    assert figures.memory_us_per_step * figures.steps <= figures.wall_s * 1e6
    clocks = [row[0] for row in result.timeline]
    assert clocks == sorted(clocks)
    for row in result.timeline:
        point = dict(zip(TIMELINE_COLUMNS, row, strict=True))
        held = point["live_bytes"] + point["cached_bytes"] + point["free_bytes"]
        assert held == num_pages * page_size * TOKEN_BYTES


@pytest.mark.parametrize("overlap", [True, False])
def test_one_request_by_hand(overlap):
    """Arrives at once; chunks of 2, 2 and 1, then two tokens more; 6 tokens at most are held, in whole pages."""
    trace = make_trace_of([(0.0, 5, 3, None)], 4)
    cost = LinearCost(step=0.0, token=1.0, read=0.0, pair=0.0)
    result = replay_of(trace, tiny_manager(20, 2), cost, chunk_tokens=2, overlap=overlap).run().figures
    assert (result.steps, result.clock_s) == (5, 7.0)
    assert (result.latency_s.ttft.p50, result.latency_s.tpot.p50) == (5.0, 1.0)
    # 2 slots for two seconds, 4 for two, 6 for one (5 tokens), 6 for one, 8 for one (7 tokens).
    held = (2 * 2 + 4 * 2 + 6 + 6 + 8) * TOKEN_BYTES
    assert result.memory.mean_bytes in {held // 7, held // 7 - 1}
    assert result.memory.peak_bytes == 8 * TOKEN_BYTES
    assert result.throughput_tok_s == 3 / 7


@pytest.mark.parametrize("overlap", [True, False])
def test_time_between_requests_holds_only_what_is_cached(overlap):
    """Nothing is live while no request runs; a request of one step counts for that step."""
    trace = make_trace_of([(0.0, 4, 1, [0]), (100.0, 3, 1, [1])], 4)
    result = replay_of(trace, tiny_manager(20, 2), FixedCost(2.0), overlap=overlap).run()
    figures = result.figures
    assert (figures.steps, figures.clock_s) == (2, 102.0)
    assert figures.latency_s.ttft.p90 == 2.0
    # Live: 4 slots for 2 s, later 4 (3 tokens) for 2 s. Cached: 4 slots from 2 s to the end.
    assert figures.memory.by_state["live"] == int(16 / 102 * TOKEN_BYTES)
    assert figures.memory.by_state["cached"] == int(400 / 102 * TOKEN_BYTES)
    assert figures.memory.peak_bytes == 8 * TOKEN_BYTES
    assert [row[0] for row in result.timeline] == [2.0, 102.0]


def test_requests_wait_for_their_time():
    """No request starts before it arrives; those that arrive during a step start with the next one."""
    trace = make_trace_of([(0.0, 2, 2, None), (1.0, 2, 1, None), (50.0, 2, 1, None)], 4)
    result = replay_of(trace, tiny_manager(20), FixedCost(4.0)).run().figures
    assert (result.steps, result.clock_s) == (3, 54.0)
    ttft = result.latency_s.ttft
    assert (ttft.p50, ttft.p99) == (4.0, pytest.approx(6.94))  # first tokens at 4, 8 and 54


def test_a_trace_in_which_nothing_fits_is_rejected_whole():
    """All rejected: no step, no time, no latency, and no hit rate."""
    trace = make_trace_of([(1.0, 30, 2, [0, 1]), (2.0, 40, 2, [0, 2])], 20)
    result = replay_of(trace, tiny_manager(20, 2), FixedCost(1.0)).run().figures
    assert (result.requests.rejected, result.requests.finished, result.steps, result.clock_s) == (2, 0, 0, 0.0)
    assert (result.latency_s.ttft.p50, result.latency_s.tpot.p99) == (None, None)
    assert (result.prefix.hit_rate, result.throughput_tok_s) == (None, 0.0)
    assert sum(result.memory.by_state.values()) == result.memory.total_bytes


@pytest.mark.parametrize("overlap", [True, False])
def test_an_interrupt_returns_the_figures_so_far(overlap):
    """Ctrl-C ends the replay with counts and averages of the steps until then."""
    trace = make_trace_of([(0.0, 3, 40, None)] * 40, 4)
    reports = []

    def interrupt(progress):
        if progress.done:
            reports.append(progress)
        if len(reports) == 1:
            raise KeyboardInterrupt

    manager = tiny_manager(400, 4, max_requests=4)
    result = replay_of(trace, manager, FixedCost(1.0), report=interrupt, overlap=overlap).run().figures
    assert result.interrupted
    assert 0 < result.requests.finished < result.requests.total == 40
    assert result.steps == 256
    assert result.output_tokens == 40 * result.requests.finished
    assert sum(result.memory.by_state.values()) == result.memory.total_bytes
    assert [report.done for report in reports] == [result.requests.finished] * 2
    assert reports[-1].clock_s >= result.clock_s
    manager.audit()


def test_interrupted_full_memory_stays_within_its_size():
    """A step under way at the interrupt does not push the averages past the memory."""
    trace = make_trace_of([(0.0, 4, 5, None)] * 3, 4)
    calls = []

    class Interrupting(FixedCost):
        def seconds(self, *counts):
            calls.append(counts)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return 1.0

    manager = tiny_manager(8, 8, max_requests=1)
    result = replay_of(trace, manager, Interrupting(1.0), overlap=True).run().figures
    assert result.interrupted
    assert min(result.memory.by_state.values()) >= 0
    assert result.memory.by_state["live"] == 8 * TOKEN_BYTES


@pytest.mark.parametrize("num_steps", [10, 4_000, 30_000])
def test_the_timeline_is_thinned_out(num_steps):
    """However long the replay, fewer than 4,000 points, spread over all of its time."""
    trace = make_trace_of([(0.0, 1, 1, None)], 1)
    recorder = Recorder(trace, tiny_manager(4))
    for step in range(num_steps):
        recorder.step(float(step))
    result = recorder.result(wall_s=1.0, memory_s=0.0, retracted=0, interrupted=False)
    clocks = np.array([row[0] for row in result.timeline])
    assert clocks.size == num_steps if num_steps < 4_000 else 1_000 < clocks.size < 4_000
    assert clocks[0] == 0
    gaps = np.diff(clocks)
    assert gaps.min() > 0
    assert max(gaps.max(), num_steps - clocks[-1]) <= max(1, num_steps / 1_000)


@pytest.mark.parametrize(
    "outer", ["peek", "checkpoint", "chunk_end", "growth", "extend", "decode", "commit", "finish", "retract"]
)
def test_memory_time_is_that_inside_the_manager_once(outer, monkeypatch):
    """A method that calls another counts the time from its own start to its end; outside of them none passes."""
    clock = count()
    monkeypatch.setattr("kvstead.replay.simulate.time.perf_counter", lambda: float(next(clock)))

    class Manager:
        def __getattr__(self, name):
            return lambda: name

    manager = Manager()
    manager.match = lambda: [manager.append()]
    watch = Stopwatch(manager)
    assert getattr(manager, outer)() == outer
    assert watch.seconds == 1
    next(clock)
    manager.match()  # begins, `append` begins and ends, ends
    assert watch.seconds == 1 + 3
