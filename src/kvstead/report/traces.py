"""Statistics of traces, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from kvstead.replay.stats import LengthStats, TraceStats
from kvstead.report.units import format_clock, format_count, format_share


def traces_table(traces: Sequence[TraceStats]) -> Table:
    """One column per trace, one line per figure, in the order given."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(no_wrap=True, style="bold")
    for stats in traces:
        table.add_column(escape(stats.name))
    columns = [dict(_lines(stats)) for stats in traces]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _lines(stats: TraceStats) -> Iterator[tuple[str, str]]:
    yield "format", stats.format
    yield "requests", format_count(stats.requests)
    yield "rows left out", format_count(stats.rows_left_out)
    rate = "" if stats.requests_per_s is None else f", {stats.requests_per_s:.3g} requests/s"
    yield "duration", format_clock(stats.duration_s) + rate
    yield "prompt tokens", format_count(stats.prompt_tokens)
    yield "of a request", _lengths(stats.prompt_lens)
    yield "output tokens", format_count(stats.output_tokens)
    yield "of a request ", _lengths(stats.output_lens)
    reuse = stats.reuse
    if reuse is None:
        yield "reusable", "no reuse information in this trace"
        yield "", ""
        return
    tokens = format_share(reuse.hit_tokens, reuse.prompt_tokens)
    blocks = format_share(reuse.hit_blocks, reuse.blocks)
    yield (
        "reusable",
        f"{tokens} of prompt tokens ({format_count(reuse.hit_tokens)} of {format_count(reuse.prompt_tokens)})",
    )
    yield "", f"{blocks} of blocks ({format_count(reuse.hit_blocks)} of {format_count(reuse.blocks)})"


def _lengths(lengths: LengthStats) -> str:
    parts = {"mean": lengths.mean, "p50": lengths.p50, "p90": lengths.p90, "p99": lengths.p99, "max": lengths.max}
    return "  ".join(f"{name} {format_count(value)}" for name, value in parts.items())
