import io
import re

import pytest
from rich.console import Console

from kvstead.report.table import print_summary


@pytest.fixture
def printed(summary):
    """The text of the summary with some keys changed, on a wide page."""

    def text(**changes: object) -> str:
        stream = io.StringIO()
        print_summary(summary | changes, Console(file=stream, width=160))
        return stream.getvalue()

    return text


def _line(text: str, name: str) -> str:
    return next(line.strip() for line in text.splitlines() if line.strip().startswith(name))


def test_the_table_shows_options_and_figures(printed):
    """Trace, model, pool, counts, latencies, throughput, reuse, memory, costs: one line each, with units."""
    text = printed()
    assert "chat [1].jsonl on tiny: 976.6 KiB of bfloat16, static layout, page size 16, lru, h100-sxm, batched" in text
    assert _line(text, "requests") == "requests                 98 of 100 finished, 2 rejected, 0 aborted"
    assert _line(text, "retractions").endswith(" 5")
    assert "p50 12.5 ms   p90 1.5 s   p99 250 s" in _line(text, "time to first token")
    assert "p50 200 us   p90 -   p99 -" in _line(text, "time per output token")
    assert "1,234.6 tokens/s: 4,900 generated in 1:02:03 of the trace's clock" in _line(text, "throughput")
    assert "25.00 % of prompt tokens (250 of 1,000)" in _line(text, "prefix hit rate")
    assert "peak 781.2 KiB (80.00 %), mean 293 KiB (30.00 %), held by requests" in _line(text, "memory in use")
    assert "peak 878.9 KiB (90.00 %), mean 488.3 KiB (50.00 %)" in _line(text, "with cached prefixes")
    assert "35.2 us a step, 4,321 steps" in _line(text, "memory management")
    assert "2 s, 49 requests/s" in _line(text, "wall time")


def test_the_states_add_up_to_the_pool_exactly(printed):
    """The bytes printed for the states sum to the bytes printed for the pool."""
    text = printed()
    states = [
        int(_line(text, name).split()[1].replace(",", "")) for name in ("live", "cached", "parked", "free", "padding")
    ]
    total = int(re.search(r"the whole pool\s+([\d,]+)", text)[1].replace(",", ""))
    assert sum(states) == total == 1_000_000


def test_a_trace_without_reuse_is_reported_as_such(printed):
    """No percentage where the trace carries no reuse, and other words where no prompt was computed at all."""
    text = printed(prefix={"hit_tokens": 0, "prompt_tokens": 1000, "hit_rate": None})
    assert "no reuse information in this trace" in _line(text, "prefix hit rate")
    text = printed(prefix={"hit_tokens": 0, "prompt_tokens": 0, "hit_rate": None})
    assert "no prompt was computed" in _line(text, "prefix hit rate")


def test_rejections_come_with_reasons(printed):
    """Two are listed; of many the first three, and how many more there are."""
    assert "requests rejected: 2\n  request 3: too long\n  request 4: too long\n" in printed()
    counts = {"total": 100, "finished": 50, "rejected": 50, "retracted": 0, "aborted": 0}
    text = printed(requests=counts, rejections=[f"request {index}: too long" for index in range(20)])
    assert "requests rejected: 50\n  request 0: too long\n" in text
    assert "  request 2: too long\n  and 47 more\n" in text


def test_rows_left_out_are_listed(printed):
    """How many rows of the trace were left out, and why."""
    assert "rows of the trace left out: 1\n  a.csv, line 3: no token" in printed(
        excluded_rows=1, excluded=["a.csv, line 3: no token"]
    )
    assert "left out" not in printed()


def test_an_interrupt_is_reported(printed):
    """The figures of an interrupted replay say what they cover, and count who was not served."""
    counts = {"total": 100, "finished": 40, "rejected": 2, "retracted": 0, "aborted": 1}
    text = printed(interrupted=True, requests=counts)
    assert "Interrupted: the figures cover 42 of 100 requests." in text
    assert "40 of 100 finished, 2 rejected, 1 aborted, 57 not served" in text
    assert "Interrupted" not in printed()


def test_constant_steps_ranks_and_kinds_are_named(printed, summary):
    """Without a GPU the step time is called constant; ranks are named above one; kinds above one have a line."""
    memory = summary["memory"] | {"by_kind": {"full": 300_000, "window": 200_000}}
    text = printed(gpu=None, tensor_parallel=4, memory=memory)
    assert "constant step time x4" in text
    assert "full 293 KiB, window 195.3 KiB" in _line(text, "memory by kind")
    assert "memory by kind" not in printed()


def test_two_sides_are_shown_beside_each_other(printed, windowed):
    """Each side's bytes are shares of the side, and the split, its ratio and its source have a line."""
    text = printed(**windowed)
    table = text.partition("each side, mean over the clock")[2]
    assert text.index("the whole pool") < text.index("each side, mean over the clock")
    assert _line(table, "live").split() == ["live", "195.3", "KiB", "33.33", "%", "97.66", "KiB", "25.00", "%"]
    assert _line(table, "cached").split() == ["cached", "97.66", "KiB", "16.67", "%", "97.66", "KiB", "25.00", "%"]
    footer = _line(table, "the whole side").split()[3:]
    assert footer == ["585.9", "KiB", "100.00", "%", "390.6", "KiB", "100.00", "%"]
    assert _line(text, "memory split").endswith("6,000 full and 1,500 window slots, ratio 0.25: so it was said")
    assert "full 293 KiB, window 195.3 KiB" in _line(text, "memory by kind")


def test_losses_to_windows_are_shown_only_with_windows(printed, windowed):
    """Hits lost, evictions by side and tombstones have lines; without a window side there is none of them."""
    text = printed(**windowed)
    assert _line(text, "lost to dead windows").endswith("75.00 % of the tokens found (750 of 1,000)")
    assert _line(text, "evicted tokens").endswith("640 full, 1,280 window, 960 of these alone")
    assert _line(text, "tombstones").endswith("320 cached tokens without a window at the end")
    plain = printed()
    for name in ("dead windows", "evicted", "tombstones", "each side", "memory split", "state", "moved", "refusal"):
        assert name not in plain


def test_windows_alone_are_one_side(printed, windowed):
    """A memory that keeps windows only has no second table, no evictions of what has no bytes, no loss of nothing."""
    memory = windowed["memory"] | {"by_side": {"window": windowed["memory"]["by_side"]["window"]}, "split": None}
    prefix = windowed["prefix"] | {"found_tokens": 0, "lost_to_dead_windows": 0}
    text = printed(**windowed | {"memory": memory, "prefix": prefix})
    assert "each side" not in text
    assert "memory split" not in text
    assert "dead windows" not in text
    assert _line(text, "evicted tokens").split("tokens")[1].strip() == "1,280 window, 960 of these alone"


def test_free_bytes_of_an_arena_are_shown_above_the_sum(printed, in_arena):
    """The seven states sum to the pool; what is free in holes and gaps stands below them, and is not in the sum."""
    text = printed(**in_arena)
    assert "976.6 KiB of bfloat16, unified layout, page size 16" in text
    states = ("live", "cached", "parked", "hole", "gap", "sink", "padding")
    sizes = [int(_line(text, name).split()[1].replace(",", "")) for name in states]
    total = int(re.search(r"the whole pool\s+([\d,]+)", text)[1].replace(",", ""))
    assert sum(sizes) == total == 1_000_000
    assert _line(text, "free: holes and gap").split()[4:] == ["499,990", "488.3", "KiB", "50.00", "%"]
    assert text.index("padding") < text.index("free: holes and gap") < text.index("the whole pool")


def test_pools_of_an_arena_are_shown_beside_each_other(printed, in_arena):
    """Three sides, each as shares of what its pages take; gaps, sink and padding are no side's."""
    table = printed(**in_arena).partition("each side, mean over the clock")[2]
    assert [line.split()[0] for line in table.splitlines() if " B" in line or "KiB" in line] == [
        "live",
        "cached",
        "parked",
        "hole",
        "the",
    ]
    assert _line(table, "hole").split()[1:4] == ["0", "B", "0.00"]
    assert _line(table, "hole").split()[5:] == ["58.59", "KiB", "37.50", "%", "29.3", "KiB", "13.04", "%"]


def test_losses_to_states_are_shown_only_with_states(printed, in_arena):
    """Lost hits with their reason, evicted states, copies, moves and the first refusal have lines."""
    text = printed(**in_arena)
    assert _line(text, "lost to missing states").endswith("75.00 % of the tokens found (750 of 1,000)")
    assert _line(text, "evicted tokens").endswith("640 full, 1,280 window, 960 of these alone")
    assert _line(text, "evicted states").endswith("50, 40 of these alone")
    assert _line(text, "state copies").endswith(" 1,234")
    assert _line(text, "bytes moved").endswith("3 MiB, 0.125 pages a step")
    assert "87.50 % was live or cached" in _line(text, "usable at first refusal")
    assert "dead windows" not in text


def test_states_without_windows_have_no_tombstones(printed, in_arena):
    """A static memory of whole sequences and states says how many states the split gave, and moves nothing."""
    sides = {name: in_arena["memory"]["by_side"][name] for name in ("full", "state")}
    states = {"live": 300_001, "cached": 199_999, "parked": 0, "free": 499_990, "padding": 10}
    split = {"num_slots": 640, "num_window_slots": 0, "ratio": 0.0, "source": "so it was said", "num_states": 10}
    text = printed(**in_arena | {"memory": in_arena["memory"] | {"by_side": sides, "split": split, "by_state": states}})
    assert _line(text, "memory split").endswith("640 full and 10 states: so it was said")
    assert _line(text, "evicted tokens").split("tokens")[1].strip() == "640 full"
    for name in ("tombstones", "bytes moved", "holes and gap"):
        assert name not in text
