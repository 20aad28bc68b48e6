"""Statistics of traces, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from kvstead.replay.stats import LengthStats, TraceStats
from kvstead.report.units import format_clock, format_count, format_share


def traces_table(traces: Sequence[TraceStats]) -> Table:
    """One column per trace, one line per figure, in the order given."""
    table = Table(Column(no_wrap=True, style="bold"), *(escape(stats.name) for stats in traces), box=box.SIMPLE_HEAD)
    columns = [dict(_lines(stats)) for stats in traces]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def print_notes(traces: Sequence[TraceStats], console: Console) -> None:
    """Say what was assumed of the traces, and which rows were left out, a line each."""
    for stats in traces:
        for note in stats.guesses:
            console.print(f"{stats.name}: {note}.", markup=False, highlight=False, soft_wrap=True)
        for problem in stats.problems:
            console.print(f"left out: {problem}", markup=False, highlight=False, soft_wrap=True)
        if stats.rows_left_out > len(stats.problems):
            more = format_count(stats.rows_left_out - len(stats.problems))
            console.print(f"left out: {more} more rows of {stats.name}", markup=False, highlight=False)


def _lines(stats: TraceStats) -> Iterator[tuple[str, str]]:
    yield "format", stats.format
    yield "requests", format_count(stats.requests)
    yield "rows left out", format_count(stats.rows_left_out)
    yield "sessions", format_count(stats.sessions)
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
    hits, prompts = format_count(reuse.hit_tokens), format_count(reuse.prompt_tokens)
    yield "reusable", f"{tokens} of prompt tokens ({hits} of {prompts})"
    yield "", f"{blocks} of blocks ({format_count(reuse.hit_blocks)} of {format_count(reuse.blocks)})"


def _lengths(lengths: LengthStats) -> str:
    return "  ".join(f"{name} {format_count(value)}" for name, value in asdict(lengths).items())
