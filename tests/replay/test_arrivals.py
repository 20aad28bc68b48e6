"""When requests arrive: at the trace's times, and turns after the turn before them."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import make_trace_of, traces

from kvstead.engine import Scheduler
from kvstead.replay.arrivals import Arrivals
from kvstead.replay.cost import FixedCost
from kvstead.replay.simulate import Replay
from tiny_model import tiny_manager


@given(traces())
def test_requests_without_sessions_arrive_as_the_trace_says(trace):
    """In the order of the trace, each at its time, and then none."""
    arrivals, found = Arrivals(trace), []
    while arrivals.time < inf:
        found.append((arrivals.time, arrivals.pop()))
    assert found == [(time, request) for request, time in enumerate(trace.arrivals.tolist())]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8), st.data())
def test_turns_arrive_after_the_turn_before(rows, data):
    """Whatever is served when, a turn comes its delay after the end of the one before; all come, each once."""
    trace = make_trace_of([(float(time), 4, 1, None) for time, _ in sorted(rows)], 4)
    follows, taken = np.full(len(trace), -1), set()
    for turn in range(1, len(trace)):
        before = data.draw(st.integers(-1, turn - 1))
        if before >= 0 and before not in taken:
            follows[turn] = before
            taken.add(before)
    delays = np.array([float(delay) for _, delay in sorted(rows)])
    trace = replace(trace, follows=follows, delays=delays)
    arrivals, ends, seen, clock = Arrivals(trace), {}, [], 0.0
    while arrivals.time < inf:
        time = arrivals.time
        request = arrivals.pop()
        before = int(follows[request])
        assert time == (ends[before] + delays[request] if before >= 0 else trace.arrivals[request])
        seen.append(request)
        clock = max(clock, time) + data.draw(st.integers(0, 3))
        ends[request] = clock
        arrivals.end(request, clock)
    assert sorted(seen) == list(range(len(trace)))


def test_a_replay_waits_for_answers():
    """Steps of a second, a turn two seconds after an answer of three tokens: it arrives at 5, and waits one second."""
    trace = make_trace_of([(0.0, 8, 3, [0, 1]), (0.0, 16, 2, [0, 1, 2, 3])], 4)
    trace = replace(trace, follows=np.array([-1, 0]), delays=np.array([0.0, 2.0]))
    figures = Replay(trace, Scheduler(tiny_manager(64, 4)), FixedCost(1.0)).run().figures
    assert figures.requests.finished == 2
    assert figures.clock_s == pytest.approx(3 + 2 + 2)
    assert figures.latency_s.ttft.p99 == pytest.approx(1.0)


def test_a_turn_comes_also_after_a_rejected_one():
    """A request that can never fit ends at once; its next turn is served."""
    trace = make_trace_of([(1.0, 400, 3, None), (1.0, 8, 2, None)], 4)
    trace = replace(trace, follows=np.array([-1, 0]), delays=np.array([0.0, 2.0]))
    figures = Replay(trace, Scheduler(tiny_manager(64, 4)), FixedCost(1.0)).run().figures
    assert (figures.requests.rejected, figures.requests.finished) == (1, 1)
    assert figures.clock_s == pytest.approx(1 + 2 + 2)
