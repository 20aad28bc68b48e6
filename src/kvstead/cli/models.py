"""`kvstead models`: the bundled models and what they cache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def models(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One model in detail, or a config.json.")] = None,
    *,
    dtype: Annotated[str, typer.Option(help="Of cache entries, such as float8_e4m3fn.")] = "bfloat16",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel GPUs; the figures are those of one.")] = 1,
) -> None:
    """List the bundled models: layers by kind, bytes per token, window, state, and where the numbers come from.

    `kvstead replay` takes those marked as replayed.
    """
    # Tables are not needed for help.
    from kvstead.model import load_layout, preset_names, preset_source  # noqa: PLC0415
    from kvstead.model.compute import load_profile  # noqa: PLC0415
    from kvstead.report.console import output_console  # noqa: PLC0415
    from kvstead.report.models import model_table, models_table  # noqa: PLC0415

    if name is None:
        presets = preset_names()
        layouts = [load_layout(preset, cache_dtype=dtype, tensor_parallel=tp) for preset in presets]
        output_console().print(models_table(zip(layouts, map(preset_source, presets), strict=True)))
        return
    layout = load_layout(name, cache_dtype=dtype, tensor_parallel=tp)
    source = preset_source(name) if name in preset_names() else str(Path(name).resolve())
    output_console().print(model_table(layout, load_profile(name), source))
