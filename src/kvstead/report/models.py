"""What models cache, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rich import box
from rich.markup import escape
from rich.table import Column, Table

from kvstead.model import CacheKind, ModelLayout
from kvstead.model.compute import ComputeProfile
from kvstead.replay.gpus import Gpu
from kvstead.report.table import figures
from kvstead.report.units import format_bytes, format_count


def models_table(models: Iterable[tuple[ModelLayout, ComputeProfile, str]]) -> Table:
    """One line per model, in 80 columns. models: layouts and profiles, each with the source of its numbers."""
    right = ("parameters", "bytes/token", "window", "state")
    columns = (Column(name, justify="right", no_wrap=True) for name in right)
    table = _listing("model", *columns, "evidence")
    for layout, profile, source in models:
        table.add_row(
            escape(layout.name),
            parameters(profile),
            format_count(layout.full_bytes_per_token + layout.window_bytes_per_token),
            "" if layout.window is None else format_count(layout.window),
            format_bytes(layout.state_bytes) if layout.state_bytes else "",
            escape(evidence_of(source)),
        )
    return table


def _listing(first: str, *columns: Column | str) -> Table:
    """A table of named things, as narrow as it can be."""
    name = Column(first, no_wrap=True, style="bold")
    return Table(name, *columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def parameters(profile: ComputeProfile) -> str:
    """Billions of parameters, and of those that a token passes through where that is fewer: `20.9B/4.19B`."""
    total, active = (f"{count / 1e9:.3g}B" for count in (profile.total_params, profile.active_params))
    return total if profile.total_params == profile.active_params else f"{total}/{active}"


def evidence_of(source: str) -> str:
    """The word in brackets that a source begins with."""
    return source.partition("]")[0].lstrip("[")


def gpus_table(gpus: Iterable[Gpu]) -> Table:
    """One line per GPU: peaks and memory as published, and where."""
    names = ("bf16 TFLOP/s", "fp8 TFLOP/s", "TB/s", "GB")
    columns = (Column(name, justify="right", no_wrap=True) for name in names)
    table = _listing("gpu", *columns, "source")
    for gpu in gpus:
        fp8 = "" if gpu.fp8_flops is None else f"{gpu.fp8_flops / 1e12:,.0f}"
        peaks = f"{gpu.bf16_flops / 1e12:,.0f}", fp8, f"{gpu.bandwidth / 1e12:.3g}"
        table.add_row(gpu.name, *peaks, f"{gpu.memory_bytes / 1e9:.0f}", escape(gpu.source))
    return table


def model_table(layout: ModelLayout, profile: ComputeProfile, source: str) -> Table:
    """Everything about one model, one figure per line."""
    table = figures((), title=escape(layout.name))
    table.add_row("layers", layers_by_kind(layout))
    table.add_row("bytes per token", token_bytes_by_kind(layout) or "none")
    if layout.window is not None:
        table.add_row("window", f"{format_count(layout.window)} tokens, {layout.window_kind}")
    if layout.state_bytes:
        table.add_row("state", f"{format_count(layout.state_bytes)} bytes a sequence")
    for line in arithmetic(layout):
        table.add_row("", line)
    for num_tokens in (1024, 32_768, 131_072):
        table.add_row(f"{format_count(num_tokens)} tokens hold", format_bytes(layout.sequence_bytes(num_tokens)))
    table.add_row("parameters", f"{profile.total_params / 1e9:.2f} billion, {profile.active_params / 1e9:.2f} a token")
    if not layout.is_manageable:
        table.add_row("not replayed", "states alone are sized, not managed")
    table.add_row("entries in", layout.options.cache_dtype)
    table.add_row("source", escape(source))
    for assumption in layout.assumptions:
        table.add_row("assumed", escape(assumption))
    return table


def arithmetic(layout: ModelLayout) -> Iterator[str]:
    """What the bytes of a token and of a state are made of: a line for each kind of layer."""
    tokens = Counter((str(each.tokens.kind), each.token_bytes) for each in layout.layers if each.tokens is not None)
    states = Counter(each.state_bytes for each in layout.layers if each.state_bytes)
    for (kind, num_bytes), count in tokens.items():
        yield f"{count} layers x {format_count(num_bytes)} = {format_count(count * num_bytes)} {kind}"
    for num_bytes, count in states.items():
        yield f"{count} layers x {format_count(num_bytes)} = {format_count(count * num_bytes)} a state"


def layers_by_kind(layout: ModelLayout) -> str:
    """Layers by what they cache: `26 window + 4 full + 10 sharing`."""
    counts = Counter(
        " with ".join(layer.kinds) or ("none" if layer.shared_kind is None else "sharing") for layer in layout.layers
    )
    return " + ".join(f"{count} {what}" for what, count in counts.most_common())


def token_bytes_by_kind(layout: ModelLayout) -> str:
    """Bytes per token of each kind that has any: `131,072 full`."""
    kinds = [kind for kind in layout.kinds if kind is not CacheKind.STATE]
    return " + ".join(f"{format_count(layout.bytes_per_token(kind))} {kind}" for kind in kinds)
