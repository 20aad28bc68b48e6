"""Replays of models with windows: what their steps read, what they reuse, and what fits their window side."""

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_oracles import LinearCost, reused_tokens
from trace_strategies import make_trace_of, traces

from kvstead.engine import Request, Scheduler
from kvstead.engine.stats import STATES
from kvstead.replay.cost import FixedCost
from kvstead.replay.options import Mode, ReplayOptions
from kvstead.replay.recorder import TIMELINE_COLUMNS
from kvstead.replay.run import run_replay
from kvstead.replay.serial import SerialReplay
from kvstead.replay.simulate import CostRunner, Replay
from paths import SHARED, needs_shared
from tiny_model import LAYER_BYTES, tiny_manager, tiny_window_layout

PAGE_SIZES = st.sampled_from([1, 2, 3, 4, 8])
LAYOUTS = st.builds(tiny_window_layout, st.integers(1, 12), chunked=st.booleans(), pure=st.booleans())
LIMITS = st.fixed_dictionaries(
    {
        "chunk_tokens": st.integers(1, 20),
        "max_running": st.integers(1, 8),
        "decode_headroom": st.sampled_from([0, 4]),
        "overlap": st.booleans(),
    }
)


def sided_manager(num_slots, num_window_slots, page_size, layout, **options):
    """A manager with so many window slots, beside so many full ones where the layout has any."""
    if layout.full_bytes_per_token:
        return tiny_manager(num_slots, page_size, layout=layout, num_window_slots=num_window_slots, **options)
    return tiny_manager(num_window_slots, page_size, layout=layout, **options)


def big_manager(trace, page_size, layout):
    """More memory than the trace can fill, on either side."""
    lengths = trace.prompt_lens + trace.output_lens
    num_slots = int(lengths.sum()) + len(trace) * page_size
    return sided_manager(num_slots, num_slots, page_size, layout, max_length=int(lengths.max()), max_requests=1)


def reads(window, position):
    """The positions that the token at `position` attends to in a bounded layer, one by one."""
    first = position // window.span * window.span if window.is_chunked else max(0, position - window.span + 1)
    return set(range(first, position + 1))


@given(traces(), LAYOUTS, st.sampled_from([1, 2, 4]), st.integers(4, 30), LIMITS)
def test_every_step_costs_what_its_tokens_read(trace, layout, page_size, num_pages, limits):
    """The runner's time is a count over every computed token, and over every position that it reads in a window."""
    manager = tiny_manager(max(num_pages * page_size, 12), page_size, layout=layout)  # 12: the longest window
    scheduler = Scheduler(manager, **limits)
    cost, spent, expected = LinearCost(), [], []
    runner = CostRunner(trace, cost, manager.table.num_rows, spent.append, window=manager.window)
    for index in range(len(trace)):
        scheduler.add(Request(index, trace.prompt_tokens(index), int(trace.output_lens[index])))
    while (step := scheduler.schedule()) is not None:
        stretches = [(length - 1, length) for length in step.lengths.tolist()]
        stretches += [(chunk.start, chunk.end) for chunk in step.chunks]
        num_tokens = sum(end - start for start, end in stretches)
        pairs = sum(position + 1 for start, end in stretches for position in range(start, end))
        in_windows = [[reads(manager.window, position) for position in range(*stretch)] for stretch in stretches]
        window_read = sum(len(set.union(*sets)) for sets in in_windows)
        window_pairs = sum(len(positions) for sets in in_windows for positions in sets)
        read = sum(end for _, end in stretches)
        expected.append(cost.seconds(num_tokens, read, pairs, window_read, window_pairs))
        scheduler.process(step, runner.launch(step).tokens())
    assert spent == expected


@given(traces(), LAYOUTS, st.sampled_from([1, 2, 4]), st.integers(4, 30), LIMITS)
def test_counts_and_sides_add_up(trace, layout, page_size, num_pages, limits):
    """Each request ends; states sum to sides and sides to the memory, on average and at every sample."""
    manager = tiny_manager(max(num_pages * page_size, 12), page_size, layout=layout)  # 12: the longest window
    result = Replay(trace, Scheduler(manager, **limits), LinearCost()).run()
    figures = result.figures
    manager.audit()
    assert figures.requests.finished + figures.requests.rejected == figures.requests.total == len(trace)
    prefix = figures.prefix
    assert 0 <= prefix.hit_tokens <= prefix.found_tokens <= prefix.prompt_tokens
    assert prefix.found_tokens == prefix.hit_tokens + prefix.lost_to_dead_windows
    for side in figures.memory.by_side.values():
        assert sum(side[state] for state in STATES) == side["total_bytes"]
        assert min(side.values()) >= 0
    sizes = [side["total_bytes"] for side in figures.memory.by_side.values()]
    assert sum(figures.memory.by_state.values()) == sum(sizes) == figures.memory.total_bytes == manager.total_bytes
    assert (
        sum(figures.memory.by_kind.values())
        == figures.memory.mean_bytes
        <= figures.memory.peak_bytes
        <= figures.memory.total_bytes
    )
    assert set(figures.memory.by_kind) == {str(kind) for kind in layout.kinds}
    usable = figures.memory.total_bytes - figures.memory.by_state["padding"]
    in_windows = figures.memory.by_side["window"]["total_bytes"] - figures.memory.by_side["window"]["padding"]
    for row in result.timeline:
        point = dict(zip(TIMELINE_COLUMNS, row, strict=True))
        assert sum(point[f"{state}_bytes"] for state in ("live", "cached", "free")) == usable
        assert sum(point[f"window_{state}_bytes"] for state in ("live", "cached", "free")) == in_windows


@given(traces(), LAYOUTS, PAGE_SIZES, st.integers(1, 20))
def test_no_hit_is_lost_while_windows_fit(trace, layout, page_size, chunk_tokens):
    """One request at a time in a memory that is never full finds what a model without windows would."""
    manager = big_manager(trace, page_size, layout)
    result = SerialReplay(trace, manager, FixedCost(1.0), chunk_tokens=chunk_tokens).run().figures
    assert (result.requests.finished, result.requests.rejected) == (len(trace), 0)
    assert result.prefix.hit_tokens == reused_tokens(trace, page_size)
    assert result.prefix.lost_to_dead_windows == 0
    assert result.prefix.evicted_tokens == {"full": 0, "window": 0}
    assert result.output_tokens == trace.output_lens.sum()
    manager.audit()
    assert manager.table.live_rows().size == 0


@given(LAYOUTS, st.sampled_from([1, 2, 4]), st.integers(1, 7), st.integers(1, 30))
def test_the_clock_is_the_sum_over_computed_tokens(layout, page_size, chunk_tokens, output):
    """Chunks of the prompt that was not found, then a step for each further token, at its context and its window."""
    trace = make_trace_of([(0.0, 10, output, [0, 1, 2]), (0.0, 10, 1, [0, 1, 3]), (9.0, 3, 6, None)], 4)
    manager, cost = big_manager(trace, page_size, layout), LinearCost()
    window = manager.window
    result = SerialReplay(trace, manager, cost, chunk_tokens=chunk_tokens).run().figures
    clock = 0.0
    for start, prompt, length in ((0, 10, output), (8, 10, 1), (0, 3, 6)):
        for begin in range(start, prompt, chunk_tokens):
            end = min(begin + chunk_tokens, prompt)
            seen = [reads(window, position) for position in range(begin, end)]
            pairs, in_windows = sum(range(begin + 1, end + 1)), sum(map(len, seen))
            clock += cost.seconds(end - begin, end, pairs, len(set.union(*seen)), in_windows)
        for context in range(prompt + 1, prompt + length):
            in_window = len(reads(window, context - 1))
            clock += cost.seconds(1, context, context, in_window, in_window)
    assert result.clock_s == clock


@given(traces(), LAYOUTS, st.sampled_from([1, 2, 4]), st.integers(1, 20), st.integers(0, 3))
def test_one_window_is_capacity_enough(trace, layout, page_size, chunk_tokens, spare):
    """With a window side for little more than one request long prompts and outputs are served all the same."""
    pages = layout.window_rule.pages(page_size) + spare
    lengths = trace.prompt_lens + trace.output_lens
    num_slots = int(lengths.max()) + 2 * page_size
    manager = sided_manager(num_slots, pages * page_size, page_size, layout, max_length=num_slots, max_requests=1)
    result = SerialReplay(trace, manager, FixedCost(1.0), chunk_tokens=chunk_tokens).run().figures
    assert (result.requests.finished, result.requests.rejected) == (len(trace), 0)
    assert result.output_tokens == trace.output_lens.sum()
    assert manager.num_window_slots == pages * page_size
    assert result.memory.by_side["window"]["live"] <= pages * page_size * manager.window_token_bytes
    manager.audit()


def test_a_hit_with_a_dead_window_counts_as_lost():
    """A long request evicts windows inside the first prompt from a small window side: tokens are found but lost."""
    layout = tiny_window_layout(4)
    trace = make_trace_of([(0.0, 12, 1, [0, 1, 2]), (0.0, 40, 1, list(range(10, 20))), (0.0, 12, 1, [0, 2, 3])], 4)
    manager = tiny_manager(200, 4, layout=layout, num_window_slots=16, max_requests=1)
    result = SerialReplay(trace, manager, FixedCost(1.0), chunk_tokens=4).run().figures
    assert (result.prefix.hit_tokens, result.prefix.lost_to_dead_windows) == (0, 4)
    assert result.prefix.evicted_tokens["full"] == 0
    assert result.prefix.evicted_tokens["window"] == result.prefix.tombstoned_tokens > 0
    assert result.prefix.tombstone_tokens > 0
    roomy = tiny_manager(200, 4, layout=layout, num_window_slots=200, max_requests=1)
    result = SerialReplay(trace, roomy, FixedCost(1.0), chunk_tokens=4).run().figures
    assert (result.prefix.hit_tokens, result.prefix.lost_to_dead_windows, result.prefix.tombstoned_tokens) == (4, 0, 0)


@pytest.mark.parametrize("pure", [False, True])
def test_memory_by_hand(pure):
    """A prompt of 8 tokens and 4 further ones, pages of 2, windows of 4: what each side holds, second by second."""
    trace = make_trace_of([(0.0, 8, 5, None)], 4)
    manager = sided_manager(40, 40, 2, tiny_window_layout(4, pure=pure), max_requests=1)
    cost = LinearCost(1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    result = Replay(trace, Scheduler(manager), cost).run().figures
    assert (result.steps, result.clock_s) == (5, 5.0)
    sides = result.memory.by_side
    assert ("full" in sides) != pure
    if not pure:
        assert sides["full"]["live"] == LAYER_BYTES * (8 + 10 + 10 + 12 + 12) // 5
    # All of the prompt at once; then its last 4 tokens, locked until none of them is in the window, and own pages.
    token_bytes = 2 * LAYER_BYTES if pure else LAYER_BYTES
    assert sides["window"]["live"] == token_bytes * (8 + 6 + 6 + 8 + 8) // 5
    assert sides["window"]["cached"] == token_bytes * (0 + 4 + 4 + 4 + 4) // 5


@pytest.fixture
def recorded(tmp_path):
    """The first minutes of a recorded trace: 250 requests, many of which go on with what came before."""
    path = tmp_path / "conversation.jsonl"
    with (SHARED / "traces" / "mooncake_conversation.jsonl").open() as lines:
        path.write_text("".join(islice(lines, 250)))
    return str(path)


@needs_shared
@pytest.mark.parametrize("model", ["gemma-3-1b", "gpt-oss-20b", "llama-4-scout", "mistral-7b-v0.1"])
def test_recorded_reuse_is_the_same_with_windows(recorded, model):
    """One by one in a memory that they cannot fill, recorded requests find as much as in a model without windows."""
    options = ReplayOptions((recorded,), "llama-3.1-8b", num_slots=8_000_000, mode=Mode.SERIAL)
    plain = run_replay(options).figures
    ratio = None if model == "mistral-7b-v0.1" else 1.0
    result = run_replay(replace(options, model=model, window_ratio=ratio)).figures
    assert result.requests.finished == plain.requests.finished == 250
    assert result.prefix.hit_tokens == plain.prefix.hit_tokens > 50_000
    assert (result.prefix.lost_to_dead_windows, result.prefix.evicted_tokens) == (0, {"full": 0, "window": 0})


@needs_shared
@pytest.mark.parametrize("model", ["gemma-3-1b", "llama-4-scout", "mistral-7b-v0.1"])
def test_recorded_requests_are_served_in_a_tight_memory(recorded, model):
    """Where both sides are short all requests are served, some hits are lost, and every byte has its state."""
    sizes = {"num_slots": 30_000} if model == "mistral-7b-v0.1" else {"num_slots": 150_000, "window_ratio": 0.08}
    result = run_replay(ReplayOptions((recorded,), model, **sizes))
    figures = result.figures
    assert (figures.requests.finished, figures.requests.rejected) == (250, 0)
    assert figures.output_tokens == result.trace.output_lens.sum()
    assert min(min(side.values()) for side in figures.memory.by_side.values()) >= 0
    assert figures.memory.by_side["window"]["cached"] > 0
    assert 0 < figures.prefix.tombstoned_tokens <= figures.prefix.evicted_tokens["window"]
    assert figures.prefix.lost_to_dead_windows > 0
    assert sum(figures.memory.by_state.values()) == figures.memory.total_bytes
