"""What models cache, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich import box
from rich.markup import escape
from rich.table import Column, Table

from kvstead.model import CacheKind, ModelLayout
from kvstead.model.compute import ComputeProfile
from kvstead.report.table import figures
from kvstead.report.units import format_bytes, format_count


def models_table(models: Iterable[tuple[ModelLayout, str]]) -> Table:
    """One line per model. models: layouts, each with the source of its numbers."""
    name, token_bytes = Column("model", no_wrap=True, style="bold"), Column("bytes per token", no_wrap=True)
    window, state_bytes = Column("window", justify="right"), Column("state bytes", justify="right")
    table = Table(name, "layers", token_bytes, window, state_bytes, "replayed", "evidence", box=box.SIMPLE_HEAD)
    for layout, source in models:
        table.add_row(
            layout.name,
            layers_by_kind(layout),
            token_bytes_by_kind(layout),
            "" if layout.window is None else format_count(layout.window),
            format_count(layout.state_bytes) if layout.state_bytes else "",
            "yes" if layout.is_manageable else "",
            escape(source.partition("]")[0].lstrip("[")),
        )
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
    for num_tokens in (1024, 32_768, 131_072):
        table.add_row(f"{format_count(num_tokens)} tokens hold", format_bytes(layout.sequence_bytes(num_tokens)))
    table.add_row("parameters", f"{profile.total_params / 1e9:.2f} billion, {profile.active_params / 1e9:.2f} a token")
    table.add_row("replayed", "yes" if layout.is_manageable else "no: states alone are sized, not managed")
    table.add_row("entries in", layout.options.cache_dtype)
    table.add_row("source", escape(source))
    for assumption in layout.assumptions:
        table.add_row("assumed", escape(assumption))
    return table


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
