"""`kvstead replay`: replay request traces on a memory of a given size."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from kvstead.byte_sizes import parse_bytes
from kvstead.cli.commands import EXIT_INTERRUPTED, EXIT_NOTHING_DONE, require_one, takes
from kvstead.cli.log_arguments import LogArguments, read_traces
from kvstead.replay.options import Layout, Mode, ReplayOptions
from kvstead.replay.slo import Slo
from kvstead.report.units import parse_seconds

_DEFAULT_GPU = "h100-sxm"
_MOST_SLOTS = 2**40


@dataclass(frozen=True, kw_only=True)
class ReplayArguments(LogArguments):
    """The command line of a replay; fields that `ReplayOptions` has too are passed on as they are."""

    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE", help="Traces, logs or folders of them, merged by arrival; - is standard input."
        ),
    ]
    model: Annotated[str, typer.Option(help="A bundled model (see `kvstead models`) or a config.json.")]
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of one GPU's cache, such as 40GiB.")] = None
    num_slots: Annotated[
        int | None,
        typer.Option("--slots", min=1, max=_MOST_SLOTS, help="Memory as a number of (full) token slots, instead."),
    ] = None
    layout: Annotated[
        Layout, typer.Option(help="How windows, states and the rest share it; padded and ideal only count, to compare.")
    ] = Layout.STATIC
    window_ratio: Annotated[
        float | None, typer.Option(metavar="R", help="Window slots per full slot, for models with windows.")
    ] = None
    expected_length: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens of a request to divide it for; by default the trace's mean."),
    ] = None
    num_states: Annotated[
        int | None,
        typer.Option("--state-slots", min=1, metavar="N", help="Recurrent states, for models that have some."),
    ] = None
    state_interval: Annotated[
        int, typer.Option(min=0, metavar="N", help="Tokens between further copies of a prompt's state; 0 for none.")
    ] = 512
    page_size: Annotated[int, typer.Option(min=1, help="Tokens a page.")] = 16
    gpu: Annotated[str | None, typer.Option(help=f"Times steps by its roofline; {_DEFAULT_GPU} if not given.")] = None
    mfu: Annotated[float, typer.Option(metavar="SHARE", help="Of the GPU's peak FLOP/s that steps reach.")] = 0.5
    mbu: Annotated[float, typer.Option(metavar="SHARE", help="Of the GPU's bandwidth that steps reach.")] = 0.8
    step_overhead_ms: Annotated[float, typer.Option(min=0, help="Milliseconds of each step beside its work.")] = 0.2
    weight_dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="Of the weights; else as the checkpoint says.")
    ] = None
    engine_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Of a GPU, for an engine beside weights and cache.")
    ] = "2GiB"
    force: Annotated[bool, typer.Option("--force", help="Replay also what does not fit the GPU.")] = False
    slo: Annotated[
        str | None, typer.Option(metavar="ttft=2s,tpot=50ms", help="Count the requests that keep this goal.")
    ] = None
    step_ms: Annotated[float | None, typer.Option(help="Milliseconds every step takes, instead of a GPU.")] = None
    chunk_tokens: Annotated[int, typer.Option("--chunk", min=1, help="Tokens computed in one step at most.")] = 8192
    policy: Annotated[str, typer.Option(help="Eviction: lru, lfu, fifo, mru, filo, slru or priority.")] = "lru"
    serial: Annotated[bool, typer.Option("--serial", help="One request at a time: the trace's own reuse.")] = False
    overlap: Annotated[bool, typer.Option("--overlap", help="Plan a step while the one before is computed.")] = False
    max_running: Annotated[int, typer.Option(min=1, help="Requests on the memory at once.")] = 256
    cache_dtype: Annotated[str, typer.Option("--dtype", help="Of cache entries, such as float8_e4m3fn.")] = "bfloat16"
    state_dtype: Annotated[str, typer.Option(help="Of the recurrent part of states, such as bfloat16.")] = "float32"
    tensor_parallel: Annotated[
        int, typer.Option("--tp", min=1, help="Tensor-parallel GPUs; the memory is that of one.")
    ] = 1
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", file_okay=False, help="Write summary.json, timeline.csv, requests.csv and plots here."
        ),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False

    def __post_init__(self) -> None:
        require_one("--memory", "--slots", [self.memory, self.num_slots], least=1)
        require_one("--gpu", "--step-ms", [self.gpu, self.step_ms])
        require_one("--serial", "--overlap", [self.serial or None, self.overlap or None])
        require_one("--window-ratio", "--expected-length", [self.window_ratio, self.expected_length])
        for name, value in (("--step-ms", self.step_ms), ("--window-ratio", self.window_ratio)):
            if value is not None and not value > 0:
                raise typer.BadParameter(f"{value} is not above 0.", param_hint=f"'{name}'")
        dividing = {
            "--slots": self.num_slots,
            "--window-ratio": self.window_ratio,
            "--expected-length": self.expected_length,
            "--state-slots": self.num_states,
        }
        given = " / ".join(name for name, value in dividing.items() if value is not None)
        if self.layout is not Layout.STATIC and given:
            fault = f"layout {self.layout} divides nothing. Give --memory alone, or use --layout static."
            raise typer.BadParameter(fault, param_hint=given)

    def options(self) -> ReplayOptions:
        """What to replay on what. Raises `InvalidSize` for a memory that is no size."""
        same = {each.name: getattr(self, each.name) for each in fields(ReplayOptions) if hasattr(self, each.name)}
        others = {
            "traces": tuple(self.traces),
            "log": self.log_options(),
            "num_bytes": None if self.memory is None else parse_bytes(self.memory),
            "gpu": self.gpu or _DEFAULT_GPU,
            "step_seconds": None if self.step_ms is None else self.step_ms / 1e3,
            "overhead_seconds": self.step_overhead_ms / 1e3,
            "engine_bytes": parse_bytes(self.engine_memory),
            "must_fit": self.gpu is not None and not self.force,
            "slo": None if self.slo is None else _goal(self.slo),
            "mode": Mode.SERIAL if self.serial else Mode.OVERLAPPED if self.overlap else Mode.BATCHED,
        }
        return ReplayOptions(**same | others)


def _goal(text: str) -> Slo:
    pairs = (part.partition("=") for part in text.replace(" ", "").split(","))
    parts = {name: value for name, _, value in pairs}
    if not parts or not parts.keys() <= {"ttft", "tpot"}:
        raise typer.BadParameter(f"{text!r} names no goal. Write it as ttft=2s,tpot=50ms.", param_hint="--slo")
    return Slo(**{f"{name}_s": parse_seconds(value) for name, value in parts.items()})


@takes(ReplayArguments)
def replay(arguments: ReplayArguments) -> None:
    """Replay request traces on the real allocators, prefix cache and scheduler, and say what they held and reused.

    Example: kvstead replay trace.jsonl --model llama-3.1-8b --memory 40GiB
    """
    options = arguments.options()

    # These imports take seconds, and neither help nor a wrong option needs them.
    from kvstead.replay.recorder import TIMELINE_COLUMNS  # noqa: PLC0415
    from kvstead.replay.run import run_replay  # noqa: PLC0415
    from kvstead.replay.summary import summarize  # noqa: PLC0415
    from kvstead.replay.trace import merge  # noqa: PLC0415
    from kvstead.report.console import error_console, output_console  # noqa: PLC0415
    from kvstead.report.files import to_json, write_report  # noqa: PLC0415
    from kvstead.report.progress import replay_bar  # noqa: PLC0415
    from kvstead.report.table import print_summary, print_text  # noqa: PLC0415

    if arguments.out is not None:  # a long replay must not end without a place for its results
        arguments.out.mkdir(parents=True, exist_ok=True)
    trace = merge(read_traces(options.traces, options.log))
    with replay_bar() as show:
        result = run_replay(options, show, trace=trace)
    summary = summarize(result, options)
    # With a JSON object on standard output, everything for the eye goes to standard error.
    console = error_console() if arguments.json else output_console()
    print_summary(summary, console)
    if arguments.out is not None:
        written = write_report(arguments.out, summary, TIMELINE_COLUMNS, result.timeline, result.requests)
        print_text(f"written: {', '.join(map(str, written))}", console)
    if arguments.json:
        typer.echo(to_json(summary))
    if result.figures.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not result.figures.requests.finished:
        raise typer.Exit(EXIT_NOTHING_DONE)
