"""Options of every command that reads traces and logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kvstead.replay.logs.options import COLUMN_NAMES, LogOptions, TimeUnit

if TYPE_CHECKING:
    from kvstead.replay.trace import Trace

_PANEL = "Reading logs that do not say it themselves"


@dataclass(frozen=True, kw_only=True)
class LogArguments:
    """How to read a trace or a log; see `LogOptions`."""

    log_format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="NAME", help="Of the files; found by their first row.", rich_help_panel=_PANEL
        ),
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=FIELD,...",
            help=f"Which field of a CSV or JSON Lines file is what: {', '.join(COLUMN_NAMES)}.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    time_unit: Annotated[
        TimeUnit | None, typer.Option(help="Of timestamps and delays that are numbers.", rich_help_panel=_PANEL)
    ] = None
    block_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens per prefix id.", rich_help_panel=_PANEL)
    ] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A tokenizer.json to count texts with; else 4 bytes a token.", rich_help_panel=_PANEL
        ),
    ] = None
    deltas: Annotated[
        bool,
        typer.Option("--deltas", help="Turns of a session list only what is new in them.", rich_help_panel=_PANEL),
    ] = False
    log_rate: Annotated[
        float,
        typer.Option(
            "--arrival-rate",
            metavar="R",
            help="Requests or chats that start per second, where no times are given.",
            rich_help_panel=_PANEL,
        ),
    ] = 1.0
    think_time: Annotated[
        float,
        typer.Option(
            metavar="S", help="Seconds from an answer to the next turn, where not given.", rich_help_panel=_PANEL
        ),
    ] = 10.0
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first row that cannot be read.", rich_help_panel=_PANEL)
    ] = False

    def log_options(self) -> LogOptions:
        """The same as `LogOptions`. Raises `InvalidSize` as these do."""
        return LogOptions(
            format=self.log_format,
            columns=() if self.columns is None else tuple(map(_column, self.columns.split(","))),
            time_unit=self.time_unit,
            block_size=self.block_size,
            tokenizer=self.tokenizer,
            deltas=self.deltas,
            rate=self.log_rate,
            think_seconds=self.think_time,
            strict=self.strict,
        )


def read_traces(paths: Sequence[str], options: LogOptions) -> list[Trace]:
    """The traces of some paths, with a progress bar on a terminal. Raises as `read_trace`."""
    from kvstead.replay.readers import read_trace  # noqa: PLC0415 - numpy is not needed for help
    from kvstead.report.progress import reading_bar  # noqa: PLC0415

    with reading_bar(paths) as advance:
        return [read_trace(path, options, advance=advance) for path in paths]


def _column(text: str) -> tuple[str, str]:
    name, sign, field = (part.strip() for part in text.partition("="))
    if not (name and sign and field):
        raise typer.BadParameter(f"{text!r} is not NAME=FIELD.", param_hint="--columns")
    return name, field
