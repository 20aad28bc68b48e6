"""A replay's results as files in one folder: `summary.json`, `timeline.csv`, `requests.csv` and the plots.

Plots are drawn without a display and without matplotlib's global state.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

from kvstead.report.units import format_bytes

Timeline = Mapping[str, NDArray[np.float64]]

_GIB = 1024**3
_SIZE_INCHES = (9.0, 4.5)
_DPI = 130
_DRAWING = (0, 0.035, 1, 0.965)  # left, bottom, width, height: the caption is below
_MOST_CAPTION = 140  # characters that fit the width
_LIVE, _CACHED, _FREE, _LINE = "#1b5e7d", "#8fc1d4", "#e3e7ea", "#c2541b"
_CLOCK_UNITS = ((2 * 3600.0, 3600.0, "h"), (2 * 60.0, 60.0, "min"), (0.0, 1.0, "s"))
_RECENT_SHARE = 0.05  # of the clock: the span over which the recent hit rate is taken


def to_json(value: Mapping[str, Any]) -> str:
    """One JSON object, indented, without NaN."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)


def write_report(
    folder: Path,
    summary: Mapping[str, Any],
    columns: Sequence[str],
    rows: Iterable[Sequence[float]],
    requests: Mapping[str, NDArray[Any]],
) -> tuple[Path, ...]:
    """Write all files into `folder`, which is created if needed; returns their paths.

    columns, rows: the timeline. requests: columns with a value for each request, NaN for what did not happen. The files
    are written elsewhere and then moved, so that a fault leaves the folder as it was; what is left there of an earlier
    run is removed, other files stay. Raises `OSError` where the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    samples = list(rows)
    with TemporaryDirectory(prefix=".run-", dir=folder) as place:
        written = Path(place)
        (written / "summary.json").write_text(to_json(summary) + "\n", encoding="utf-8")
        _write_csv(written / "timeline.csv", columns, samples)
        _write_csv(
            written / "requests.csv", list(requests), zip(*(each.tolist() for each in requests.values()), strict=True)
        )
        write_plots(written, summary, timeline_of(columns, samples))
        names = sorted(file.name for file in written.iterdir())
        for name in (*_FILES, *PLOTS):
            if name not in names:
                (folder / name).unlink(missing_ok=True)
        return tuple((written / name).replace(folder / name) for name in names)


def _write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[float]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(names)
        writer.writerows(["" if value != value else round(value, 6) for value in row] for row in rows)  # noqa: PLR0124 - NaN


def timeline_of(names: Sequence[str], rows: Sequence[Sequence[float]]) -> Timeline:
    """The columns of samples that have one value per name: float64[n] each, over the trace's clock."""
    values = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    return dict(zip(names, values.T, strict=True))


_Drawing = Callable[[Axes, NDArray[np.float64], Mapping[str, Any], Timeline], None]


def write_plots(folder: Path, summary: Mapping[str, Any], timeline: Timeline) -> tuple[Path, ...]:
    """Draw what the timeline holds as PNG files in `folder`; returns them.

    `memory.png` and `requests.png`, and `hit_rate.png` where the trace carries reuse. None for fewer than two samples.
    """
    if len(timeline["clock_s"]) < 2:  # noqa: PLR2004 - a line needs two points
        return ()
    return tuple(
        _write(folder / name, summary, timeline, draw)
        for name, draw in PLOTS.items()
        if name != "hit_rate.png" or summary["prefix"]["hit_rate"] is not None
    )


def _write(path: Path, summary: Mapping[str, Any], timeline: Timeline, draw: _Drawing) -> Path:
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout=ConstrainedLayoutEngine(rect=_DRAWING))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw(axes, _clock(axes, timeline), summary, timeline)
    num_entries = len(axes.get_legend_handles_labels()[1])
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=num_entries, frameon=False, borderaxespad=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    figure.text(0.995, 0.005, _caption(summary), ha="right", va="bottom", fontsize=7, color="0.45", parse_math=False)
    figure.savefig(path)
    return path


def _caption(summary: Mapping[str, Any]) -> str:
    traces = " + ".join(Path(name).name for name in summary["trace"])
    timing = summary["gpu"] or "constant step time"
    sizes = f"{summary['layout']} layout", f"page size {summary['page_size']}"
    text = "  |  ".join((traces, Path(summary["model"]).name, *sizes, summary["policy"], timing, summary["mode"]))
    return text if len(text) <= _MOST_CAPTION else f"...{text[-_MOST_CAPTION:]}"


def _clock(axes: Axes, timeline: Timeline) -> NDArray[np.float64]:
    """The samples' times in a unit that suits their span; labels the axis with it."""
    clock = timeline["clock_s"]
    scale, unit = next((scale, unit) for least, scale, unit in _CLOCK_UNITS if clock[-1] >= least)
    axes.set_xlabel(f"clock of the trace ({unit})")
    axes.set_xlim(0, clock[-1] / scale)
    return clock / scale


def _draw_memory(axes: Axes, clock: NDArray[np.float64], summary: Mapping[str, Any], timeline: Timeline) -> None:
    total = summary["memory"]["total_bytes"]
    parts = [timeline[f"{state}_bytes"] / _GIB for state in ("live", "cached", "free")]
    axes.stackplot(clock, parts, labels=("live", "cached", "free"), colors=(_LIVE, _CACHED, _FREE), step="post")
    axes.axhline(total / _GIB, color="0.3", linewidth=1, linestyle="--", label="pool")
    axes.set_ylim(0, total / _GIB * 1.03)
    axes.set_ylabel("memory (GiB)")
    axes.set_title(f"Memory by state, of {format_bytes(total)}", loc="left")


def _draw_requests(axes: Axes, clock: NDArray[np.float64], summary: Mapping[str, Any], timeline: Timeline) -> None:
    for name, color in (("running", _LIVE), ("waiting", _LINE)):
        axes.plot(clock, timeline[name], color=color, linewidth=1.2, label=name, drawstyle="steps-post")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("requests")
    axes.set_title(f"Requests at a time, {summary['requests']['total']:,} in all", loc="left")


def _draw_hit_rate(axes: Axes, clock: NDArray[np.float64], summary: Mapping[str, Any], timeline: Timeline) -> None:
    overall, recent = hit_rates(timeline)
    span = f"last {_RECENT_SHARE:.0%} of the clock"
    axes.plot(clock, recent, color=_CACHED, linewidth=1.2, drawstyle="steps-post", label=span)
    axes.plot(clock, overall, color=_LIVE, linewidth=1.8, drawstyle="steps-post", label="since the start")
    highest = float(np.nan_to_num([overall, recent]).max())
    axes.set_ylim(0, min(100.0, max(10.0, 1.2 * highest)))
    axes.set_ylabel("cached prompt tokens (%)")
    axes.set_title(f"Prefix hit rate by tokens, {summary['prefix']['hit_rate']:.2%} in the end", loc="left")


def hit_rates(timeline: Timeline) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Percent of prompt tokens found in the cache, since the start and recently; NaN where no prompt was computed."""
    clock, hits, prompts = timeline["clock_s"], timeline["hit_tokens"], timeline["prompt_tokens"]
    start = np.searchsorted(clock, clock - _RECENT_SHARE * clock[-1], side="left")
    recent_hits, recent_prompts = hits - hits[start], prompts - prompts[start]
    return _percent(hits, prompts), _percent(recent_hits, recent_prompts)


def _percent(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    result = np.full(len(whole), np.nan)
    np.divide(100 * part, whole, out=result, where=whole > 0)
    return result


PLOTS: Mapping[str, _Drawing] = {
    "memory.png": _draw_memory,
    "requests.png": _draw_requests,
    "hit_rate.png": _draw_hit_rate,
}
"""The plots of a run, by the names of their files."""

_FILES = ("summary.json", "timeline.csv", "requests.csv")
