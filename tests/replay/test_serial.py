"""The replay without a queue: its reuse is that of the trace, counted independently."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_oracles import LinearCost, reused_tokens
from trace_strategies import make_trace_of, traces

from kvstead.replay.cost import FixedCost
from kvstead.replay.readers import read_trace
from kvstead.replay.serial import SerialReplay
from paths import SHARED, needs_shared
from tiny_model import TOKEN_BYTES, tiny_manager

PAGE_SIZES = st.sampled_from([1, 2, 3, 4, 8])


def big_manager(trace, page_size):
    """More memory than the trace can fill."""
    lengths = trace.prompt_lens + trace.output_lens
    return tiny_manager(
        int(lengths.sum()) + len(trace) * page_size, page_size, max_length=int(lengths.max()), max_requests=1
    )


@given(traces(), PAGE_SIZES, st.integers(1, 20))
def test_reuse_equals_a_count_over_a_set_of_prefixes(trace, page_size, chunk_tokens):
    """Whatever the pages and chunks, whole pages of earlier prompts are found, all but the last token of the own."""
    replay = SerialReplay(trace, big_manager(trace, page_size), FixedCost(1.0), chunk_tokens=chunk_tokens)
    result = replay.run().figures
    assert result.prefix.hit_tokens == reused_tokens(trace, page_size)
    assert result.prefix.prompt_tokens == trace.prompt_lens.sum()
    assert (result.requests.finished, result.requests.rejected, result.requests.aborted) == (len(trace), 0, 0)
    assert result.output_tokens == trace.output_lens.sum()
    replay.manager.audit()
    assert replay.manager.table.live_rows().size == 0


@given(traces(), PAGE_SIZES, st.integers(1, 12), st.sampled_from(["lru", "mru", "lfu"]))
def test_small_memories_find_less_and_reject_what_cannot_fit(trace, page_size, num_pages, policy):
    """Each request is served or refused with a reason, and no cache finds more than an endless one."""
    manager = tiny_manager(num_pages * page_size, page_size, max_requests=1, policy=policy)
    result = SerialReplay(trace, manager, FixedCost(1.0), chunk_tokens=5).run()
    figures = result.figures
    needed = -(-(trace.prompt_lens + trace.output_lens - 1) // page_size)
    assert figures.requests.rejected == len(result.rejections) == (needed > num_pages).sum()
    assert figures.requests.finished + figures.requests.rejected == figures.requests.total == len(trace)
    assert figures.prefix.hit_tokens <= reused_tokens(trace, page_size)
    assert figures.memory.peak_bytes <= num_pages * page_size * TOKEN_BYTES
    assert sum(figures.memory.by_state.values()) == figures.memory.total_bytes
    manager.audit()


@pytest.mark.parametrize(("page_size", "found"), [(1, 6754), (512, 6656), (16, 6752)])
def test_trailing_partial_block_is_reused_up_to_the_last_token(page_size, found):
    """A prompt of 6,755 tokens in 14 blocks of 512 that comes twice: all but one token, in whole pages."""
    trace = make_trace_of([(0.0, 6755, 3, list(range(14)))] * 2, 512)
    result = SerialReplay(trace, big_manager(trace, page_size), FixedCost(1.0)).run().figures
    assert (result.prefix.hit_tokens, result.prefix.prompt_tokens) == (found, 2 * 6755)
    assert result.prefix.hit_rate == found / 13510


@needs_shared
@pytest.mark.parametrize(
    ("name", "share", "share_of_pages"),
    [("mooncake_conversation", 37.36, 37.34), ("mooncake_synthetic", 65.12, 65.04)],
)
def test_reuse_of_recorded_traces(name, share, share_of_pages):
    """In a memory that they cannot fill the recorded traces reuse what their block ids say, to the token.

    Of all prompt tokens `share` percent lie in leading blocks that came before, a partial last block included. Pages
    of a block's size leave that partial block out, and where a prompt was seen whole, its last page: a token is left to
    compute. What remains is `share_of_pages`. Generated tokens are never matched, so one a request is enough.
    """
    trace = read_trace(str(SHARED / "traces" / f"{name}.jsonl"))
    trace = replace(trace, output_lens=np.ones_like(trace.output_lens))
    seen, in_blocks, in_pages = set(), 0, 0
    for request, length in enumerate(trace.prompt_lens.tolist()):
        blocks = trace.blocks(request).tolist()
        num_seen = next((i for i, block in enumerate(blocks) if block not in seen), len(blocks))
        in_blocks += min(num_seen * 512, length)
        in_pages += min(num_seen, (length - 1) // 512) * 512
        seen.update(blocks)
    manager = tiny_manager(
        (trace.num_blocks + len(trace)) * 512, 512, max_length=int(trace.prompt_lens.max()) + 1, max_requests=1
    )
    result = SerialReplay(trace, manager, FixedCost(1.0), chunk_tokens=1 << 20).run().figures
    assert result.prefix.prompt_tokens == trace.prompt_lens.sum()
    assert result.prefix.hit_tokens == in_pages
    assert round(100 * in_blocks / result.prefix.prompt_tokens, 2) == share
    assert round(100 * result.prefix.hit_rate, 2) == share_of_pages


@pytest.mark.parametrize("chunk_tokens", [1, 3, 64])
def test_the_clock_is_the_sum_over_computed_tokens(chunk_tokens):
    """Chunks of the prompt that was not found, then a step for each further token, at its context."""
    trace = make_trace_of([(0.0, 10, 4, [0, 1, 2]), (0.0, 10, 1, [0, 1, 3]), (9.0, 3, 6, None)], 4)
    cost = LinearCost()
    result = SerialReplay(trace, big_manager(trace, 4), cost, chunk_tokens=chunk_tokens).run().figures
    clock, first = 0.0, []
    for start, prompt, output in ((0, 10, 4), (8, 10, 1), (0, 3, 6)):
        began = clock
        for begin in range(start, prompt, chunk_tokens):
            end = min(begin + chunk_tokens, prompt)
            clock += cost.seconds(end - begin, end, sum(range(begin + 1, end + 1)))
        first.append(clock - began)
        clock += sum(cost.seconds(1, context, context) for context in range(prompt + 1, prompt + output))
    assert result.clock_s == clock
    assert result.latency_s.ttft.p50 == sorted(first)[1]


def test_memory_is_averaged_over_the_time_of_the_steps():
    """Two requests that share nothing: the second's time counts what the first left, too."""
    trace = make_trace_of([(0.0, 4, 1, [0]), (0.0, 3, 1, [1])], 4)
    manager = tiny_manager(12, 2, max_requests=1)
    result = SerialReplay(trace, manager, LinearCost(0.0, 1.0, 0.0, 0.0)).run().figures
    # Four seconds with 4 slots live; then three with 4 cached and 4 live (3 tokens in two pages).
    assert result.clock_s == 7
    assert result.memory.by_state["live"] == 4 * TOKEN_BYTES
    assert result.memory.by_state["cached"] == 4 * 3 * TOKEN_BYTES // 7
    assert result.memory.peak_bytes == 8 * TOKEN_BYTES


def test_an_interrupt_returns_the_figures_so_far():
    """Ctrl-C in the middle ends the replay with the requests that were served."""
    trace = make_trace_of([(0.0, 3, 2, None)] * 100, 4)
    reports = []

    def interrupt(progress):
        reports.append(progress)
        if len(reports) == 2:
            raise KeyboardInterrupt

    result = SerialReplay(trace, big_manager(trace, 4), FixedCost(1.0), report=interrupt).run().figures
    assert result.interrupted
    assert (result.requests.total, result.requests.finished, result.requests.rejected) == (100, 33, 0)
    assert (result.steps, result.clock_s) == (66, 66.0)
    assert [report.done for report in reports] == [1, 33, 33]
    assert reports[-1].total == 100
