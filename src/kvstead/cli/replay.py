"""`kvstead replay`: what a trace does to a memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvstead.cli.common import EXIT_INTERRUPTED, require_one
from kvstead.replay.options import Layout, Mode, ReplayOptions
from kvstead.report.units import parse_bytes

_DEFAULT_GPU = "h100-sxm"
_MOST_SLOTS = 2**40


def replay(
    traces: Annotated[
        list[str], typer.Argument(metavar="TRACE", help="Trace files, merged by arrival; - is standard input.")
    ],
    *,
    model: Annotated[str, typer.Option(help="A bundled model (see `kvstead models`) or a config.json.")],
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of one GPU's cache, such as 40GiB.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, max=_MOST_SLOTS, help="Memory as a number of (full) token slots, instead.")
    ] = None,
    layout: Annotated[
        Layout, typer.Option(help="How windows, states and the rest share it; padded and ideal only count, to compare.")
    ] = Layout.STATIC,
    window_ratio: Annotated[
        float | None, typer.Option(metavar="R", help="Window slots per full slot, for models with windows.")
    ] = None,
    expected_length: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens of a request to divide it for; by default the trace's mean."),
    ] = None,
    state_slots: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Recurrent states, for models that have some.")
    ] = None,
    state_interval: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tokens between two copies of a request's state.")
    ] = 512,
    page_size: Annotated[int, typer.Option(min=1, help="Tokens a page.")] = 16,
    gpu: Annotated[str | None, typer.Option(help=f"Times steps by its roofline; {_DEFAULT_GPU} if not given.")] = None,
    step_ms: Annotated[float | None, typer.Option(help="Milliseconds every step takes, instead of a GPU.")] = None,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens computed in one step at most.")] = 8192,
    policy: Annotated[str, typer.Option(help="Eviction: lru, lfu, fifo, mru, filo, slru or priority.")] = "lru",
    serial: Annotated[bool, typer.Option("--serial", help="One request at a time: the trace's own reuse.")] = False,
    overlap: Annotated[bool, typer.Option("--overlap", help="Plan a step while the one before is computed.")] = False,
    max_running: Annotated[int, typer.Option(min=1, help="Requests on the memory at once.")] = 256,
    dtype: Annotated[str, typer.Option(help="Of cache entries, such as float8_e4m3fn.")] = "bfloat16",
    state_dtype: Annotated[str, typer.Option(help="Of the recurrent part of states, such as bfloat16.")] = "float32",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel GPUs; the memory is that of one.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", file_okay=False, help="Write summary.json, timeline.csv and plots here."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Replay request traces on the real allocators, prefix cache and scheduler, and say what they held and reused.

    Example: kvstead replay trace.jsonl --model llama-3.1-8b --memory 40GiB
    """
    require_one("--memory", "--slots", [memory, slots], least=1)
    require_one("--gpu", "--step-ms", [gpu, step_ms])
    require_one("--serial", "--overlap", [serial or None, overlap or None])
    require_one("--window-ratio", "--expected-length", [window_ratio, expected_length])
    _require_above_zero("--step-ms", step_ms)
    _require_above_zero("--window-ratio", window_ratio)
    _require_static(
        layout,
        {
            "--slots": slots,
            "--window-ratio": window_ratio,
            "--expected-length": expected_length,
            "--state-slots": state_slots,
        },
    )
    num_bytes = None if memory is None else parse_bytes(memory)

    # Loading what replays takes seconds, and help does not need it.
    from kvstead.cli.replaying import replay_and_report  # noqa: PLC0415

    options = ReplayOptions(
        traces=tuple(traces),
        model=model,
        num_bytes=num_bytes,
        num_slots=slots,
        page_size=page_size,
        gpu=gpu or _DEFAULT_GPU,
        step_seconds=None if step_ms is None else step_ms / 1e3,
        chunk_tokens=chunk,
        policy=policy,
        mode=Mode.SERIAL if serial else Mode.OVERLAPPED if overlap else Mode.BATCHED,
        max_running=max_running,
        cache_dtype=dtype,
        tensor_parallel=tp,
        layout=layout,
        window_ratio=window_ratio,
        expected_length=expected_length,
        num_states=state_slots,
        state_interval=state_interval,
        state_dtype=state_dtype,
    )
    is_interrupted = replay_and_report(options, folder=out, as_json=json)
    if is_interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _require_static(layout: Layout, dividing: dict[str, object]) -> None:
    """Refuse options that divide the memory in a layout that does not."""
    given = [name for name, value in dividing.items() if value is not None]
    if layout is not Layout.STATIC and given:
        raise typer.BadParameter(
            f"nothing is divided in layout {layout}. Size it by --memory alone, or use --layout static.",
            param_hint=" / ".join(given),
        )


def _require_above_zero(name: str, value: float | None) -> None:
    """Refuse what is given and not above 0."""
    if value is not None and not value > 0:
        raise typer.BadParameter(f"{value} is not above 0.", param_hint=f"'{name}'")
