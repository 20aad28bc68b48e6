"""Replays of every kind of model in every memory layout: they serve the same requests, and account for each byte."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kind_models import MODELS, POOL_LAYOUTS, manager_for, manager_of_bytes
from replay_oracles import LinearCost
from trace_strategies import make_trace_of, traces

from kvstead.engine import Request, Scheduler
from kvstead.model import load_layout
from kvstead.replay.cost import FixedCost
from kvstead.replay.options import Layout, Mode, ReplayOptions
from kvstead.replay.readers import read_trace
from kvstead.replay.recorder import TIMELINE_COLUMNS
from kvstead.replay.run import _manager, run_replay
from kvstead.replay.serial import SerialReplay
from kvstead.replay.simulate import CostRunner, Replay
from kvstead.replay.synthetic import make_trace
from kvstead.replay.writers import write_mooncake

STATE_MODELS = [name for name, model in MODELS.items() if model.state_bytes]
PRESETS = [
    "qwen3-next-80b-a3b",
    "nemotron-h-8b",
    "falcon-h1-7b",
    "kimi-linear-48b-a3b",
    "bamba-9b",
    "jamba-v0.1",
    "lfm2-1.2b",
    "zamba2-7b",
    "granite-4.0-h-small",
    "qwen3.5-35b-a3b",
    "gemma-3-27b",
    "gpt-oss-120b",
]
LIMITS = st.fixed_dictionaries(
    {
        "chunk_tokens": st.integers(1, 20),
        "max_running": st.integers(1, 8),
        "decode_headroom": st.sampled_from([0, 4]),
        "overlap": st.booleans(),
    }
)


def longest(trace):
    """Tokens of the longest request."""
    return int((trace.prompt_lens + trace.output_lens).max())


def ample(model, pool_layout, page_size, trace, **options):
    """More memory than the trace can fill."""
    num_tokens = int((trace.prompt_lens + trace.output_lens).sum()) + 64 * len(trace)
    return manager_for(
        model, pool_layout, page_size, num_tokens, num_states=num_tokens, num_windows=num_tokens, **options
    )


@given(
    traces(),
    st.sampled_from(list(MODELS)),
    st.sampled_from(POOL_LAYOUTS),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 40),
    st.integers(1, 8),
    LIMITS,
)
def test_every_byte_has_its_state(trace, kind, pool_layout, page_size, spare, num_states, limits):
    """In memories just large enough all requests end; bytes add up to the memory on average and at every sample."""
    model = MODELS[kind]
    manager = manager_for(model, pool_layout, page_size, longest(trace) + spare, num_states=num_states)
    replay = Replay(trace, Scheduler(manager, **limits), LinearCost())
    seen, sample = [], replay._recorder._sample

    def watch(*arguments):
        seen.append(manager.stats())
        sample(*arguments)

    replay._recorder._sample = watch
    result = replay.run()
    figures = result.figures
    manager.audit()
    assert (figures.requests.finished, figures.requests.rejected, figures.requests.total) == (len(trace), 0, len(trace))
    assert figures.output_tokens == trace.output_lens.sum()
    assert sum(figures.memory.by_state.values()) == figures.memory.total_bytes == manager.total_bytes
    assert min(figures.memory.by_state.values()) >= 0
    assert list(figures.memory.by_state) == list(manager.stats().by_state)
    assert figures.memory.mean_bytes <= figures.memory.peak_bytes <= figures.memory.total_bytes
    for stats in seen:
        assert sum(stats.by_state.values()) == manager.total_bytes
        for name, side in stats.by_side.items():
            assert sum(side.by_state.values()) == side.total_bytes, name
    for row, stats in zip(result.timeline, seen, strict=True):
        point = dict(zip(TIMELINE_COLUMNS, row, strict=True))
        assert [point[f"{state}_bytes"] for state in ("live", "cached", "free")] == [
            stats.live,
            stats.cached,
            stats.free,
        ]
        side = stats.by_side.get("state")
        states = [point["state_live_bytes"], point["state_cached_bytes"]]
        assert states == ([0, 0] if side is None else [side.live, side.cached])


@settings(max_examples=40)
@given(traces(), st.sampled_from(list(MODELS)), st.sampled_from(POOL_LAYOUTS), st.sampled_from([1, 2, 4]), LIMITS)
def test_sides_add_up_as_they_share(trace, kind, pool_layout, page_size, limits):
    """Sides with bytes of their own sum to the memory state by state; pools that share it have their own bytes only."""
    manager = manager_for(MODELS[kind], pool_layout, page_size, longest(trace) + 20)
    result = Replay(trace, Scheduler(manager, **limits), LinearCost()).run().figures
    sides = result.memory.by_side
    assert set(sides) == set(manager.stats().by_side)
    for side in sides.values():
        assert sum(side.values()) == 2 * side["total_bytes"]
        assert min(side.values()) >= 0
    shared = {"live", "cached", "parked"} | ({"hole"} if manager.plan.has_arena else set())
    states = shared if manager.plan.is_shared else set(result.memory.by_state)
    assert all(set(side) == {"total_bytes"} | states for side in sides.values())
    for state in states:
        assert result.memory.by_state[state] == sum(side[state] for side in sides.values())
    if not manager.plan.is_shared:
        assert sum(side["total_bytes"] for side in sides.values()) == result.memory.total_bytes
    assert sum(result.memory.by_kind.values()) == result.memory.mean_bytes
    assert list(result.memory.by_kind) == [str(kind) for kind in MODELS[kind].kinds]
    moves = (result.memory.bytes_moved > 0, result.memory.moves_per_step > 0)
    assert moves in {(False, False), (manager.plan.has_arena, manager.plan.has_arena)}


@settings(max_examples=40)
@given(traces(), st.sampled_from(list(MODELS)), st.sampled_from([1, 2, 4]), LIMITS)
def test_layouts_find_the_same_in_ample_memory(trace, kind, page_size, limits):
    """In ample memory all layouts run the same steps; none is ever short, evicts or moves."""
    found = []
    for pool_layout in ("static", "unified", "ideal"):
        manager = ample(MODELS[kind], pool_layout, page_size, trace)
        result = Replay(trace, Scheduler(manager, **limits), LinearCost()).run().figures
        assert result.memory.usable_at_first_refusal is None
        prefix, memory = result.prefix, result.memory
        assert (memory.moves_per_step, prefix.evicted_states, sum(prefix.evicted_tokens.values())) == (0, 0, 0)
        counts = [prefix.hit_tokens, prefix.found_tokens, memory.state_copies, result.clock_s, result.steps]
        found.append([*counts, memory.peak_bytes, memory.mean_bytes, memory.by_kind])
    assert found[0] == found[1] == found[2]


@settings(max_examples=40)
@given(
    traces(),
    st.sampled_from(list(MODELS)),
    st.sampled_from(POOL_LAYOUTS),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 30),
)
def test_one_at_a_time_is_a_scheduler_that_runs_one(trace, kind, pool_layout, page_size, chunk_tokens):
    """The serial replay makes the same chunks and copies of states, in the same time, as a scheduler with one row."""
    trace = replace(trace, arrivals=np.zeros(len(trace)))
    results = []
    for serial in (True, False):
        manager = ample(MODELS[kind], pool_layout, page_size, trace, max_requests=1)
        if serial:
            result = SerialReplay(trace, manager, LinearCost(), chunk_tokens=chunk_tokens).run().figures
        else:
            result = Replay(trace, Scheduler(manager, chunk_tokens=chunk_tokens), LinearCost()).run().figures
        manager.audit()
        tree = {(node.end, node.state is not None) for node in manager.tree.root.below()}
        prefix = result.prefix
        counts = [result.requests.finished, result.memory.state_copies, result.clock_s]
        results.append([*counts, prefix.hit_tokens, prefix.found_tokens, manager.tree.num_states, tree])
    assert results[0] == results[1]


@settings(max_examples=40)
@given(
    traces(),
    st.sampled_from(STATE_MODELS),
    st.sampled_from(POOL_LAYOUTS),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 30),
    st.integers(1, 8),
)
def test_hits_end_where_a_state_is(trace, kind, pool_layout, page_size, chunk_tokens, num_states):
    """One by one in a small memory, a request goes on from a cached state or from the start, never from in between."""
    manager = manager_for(
        MODELS[kind], pool_layout, page_size, longest(trace) + 10, num_states=num_states, max_requests=1
    )
    match, hits = manager.match, []

    def watched(tokens, **options):
        lease = match(tokens, **options)
        if lease is None:
            return None
        node = manager.lock_of(lease.row)
        assert node.end == lease.num_cached
        assert node is manager.tree.root or node.state is not None
        hits.append(lease)
        return lease

    manager.match = watched
    result = SerialReplay(trace, manager, FixedCost(1.0), chunk_tokens=chunk_tokens).run().figures
    assert (result.requests.finished, result.requests.rejected) == (len(trace), 0)
    assert result.prefix.hit_tokens == sum(lease.num_cached for lease in hits)
    assert result.prefix.found_tokens - result.prefix.hit_tokens == sum(lease.num_dead for lease in hits)
    assert result.memory.state_copies >= sum(lease.num_cached > 0 for lease in hits)
    manager.audit()


@pytest.mark.parametrize("mode", ["serial", "batched", "overlapped"])
@pytest.mark.parametrize("pool_layout", POOL_LAYOUTS)
def test_the_only_kept_state_lies_behind_where_the_next_request_parts(pool_layout, mode):
    """The first of four requests leaves a state behind its last whole page; the second shares 1,500 of 2,200 tokens.

    It cannot use them, and leaves a state where it branches; the third, which shares the same, goes on from there. The
    fourth shares all and goes on from the first one's state. Lost tokens are told as lost to missing states.
    """
    first = list(range(22))
    rows = [
        (0.0, 2200, 2, first),
        (1e6, 2000, 2, [*first[:15], *range(30, 35)]),
        (2e6, 2000, 2, [*first[:15], *range(40, 45)]),
        (3e6, 2300, 2, [*first, 50]),
    ]
    trace = make_trace_of(rows, 100)
    manager = manager_for(MODELS["states"], pool_layout, 1, 20_000, num_states=20, state_interval=0)
    if mode == "serial":
        result = SerialReplay(trace, manager, FixedCost(1.0)).run().figures
    else:
        result = Replay(trace, Scheduler(manager, overlap=mode == "overlapped"), FixedCost(1.0)).run().figures
    found, kept = (length - length % manager.page_size for length in (2200, 2199))
    assert result.prefix.hit_tokens == 0 + 0 + 1500 + kept
    assert result.prefix.lost_to_missing_states == 0 + 1500 + 0 + found - kept
    assert {1500, kept} <= {node.end for node in manager.tree.root.below() if node.state is not None}
    manager.audit()


@pytest.mark.parametrize("serial", [True, False])
def test_a_memory_of_one_state_serves_a_request_that_repeats_a_prompt(serial):
    """The one state is that of the cached prompt and cannot be copied: the second request computes its whole prompt."""
    trace = make_trace_of([(0.0, 12, 1, [0, 1, 2]), (9.0, 13, 1, [0, 1, 2, 3])], 4)
    manager = manager_for(MODELS["states"], "static", 4, 16, num_states=1, state_interval=4)
    if serial:
        result = SerialReplay(trace, manager, FixedCost(1.0)).run().figures
    else:
        result = Replay(trace, Scheduler(manager), FixedCost(1.0)).run().figures
    assert (result.requests.finished, result.prefix.hit_tokens) == (2, 0)
    assert result.prefix.lost_to_missing_states == (12 if serial else 0)
    manager.audit()


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in {"whole sequences", "windows alone"}])
@pytest.mark.parametrize("seed", range(2))
def test_an_arena_is_fuller_before_it_is_short(kind, seed):
    """Of the same bytes an arena holds more than divided sides at its peak, and when it is first short of memory.

    Where memory is divided, one side is short while another has free pages.
    """
    model, filled = MODELS[kind], {}
    trace = make_trace(
        seed=seed, num_sessions=6, block_size=4, system_tokens=20, user_tokens=15, output_tokens=20, spread=0.4
    )
    num_bytes = 3 * longest(trace) * (model.full_bytes_per_token + model.window_bytes_per_token)
    for pool_layout in ("static", "unified"):
        manager = manager_of_bytes(model, num_bytes, pool_layout)
        result = SerialReplay(trace, manager, FixedCost(1.0), chunk_tokens=16).run().figures
        assert result.requests.finished == len(trace)
        filled[pool_layout] = (result.memory.usable_at_first_refusal, result.memory.peak_bytes)
    assert filled["static"][0] < filled["unified"][0]
    assert filled["static"][1] <= filled["unified"][1]


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """A few sessions of some turns each."""
    path = tmp_path_factory.mktemp("traces") / "chat.jsonl"
    write_mooncake(
        make_trace(
            seed=5,
            num_sessions=6,
            turns=2.5,
            system_tokens=600,
            user_tokens=400,
            output_tokens=30,
            sessions_per_second=20,
            think_seconds=0.2,
        ),
        path,
    )
    return str(path)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("model", PRESETS)
def test_presets_are_replayed_in_every_layout(chat, model, layout):
    """In a memory of a few requests all are served, some tokens are reused, bytes add up, the audit is clean."""
    trace, model_layout = read_trace(chat), load_layout(model)
    num_bytes = 4 * model_layout.sequence_bytes(longest(trace)) + 8 * model_layout.state_bytes
    options = ReplayOptions((chat,), model, num_bytes=num_bytes, layout=layout)
    manager = _manager(options, model_layout, trace)
    result = Replay(trace, Scheduler(manager), FixedCost(0.01)).run().figures
    manager.audit()
    assert (result.requests.finished, result.requests.rejected) == (len(trace), 0)
    assert result.output_tokens == trace.output_lens.sum()
    assert result.prefix.hit_tokens > 0
    assert sum(result.memory.by_state.values()) == result.memory.total_bytes == num_bytes
    assert (result.memory.state_copies > 0) == (model_layout.state_bytes > 0) == ("state" in result.memory.by_side)
    assert (result.memory.split is None) == (layout is not Layout.STATIC)


@pytest.mark.parametrize("model", PRESETS)
def test_presets_are_replayed_one_request_at_a_time(chat, model):
    """So they are by name and numbers, one request at a time, in an arena."""
    num_bytes = 3 * load_layout(model).sequence_bytes(4096) + 4 * load_layout(model).state_bytes
    options = ReplayOptions((chat,), model, num_bytes=num_bytes, layout=Layout.UNIFIED, mode=Mode.SERIAL)
    result = run_replay(options).figures
    assert result.requests.finished == result.requests.total
    assert result.prefix.hit_tokens > 0
    assert sum(result.memory.by_state.values()) == num_bytes


@settings(max_examples=40)
@given(traces(), st.sampled_from(list(MODELS)), st.sampled_from([1, 2, 4]), LIMITS)
def test_each_row_of_a_step_reads_and_writes_a_state(trace, kind, page_size, limits):
    """Where the model has states every row, of a prompt or in decode, adds the time of one; elsewhere none does."""
    manager = manager_for(MODELS[kind], "static", page_size, longest(trace) + 20)
    cost, spent, expected = LinearCost(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, state=1.0), [], []
    has_states = manager.state_bytes > 0
    runner = CostRunner(trace, cost, manager.table.num_rows, spent.append, window=manager.window, has_states=has_states)
    scheduler = Scheduler(manager, **limits)
    for index in range(len(trace)):
        scheduler.add(Request(index, trace.prompt_tokens(index), int(trace.output_lens[index])))
    while (step := scheduler.schedule()) is not None:
        expected.append(has_states * len({*step.rows.tolist(), *(chunk.row for chunk in step.chunks)}))
        scheduler.process(step, runner.launch(step).tokens())
    assert spent == expected
    manager = manager_for(MODELS[kind], "static", page_size, longest(trace) + 20)
    result = Replay(trace, Scheduler(manager), cost).run().figures
    assert (result.clock_s > trace.arrivals.max()) == has_states


def test_a_replay_that_cannot_go_on_fails_with_a_message(monkeypatch):
    """Where a scheduler plans nothing although requests wait, the replay ends with a message, not in a loop."""
    trace = make_trace_of([(0.0, 4, 2, None)], 4)
    scheduler = Scheduler(manager_for(MODELS["states"], "static", 1, 20))
    monkeypatch.setattr(scheduler, "schedule", lambda: None)
    with pytest.raises(AssertionError, match="none of them can run"):
        Replay(trace, scheduler, FixedCost(1.0)).run()
