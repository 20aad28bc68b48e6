from dataclasses import replace

import pytest

from kvstead.errors import InvalidSize, LayoutError, TraceError
from kvstead.model import load_layout
from kvstead.replay.cost import FixedCost, gpu
from kvstead.replay.options import Mode, ReplayOptions
from kvstead.replay.run import run_replay, step_cost
from kvstead.replay.synthetic import make_trace
from kvstead.replay.writers import write_mooncake

MODEL = "llama-3.1-8b"


@pytest.fixture
def options(tmp_path):
    """Twelve short sessions in a pool that holds some of them."""
    path = tmp_path / "chat.jsonl"
    trace = make_trace(
        seed=1,
        num_sessions=12,
        system_tokens=64,
        user_tokens=24,
        output_tokens=16,
        sessions_per_second=50,
        think_seconds=0.2,
    )
    write_mooncake(trace, path)
    return ReplayOptions((str(path),), MODEL, num_slots=2048)


@pytest.mark.parametrize("mode", list(Mode))
def test_every_mode_finishes_the_trace(options, mode):
    """Batched, overlapped and serial replays serve all requests, and generate what the trace asks for."""
    result = run_replay(replace(options, mode=mode))
    figures = result.figures
    assert figures.requests.finished == figures.requests.total == len(result.trace)
    assert figures.output_tokens == result.trace.output_lens.sum()
    assert sum(figures.memory.by_state.values()) == figures.memory.total_bytes


def test_a_replay_is_deterministic(options):
    """The same options give the same figures, wall times aside."""
    first, second = (run_replay(options) for _ in range(2))
    assert first.timeline == second.timeline
    for name in ("prefix", "clock_s", "latency_s"):
        assert getattr(first.figures, name) == getattr(second.figures, name)


def test_rows_are_as_wide_as_the_longest_request(options):
    """A pool that can hold the longest request rejects none, whatever its length."""
    result = run_replay(options)
    needed = int((result.trace.prompt_lens + result.trace.output_lens).max())
    smallest = replace(options, num_slots=-(-needed // 16) * 16)
    assert run_replay(smallest).figures.requests.rejected == 0


def test_progress_is_reported(options):
    """The last report says that all is done."""
    seen = []
    result = run_replay(options, seen.append).figures
    assert (seen[-1].done, seen[-1].total) == (result.requests.total, result.requests.total)
    assert seen[-1].total_bytes == result.memory.total_bytes


def test_ranks_share_weights_and_split_heads(options):
    """With the cache split over two ranks and both reading at once, a step without overhead takes half as long."""
    overhead = step_cost(options, load_layout(MODEL)).seconds(0, 0, 0)
    seconds = []
    for ranks in (1, 2):
        cost = step_cost(replace(options, tensor_parallel=ranks), load_layout(MODEL, tensor_parallel=ranks))
        seconds.append(cost.seconds(8, 50_000, 50_000) - overhead)
        weights = cost.seconds(8, 0, 0) - overhead
        assert weights < seconds[-1]
    assert seconds[0] > seconds[1]


def test_ranks_that_hold_copies_read_them_too(options):
    """Latent attention keeps a copy on every rank, so two ranks read the cache of a request no faster than one."""
    model = "deepseek-v2-lite"
    reading = []
    for ranks in (1, 2):
        chosen = replace(options, model=model, tensor_parallel=ranks)
        cost = step_cost(chosen, load_layout(model, tensor_parallel=ranks))
        reading.append(cost.seconds(1, 10**6, 1) - cost.seconds(1, 0, 1))
    assert reading[1] == pytest.approx(reading[0])


def test_ranks_read_their_shares_of_states_at_once(options):
    """Every rank reads and writes its heads' part of a state, so two ranks take half as long for a step's states."""
    model, reading = "qwen3-next-80b-a3b", []
    for ranks in (1, 2):
        chosen = replace(options, model=model, tensor_parallel=ranks)
        cost = step_cost(chosen, load_layout(model, tensor_parallel=ranks))
        reading.append(cost.seconds(1, 1, 1, 0, 0, 1000) - cost.seconds(1, 1, 1, 0, 0, 0))
    num_bytes = 2 * 1000 * load_layout(model).state_bytes
    assert reading == pytest.approx([num_bytes / (gpu("h100-sxm").bandwidth * 0.8 * ranks) for ranks in (1, 2)])


def test_the_dtype_of_states_sets_their_bytes_and_time(options):
    """The dtype of states reaches the memory and the time of its steps."""
    options = replace(options, model="qwen3-next-80b-a3b", num_slots=None, num_bytes=2**31)
    wide, narrow = (run_replay(replace(options, state_dtype=dtype)).figures for dtype in ("float32", "bfloat16"))
    assert narrow.clock_s < wide.clock_s
    assert narrow.memory.split.num_slots > wide.memory.split.num_slots


def test_a_given_step_time_needs_no_gpu(options):
    """The constant replaces the roofline, and an unknown GPU is not looked up then."""
    cost = step_cost(replace(options, step_seconds=0.01, gpu="none"), load_layout(MODEL))
    assert isinstance(cost, FixedCost)
    assert cost.seconds(1, 1, 1) == 0.01


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"num_bytes": 2**32}, InvalidSize),
        ({"num_slots": None}, InvalidSize),
        ({"num_slots": 3}, LayoutError),
        ({"gpu": "abacus"}, LayoutError),
        ({"model": "nothing"}, LayoutError),
        ({"policy": "best"}, InvalidSize),
        ({"traces": ()}, TraceError),
        ({"traces": ("nowhere.jsonl",)}, TraceError),
        ({"chunk_tokens": 0}, InvalidSize),
        ({"max_running": 0}, InvalidSize),
    ],
)
def test_options_that_cannot_be_replayed_are_refused(options, changes, error):
    """Each wrong option raises its own fault."""
    with pytest.raises(error):
        run_replay(replace(options, **changes))
