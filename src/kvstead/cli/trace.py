"""`kvstead trace`: make traces and count what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from kvstead.cli.commands import takes
from kvstead.cli.log_arguments import LogArguments, read_traces

trace_app = typer.Typer(help="Make request traces, and look into them.", no_args_is_help=True)

_STANDARD_OUTPUT = "-"
_IN_AND_OUT = 2


@dataclass(frozen=True, kw_only=True)
class MakeArguments:
    """The command line of `make`: where to write, and keywords of `chat_rows`."""

    path: Annotated[
        str, typer.Argument(metavar="OUT", help="File to write (.gz and .zst compress), or - for standard output.")
    ]
    seed: Annotated[int, typer.Option(help="The same seed and options give the same file.")]
    num_sessions: Annotated[int, typer.Option("--sessions", min=1, help="Chat sessions.")] = 100
    turns: Annotated[float, typer.Option(help="Mean turns of a session (geometric).")] = 4.0
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per prefix id.")] = 16
    num_system_prompts: Annotated[
        int, typer.Option("--system-prompts", min=1, help="System prompts that sessions share.")
    ] = 4
    system_tokens: Annotated[float, typer.Option(help="Median tokens of a system prompt.")] = 800.0
    user_tokens: Annotated[float, typer.Option(help="Median tokens a user adds in a turn.")] = 120.0
    output_tokens: Annotated[float, typer.Option(help="Median tokens of an answer.")] = 200.0
    spread: Annotated[float, typer.Option(help="Standard deviation of the lengths' logarithms.")] = 0.8
    sessions_per_second: Annotated[float, typer.Option("--rate", help="Sessions that start per second.")] = 1.0
    burstiness: Annotated[float, typer.Option(help="1 is a Poisson process; more comes in bursts.")] = 4.0
    think_seconds: Annotated[float, typer.Option(help="Median time between an answer and the next turn.")] = 10.0
    max_prompt_tokens: Annotated[int, typer.Option(min=2, help="A session ends before a longer prompt.")] = 32_768


@trace_app.command()
@takes(MakeArguments)
def make(arguments: MakeArguments) -> None:
    """Make seeded synthetic chat traffic: sessions of several turns with shared prefixes, in bursts.

    Written as Mooncake JSON Lines. Example: kvstead trace make chat.jsonl.gz --seed 1
    """
    # numpy is not needed for help.
    from kvstead.replay.synthetic import chat_rows  # noqa: PLC0415
    from kvstead.replay.writers import write_lines  # noqa: PLC0415

    traffic = asdict(arguments)
    path = traffic.pop("path")
    rows = chat_rows(**traffic)
    if path == _STANDARD_OUTPUT:
        for row in rows:
            typer.echo(row.line())
        return
    num_requests = num_tokens = 0

    def lines() -> Iterator[str]:
        nonlocal num_requests, num_tokens
        for row in rows:
            num_requests += 1
            num_tokens += row.prompt_len
            yield row.line()

    write_lines(lines(), path)
    typer.echo(f"{path}: {num_requests:,} requests, {num_tokens:,} prompt tokens", err=True)


@dataclass(frozen=True, kw_only=True)
class StatsArguments(LogArguments):
    """The command line of `stats`."""

    traces: Annotated[list[str], typer.Argument(metavar="TRACE", help="Trace files or folders; - is standard input.")]
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False


@trace_app.command()
@takes(StatsArguments)
def stats(arguments: StatsArguments) -> None:
    """Count requests, lengths, and how much of the prompts a cache without limits would reuse."""
    # numpy and tables are not needed for help.
    from kvstead.replay.stats import trace_stats  # noqa: PLC0415
    from kvstead.report.console import output_console  # noqa: PLC0415
    from kvstead.report.files import to_json  # noqa: PLC0415
    from kvstead.report.traces import print_notes, traces_table  # noqa: PLC0415

    figures = [trace_stats(trace) for trace in read_traces(arguments.traces, arguments.log_options())]
    if arguments.json:
        typer.echo(to_json({"traces": [asdict(figure) for figure in figures]}))
        return
    console = output_console()
    console.print(traces_table(figures))
    print_notes(figures, console)


@dataclass(frozen=True, kw_only=True)
class ConvertArguments(LogArguments):
    """The command line of `convert`."""

    traces: Annotated[list[str], typer.Argument(metavar="IN... OUT", help="What to read, and last what to write.")]

    def __post_init__(self) -> None:
        if len(self.traces) < _IN_AND_OUT:
            raise typer.BadParameter("name what to read, and last the file to write.", param_hint="IN... OUT")


@trace_app.command()
@takes(ConvertArguments)
def convert(arguments: ConvertArguments) -> None:
    """Write traces and logs of any format as one trace: Mooncake JSON Lines, or Parquet where the name ends so.

    Example: kvstead trace convert requests.csv trace.jsonl.zst --columns arrival=ts,prompt=in,output=out
    """
    # numpy is not needed for help.
    from kvstead.replay.trace import merge  # noqa: PLC0415
    from kvstead.replay.writers import write_trace  # noqa: PLC0415

    *paths, out = arguments.traces
    trace = merge(read_traces(paths, arguments.log_options()))
    write_trace(trace, out)
    notes = [*trace.guesses, *trace.problems]
    typer.echo("\n".join([f"{out}: {len(trace):,} requests, {trace.num_left_out:,} rows left out", *notes]), err=True)
