"""A bar that shows how far a replay has come."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kvstead.replay.simulate import Progress as ReplayProgress
from kvstead.report.units import format_clock, format_share


class ProgressBar:
    """The trace's clock, requests done and pool use, on standard error; nothing where that is no terminal.

    A context manager whose `show` is what a replay reports to.
    """

    def __init__(self) -> None:
        # Asked of the stream itself: rich would also take an environment variable's word for it.
        self._bar = Progress(
            TextColumn("clock {task.fields[clock]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("requests  {task.fields[running]} running, {task.fields[waiting]} waiting"),
            TextColumn("pool {task.fields[use]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, progress: ReplayProgress) -> None:
        """Draw where the replay stands."""
        fields: dict[str, Any] = {
            "clock": format_clock(progress.clock_s),
            "running": progress.running,
            "waiting": progress.waiting,
            "use": format_share(progress.held_bytes, progress.total_bytes),
        }
        if self._task is None:
            self._task = self._bar.add_task("replay", total=progress.total, completed=progress.done, **fields)
        else:
            self._bar.update(self._task, completed=progress.done, **fields)
