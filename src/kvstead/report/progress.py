"""Progress bars on standard error; nothing is shown where that is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from kvstead.replay.simulate import Progress as ReplayProgress
from kvstead.replay.streams import files_of
from kvstead.report.units import format_clock, format_share


@contextmanager
def replay_bar() -> Iterator[Callable[[ReplayProgress], None]]:
    """Show the trace's clock, requests done and pool use. Yields the function that a replay reports to."""
    columns = (
        TextColumn("clock {task.fields[clock]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests  {task.fields[running]} running, {task.fields[waiting]} waiting"),
        TextColumn("pool {task.fields[use]}"),
    )
    with _bar(*columns) as draw:

        def show(progress: ReplayProgress) -> None:
            draw(
                progress.done,
                progress.total,
                clock=format_clock(progress.clock_s),
                running=progress.running,
                waiting=progress.waiting,
                use=format_share(progress.held_bytes, progress.total_bytes),
            )

        yield show


@contextmanager
def reading_bar(paths: Sequence[str]) -> Iterator[Callable[[int], None]]:
    """Show how much of some files has been read. Yields a function that is told each number of bytes."""
    total = sum(Path(file).stat().st_size for path in paths for file in files_of(path) if Path(file).is_file())
    done = 0
    with _bar(TextColumn("reading"), BarColumn(), DownloadColumn()) as draw:

        def advance(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            draw(done, total)

        yield advance


@contextmanager
def loading_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show what is loaded, and how many parts are. Yields a function of the name, the parts done and their total."""
    with _bar(TextColumn("{task.fields[what]}", markup=False), BarColumn(), MofNCompleteColumn()) as draw:

        def show(what: str, done: int, total: int) -> None:
            draw(done, total, what=what)

        yield show


@contextmanager
def _bar(*columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    """A bar that disappears at its end. Yields a function of done, total and the fields of its columns."""
    bar = Progress(
        *columns,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        # Ask the stream itself: rich would also believe an environment variable.
        disable=not sys.stderr.isatty(),
    )
    with bar:

        def draw(done: int, total: int, **fields: Any) -> None:
            if not bar.task_ids:
                bar.add_task("", total=total, completed=done, **fields)
            else:
                bar.update(bar.task_ids[0], total=total, completed=done, **fields)

        yield draw
