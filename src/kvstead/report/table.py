"""The tables of a replay, of a generation and of an engine's coverage.

The summaries are the JSON objects of `kvstead.replay.summary` and of `LLM.summary`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from kvstead.report.units import format_bytes, format_clock, format_count, format_seconds, format_share

_MOST_MESSAGES = 3
_QUANTILES = ("p50", "p90", "p99")
_WINDOW, _STATE = "window", "state"  # sides whose figures are shown only if the memory has them


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Print a replay's summary as tables, and below them the notes that limit the figures."""
    print_text(_headline(summary), console, style="bold")
    console.print(figures(_lines(summary)))
    console.print(_bytes_by_state(summary))
    if len(summary["memory"]["by_side"]) > 1:
        console.print(_bytes_by_side(summary))
    for note in _notes(summary):
        print_text(note, console)


def print_text(text: str, console: Console, *, style: str | None = None) -> None:
    """Print a line as it is, however long."""
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True, style=style)


def _headline(summary: Mapping[str, Any]) -> str:
    timing = summary["gpu"] or "constant step time"
    ranks = f" x{summary['tensor_parallel']}" if summary["tensor_parallel"] > 1 else ""
    memory = format_bytes(summary["memory"]["total_bytes"])
    return (
        f"{' + '.join(summary['trace'])} on {summary['model']}: {memory} of {summary['cache_dtype']}, "
        f"{summary['layout']} layout, page size {summary['page_size']}, {summary['policy']}, {timing}{ranks}, "
        f"{summary['mode']}"
    )


def figures(lines: Iterable[tuple[str, str]], *, title: str | None = None) -> Table:
    """A table of names and texts, one pair per line."""
    columns = Column(style="bold", no_wrap=True), Column()
    table = Table(
        *columns, title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=False
    )
    for name, text in lines:
        table.add_row(name, text)
    return table


def _lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    memory, latency = summary["memory"], summary["latency_s"]
    yield from _request_lines(summary["requests"])
    yield "time to first token", _quantiles(latency["ttft"])
    yield "of it in the queue", _quantiles(latency["queue"])
    yield "time per output token", _quantiles(latency["tpot"])
    yield "time to the last token", _quantiles(latency["e2e"])
    if summary["goodput"] is not None:
        yield "goodput", _goodput(summary["goodput"])
    if summary["overload"] is not None:
        yield "overload", _overload(summary["overload"])
    generated = f"{format_count(summary['output_tokens'])} generated in {format_clock(summary['clock_s'])}"
    yield "throughput", f"{summary['throughput_tok_s']:,.1f} tokens/s: {generated} of the trace's clock"
    yield "prefix hit rate", _hit_rate(summary["prefix"])
    yield from _prefix_lines(summary["prefix"], memory["by_side"])
    yield from _memory_lines(memory)
    if summary["card"] is not None:
        yield "one GPU holds", _card(summary["card"])
    if memory["usable_at_first_refusal"] is not None:
        full = format_share(memory["usable_at_first_refusal"], 1)
        yield "usable at first refusal", f"{full} was live or cached when memory was short for the first time"
    if memory["split"] is not None:
        yield "memory split", _split(memory["split"])
    yield from _kind_lines(memory)
    if _STATE in memory["by_side"]:
        yield "state copies", format_count(memory["state_copies"])
    if "gap" in memory["by_state"]:
        yield "bytes moved", f"{format_bytes(memory['bytes_moved'])}, {memory['moves_per_step']:.4g} pages a step"
    yield "memory management", f"{summary['memory_us_per_step']:.1f} us a step, {format_count(summary['steps'])} steps"
    finished, wall = summary["requests"]["finished"], summary["wall_s"]
    pace = f", {format_count(finished / wall)} requests/s" if wall else ""
    yield "wall time", f"{format_seconds(wall)}{pace}"


def _request_lines(requests: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    unfinished = requests["total"] - requests["finished"] - requests["rejected"] - requests["aborted"]
    counts = [f"{format_count(requests['finished'])} of {format_count(requests['total'])} finished"]
    counts += [f"{format_count(requests[name])} {name}" for name in ("rejected", "aborted")]
    counts += [f"{format_count(unfinished)} not served"] if unfinished else []
    yield "requests", ", ".join(counts)
    yield "retractions", format_count(requests["retracted"])


_WANTS = {
    "memory": "memory was full: more memory, or more GPUs, would carry more",
    "compute": "steps had no room for more tokens: more or faster GPUs would carry more",
    "max_running": "as many requests ran as may: a larger --max-running would carry more",
}


def _overload(overload: Mapping[str, Any]) -> str:
    """Since when, by how much and for want of what requests piled up."""
    wants, alone = overload["wants"], overload["arithmetic_factor"]
    since, factor = format_clock(overload["since_s"]), f"{overload['factor']:.3g}"
    what = f"since {since} requests have always waited: serving takes {factor} times as long as they come in"
    if wants == "compute" and alone >= 1:
        would = "more or faster GPUs would carry it, more memory alone would not"
        return f"{what}, its arithmetic alone {alone:.3g} times: {would}"
    bound = f" (steps are bound by {overload['bound']})" if overload["bound"] else ""
    return f"{what}. {format_share(overload['waited_for'].get(wants, 0), 1)} of that time {_WANTS[wants]}{bound}"


def _goodput(goodput: Mapping[str, Any]) -> str:
    seconds = {"first token": goodput["ttft_s"], "each further one": goodput["tpot_s"]}
    goal = ", ".join(f"{what} within {format_seconds(most)}" for what, most in seconds.items() if most is not None)
    kept = f"{format_share(goodput['share'], 1)} of requests ({format_count(goodput['requests'])})"
    return f"{goodput['requests_per_s']:.3g} requests/s, {kept}: {goal}"


def _card(card: Mapping[str, Any]) -> str:
    parts = {"weights": "weights_bytes", "cache": "cache_bytes", "for the engine": "overhead_bytes"}
    sizes = " + ".join(f"{format_bytes(card[size])} {what}" for what, size in parts.items())
    fits = "" if card["fits"] else ": they do not fit"
    return f"{sizes}, of {format_bytes(card['card_bytes'])} ({card['weight_dtype']} weights){fits}"


def _memory_lines(memory: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What requests held, which is what they need, and what was held with the cache that fills the rest."""
    total = memory["total_bytes"]

    def uses(*names: str) -> str:
        held = ((name.split("_")[0], memory[f"{name}_bytes"]) for name in names)
        return ", ".join(f"{name} {format_bytes(use)} ({format_share(use, total)})" for name, use in held)

    yield "memory in use", f"{uses('peak_live', 'mean_live')}, held by requests"
    yield "with cached prefixes", uses("peak", "mean")


def _kind_lines(memory: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if len(memory["by_kind"]) > 1:
        yield "memory by kind", ", ".join(f"{kind} {format_bytes(use)}" for kind, use in memory["by_kind"].items())


def _quantiles(latency: Mapping[str, float | None]) -> str:
    return "   ".join(f"{name} {format_seconds(latency[name])}" for name in _QUANTILES)


def _hit_rate(prefix: Mapping[str, Any]) -> str:
    """The share of prompt tokens found in the cache, with its denominator, or why there is none."""
    hits, prompts = prefix["hit_tokens"], prefix["prompt_tokens"]
    if prefix["hit_rate"] is not None:
        rate = format_share(prefix["hit_rate"], 1)
        return f"{rate} of prompt tokens ({format_count(hits)} of {format_count(prompts)})"
    return "no reuse information in this trace" if prompts else "no prompt was computed"


def _prefix_lines(prefix: Mapping[str, Any], sides_with_bytes: Container[str]) -> Iterator[tuple[str, str]]:
    """Hits lost and prefixes evicted, in a memory with windows or states."""
    has_windows, has_states = _WINDOW in sides_with_bytes, _STATE in sides_with_bytes
    if not has_windows and not has_states:
        return
    cause = "missing states" if has_states else "dead windows"
    lost, found = prefix[f"lost_to_{cause.replace(' ', '_')}"], prefix["found_tokens"]
    if found:
        share = format_share(lost, found)
        yield f"lost to {cause}", f"{share} of the tokens found ({format_count(lost)} of {format_count(found)})"
    evicted = {side: tokens for side, tokens in prefix["evicted_tokens"].items() if side in sides_with_bytes}
    sides = ", ".join(f"{format_count(tokens)} {side}" for side, tokens in evicted.items())
    if has_windows:
        yield "evicted tokens", f"{sides}, {format_count(prefix['tombstoned_tokens'])} of these alone"
        yield "tombstones", f"{format_count(prefix['tombstone_tokens'])} cached tokens without a window at the end"
    else:
        yield "evicted tokens", sides
    if has_states:
        alone = format_count(prefix["evicted_states_alone"])
        yield "evicted states", f"{format_count(prefix['evicted_states'])}, {alone} of these alone"


def _split(memory_split: Mapping[str, Any]) -> str:
    full, window = memory_split["num_slots"], memory_split["num_window_slots"]
    parts = [f"{format_count(full)} full"]
    parts += [f"{format_count(window)} window slots, ratio {memory_split['ratio']:.4g}"] if window else []
    parts += [f"{format_count(memory_split['num_states'])} states"] if memory_split["num_states"] else []
    return f"{' and '.join(parts)}: {memory_split['source']}"


def _bytes_by_state(summary: Mapping[str, Any]) -> Table:
    """The pool's bytes by state and their sum; where free bytes are of several states, a line has their total."""
    memory = summary["memory"]
    total = memory["total_bytes"]

    def cells(num_bytes: int) -> tuple[str, str, str]:
        return format_count(num_bytes), format_bytes(num_bytes), format_share(num_bytes, total)

    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    table.add_column("bytes, mean over the clock", footer="the whole pool", style="bold")
    whole = format_count(sum(memory["by_state"].values())), *cells(total)[1:]
    for footer in whole:
        table.add_column("", footer=footer, justify="right")
    for state, num_bytes in memory["by_state"].items():
        table.add_row(state, *cells(num_bytes))
    if "free" not in memory["by_state"]:
        table.add_section()
        table.add_row("free: holes and gap", *cells(memory["free"]))
    return table


def _bytes_by_side(summary: Mapping[str, Any]) -> Table:
    """The bytes of each side by state, averaged over the clock, as shares of the side."""
    by_side = summary["memory"]["by_side"]
    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    table.add_column("each side, mean over the clock", footer="the whole side", style="bold")
    for name, side in by_side.items():
        total = side["total_bytes"]
        table.add_column(name, footer=format_bytes(total), justify="right")
        table.add_column("", footer=format_share(total, total), justify="right")
    for state in (name for name in next(iter(by_side.values())) if name != "total_bytes"):
        held = [(side[state], side["total_bytes"]) for side in by_side.values()]
        cells = [text for part, total in held for text in (format_bytes(part), format_share(part, total))]
        table.add_row(state, *cells)
    return table


def _notes(summary: Mapping[str, Any]) -> Iterator[str]:
    """Notes that limit the figures: an interrupt, rows left out of the trace, rejected requests with reasons."""
    if summary["interrupted"]:
        done = summary["requests"]["finished"] + summary["requests"]["rejected"]
        total = summary["requests"]["total"]
        yield f"Interrupted: the figures cover {format_count(done)} of {format_count(total)} requests."
    yield from _listed("rows of the trace left out", summary["excluded_rows"], summary["excluded"])
    yield from _listed("requests rejected", summary["requests"]["rejected"], summary["rejections"])


def _listed(what: str, count: int, messages: list[str]) -> Iterator[str]:
    if not count:
        return
    yield f"{what}: {format_count(count)}"
    yield from (f"  {message}" for message in messages[:_MOST_MESSAGES])
    if count > _MOST_MESSAGES:
        yield f"  and {format_count(count - min(len(messages), _MOST_MESSAGES))} more"


def print_generation(summary: Mapping[str, Any], console: Console) -> None:
    """Print the figures of a summary, and below them whether it was interrupted."""
    print_text(_generation_headline(summary), console, style="bold")
    console.print(figures(_generation_lines(summary)))
    if summary["interrupted"]:
        print_text("Interrupted: texts and figures end there.", console)


def _generation_headline(summary: Mapping[str, Any]) -> str:
    memory = format_bytes(summary["memory"]["total_bytes"])
    return (
        f"{summary['model']}: {memory} of {summary['cache_dtype']}, {summary['layout']} layout, "
        f"page size {summary['page_size']}"
    )


def _generation_lines(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _request_lines(summary["requests"])
    generated = f"{format_count(summary['output_tokens'])} generated in {format_seconds(summary['wall_s'])}"
    yield "throughput", f"{summary['throughput_tok_s']:,.1f} tokens/s: {generated}"
    yield "prefix hit rate", _hit_rate(summary["prefix"])
    yield from _memory_lines(summary["memory"])
    yield from _kind_lines(summary["memory"])
    outside = format_share(summary["outside_model_share"], 1)
    yield "outside the model", f"{outside} of the time, {format_count(summary['steps'])} steps"


def coverage_table(title: str, rows: Iterable[tuple[str, str, Sequence[str]]]) -> Table:
    """One line per class. rows: its path, why it is not replaced ("" if it is), and which members are left out."""
    columns = Column("class", no_wrap=True), "replaced"
    table = Table(*columns, title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for path, fault, left_out in rows:
        replaced = f"yes, without {', '.join(left_out)}" if left_out else "yes"
        table.add_row(escape(path), escape(f"no: {fault}" if fault else replaced))
    return table
