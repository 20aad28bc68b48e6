"""Prints the summary of a generation, the JSON object of `LLM.summary`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from kvstead.report.table import figures, hit_rate, kind_lines, memory_in_use, print_text, request_lines
from kvstead.report.units import format_bytes, format_count, format_seconds, format_share


def print_generation(summary: Mapping[str, Any], console: Console) -> None:
    """Print the figures of a summary, and below them whether it was interrupted."""
    print_text(_headline(summary), console, style="bold")
    console.print(figures(_lines(summary)))
    if summary["interrupted"]:
        print_text("Interrupted: texts and figures end there.", console)


def _headline(summary: Mapping[str, Any]) -> str:
    """Which model ran on what, in one line."""
    memory = format_bytes(summary["memory"]["total_bytes"])
    return (
        f"{summary['model']}: {memory} of {summary['cache_dtype']}, {summary['layout']} layout, "
        f"page size {summary['page_size']}"
    )


def _lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from request_lines(summary["requests"])
    generated = f"{format_count(summary['output_tokens'])} generated in {format_seconds(summary['wall_s'])}"
    yield "throughput", f"{summary['throughput_tok_s']:,.1f} tokens/s: {generated}"
    yield "prefix hit rate", hit_rate(summary["prefix"])
    yield "memory in use", memory_in_use(summary["memory"])
    yield from kind_lines(summary["memory"])
    outside = format_share(summary["outside_model_share"], 1)
    yield "outside the model", f"{outside} of the time, {format_count(summary['steps'])} steps"
