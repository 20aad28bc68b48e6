"""A replay's results as files: `summary.json`, `timeline.csv` and the plots, in one folder."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvstead.report.plots import Timeline, write_plots


def to_json(value: Mapping[str, Any]) -> str:
    """One JSON object, indented, without NaN."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)


def write_report(
    folder: Path, summary: Mapping[str, Any], columns: Sequence[str], rows: Iterable[Sequence[float]]
) -> tuple[Path, ...]:
    """Write all files into `folder`, which is created if needed; returns their paths.

    columns, rows: the timeline. Files of an earlier run with the same names are replaced. Raises `OSError` where the
    folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    samples = list(rows)
    summary_file, timeline_file = folder / "summary.json", folder / "timeline.csv"
    summary_file.write_text(to_json(summary) + "\n", encoding="utf-8")
    with timeline_file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows([round(value, 6) for value in row] for row in samples)
    return summary_file, timeline_file, *write_plots(folder, summary, Timeline.of(columns, samples))
