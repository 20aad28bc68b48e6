"""`kvstead models` and `kvstead gpus`: what can be replayed, and on what."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvstead.errors import LayoutError

if TYPE_CHECKING:
    from kvstead.model import ModelLayout
    from kvstead.model.compute import ComputeProfile

_Model = tuple["ModelLayout", "ComputeProfile", str]


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One model in detail, a part of names, or a config.json.")
    ] = None,
    *,
    dtype: Annotated[str, typer.Option(help="Of cache entries, such as float8_e4m3fn.")] = "bfloat16",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel GPUs; the figures are those of one.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """List the bundled models: parameters, bytes a token, window, state, and what the numbers rest on.

    A NAME shows one model in full, with the arithmetic; a part of names lists the models that have it.
    """
    # Tables are not needed for help.
    from kvstead.model import preset_names  # noqa: PLC0415
    from kvstead.report.console import output_console  # noqa: PLC0415
    from kvstead.report.files import to_json  # noqa: PLC0415
    from kvstead.report.models import model_table  # noqa: PLC0415

    presets = preset_names()
    parts = [preset for preset in presets if name is None or name.lower() in preset]
    if name is None or (name not in presets and parts and not Path(name).exists()):
        _list(parts, dtype, tp, json=json)
        return
    found = _read(name, dtype, tp)
    if json:
        typer.echo(to_json(_figures(*found)))
    else:
        output_console().print(model_table(*found))


def _list(presets: list[str], dtype: str, tp: int, *, json: bool) -> None:
    """One line for each model; those that cannot be read with these options are named behind them."""
    from kvstead.report.console import error_console, output_console  # noqa: PLC0415
    from kvstead.report.files import to_json  # noqa: PLC0415
    from kvstead.report.models import models_table  # noqa: PLC0415
    from kvstead.report.table import print_text  # noqa: PLC0415

    rows, faults = [], []
    for preset in presets:
        try:
            rows.append(_read(preset, dtype, tp))
        except LayoutError as error:
            faults.append(str(error))
    if json:
        typer.echo(to_json({"models": [_figures(*row) for row in rows], "left_out": faults}))
        return
    output_console().print(models_table(rows))
    for fault in faults:
        print_text(f"left out: {fault}", error_console())


def gpus(
    *, json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False
) -> None:
    """List the GPUs that a replay can be timed on, with the figures that their makers publish."""
    # Tables are not needed for help.
    from kvstead.replay.gpus import GPU_NAMES, gpu  # noqa: PLC0415
    from kvstead.report.console import output_console  # noqa: PLC0415
    from kvstead.report.files import to_json  # noqa: PLC0415
    from kvstead.report.models import gpus_table  # noqa: PLC0415

    found = [gpu(name) for name in GPU_NAMES]
    if json:
        typer.echo(to_json({"gpus": [asdict(each) for each in found]}))
    else:
        output_console().print(gpus_table(found))


def _read(name: str, dtype: str, tp: int) -> _Model:
    """A model's layout and profile, and the source of its numbers."""
    from kvstead.model import load_layout, preset_names, preset_source  # noqa: PLC0415
    from kvstead.model.compute import load_profile  # noqa: PLC0415

    layout = load_layout(name, cache_dtype=dtype, tensor_parallel=tp)
    source = preset_source(name) if name in preset_names() else str(Path(name).resolve())
    return layout, load_profile(name), source


def _figures(layout: ModelLayout, profile: ComputeProfile, source: str) -> dict[str, Any]:
    from kvstead.report.models import arithmetic, layers_by_kind  # noqa: PLC0415

    return {
        "name": layout.name,
        "parameters": profile.total_params,
        "active_parameters": profile.active_params,
        "layers": layers_by_kind(layout),
        "bytes_per_token": {str(kind): layout.bytes_per_token(kind) for kind in layout.kinds if kind != "state"},
        "window": layout.window,
        "state_bytes": layout.state_bytes,
        "arithmetic": list(arithmetic(layout)),
        "is_replayed": layout.is_manageable,
        "assumptions": list(layout.assumptions),
        "source": source,
    }
