"""The part of `kvstead replay` that loads numpy, torch and matplotlib: replay, report."""

from __future__ import annotations

from pathlib import Path

import typer

from kvstead.replay.options import ReplayOptions
from kvstead.replay.recorder import TIMELINE_COLUMNS
from kvstead.replay.run import run_replay
from kvstead.replay.summary import summarize
from kvstead.report.console import error_console, output_console
from kvstead.report.files import to_json, write_report
from kvstead.report.progress import replay_bar
from kvstead.report.table import print_summary


def replay_and_report(options: ReplayOptions, *, folder: Path | None, as_json: bool) -> bool:
    """Replay, print the summary, and write files into `folder` if there is one; returns whether it was interrupted."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)  # a long replay must not end without a place for its results
    with replay_bar() as show:
        result = run_replay(options, show)
    summary = summarize(result, options)
    # With a JSON object on standard output, everything for the eye goes to standard error.
    console = error_console() if as_json else output_console()
    print_summary(summary, console)
    if folder is not None:
        written = write_report(folder, summary, TIMELINE_COLUMNS, result.timeline)
        console.print(f"written: {', '.join(map(str, written))}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        typer.echo(to_json(summary))
    return result.figures.interrupted
