"""Replays from Python: what `kvstead replay` does, as a call whose result has columns, frames and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from kvstead.byte_sizes import parse_bytes
from kvstead.errors import InvalidSize
from kvstead.replay.options import Layout, Mode, ReplayOptions
from kvstead.replay.recorder import TIMELINE_COLUMNS
from kvstead.replay.run import run_replay
from kvstead.replay.summary import summarize
from kvstead.replay.trace import Trace
from kvstead.report.files import timeline_of, write_plots

_FRAMES = ("pandas", "polars")


@dataclass(frozen=True, slots=True, repr=False)
class ReplayedTrace:
    """What a replay measured.

    summary: plain dicts and numbers, as in `summary.json`. timeline: samples over the clock by column, float64[samples]
    each. requests: by column, one value for each request, NaN for what did not happen.
    """

    summary: Mapping[str, Any]
    timeline: Mapping[str, NDArray[Any]]
    requests: Mapping[str, NDArray[Any]]

    def frame(self, of: Literal["requests", "timeline"] = "requests") -> Any:
        """The requests or the timeline as a DataFrame of pandas or, without it, of Polars. Raises `ImportError`."""
        columns = {"requests": self.requests, "timeline": self.timeline}[of]
        for package in _FRAMES:
            try:
                return import_module(package).DataFrame(dict(columns))
            except ModuleNotFoundError:
                continue
        raise ImportError(f"a frame needs pandas or polars. Install one, or use the arrays of `.{of}`.")

    def plot(self, folder: str | Path = ".") -> tuple[Path, ...]:
        """Write the plots of `kvstead replay --out` to a folder, made if needed; their paths, none for one sample."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        return write_plots(Path(folder), self.summary, dict(self.timeline))

    def __repr__(self) -> str:
        served, memory = self.summary["requests"], self.summary["memory"]
        return (
            f"<ReplayedTrace of {self.summary['model']}: {served['finished']:,} of {served['total']:,} requests "
            f"finished, live peak {memory['peak_live_bytes']:,} of {memory['total_bytes']:,} bytes>"
        )


def replay_trace(
    trace: str | Path | Trace | Sequence[str | Path], *, model: str, memory: str | int, **options: Any
) -> ReplayedTrace:
    """Replay request traces on the real allocators, prefix cache and scheduler, without tensors.

    trace: a file, a folder, several of them (merged by arrival), or a `Trace` that was read or made. model: a bundled
    name or the path of a `config.json`. memory: of one GPU's cache, in bytes or as text ("40GiB"). options: other
    fields of `kvstead.replay.options.ReplayOptions`, such as `layout="unified"` or `page_size=32`.

    Raises `TraceError`, `LayoutError` or `InvalidSize` for what cannot be replayed, `TypeError` for unknown options.
    """
    for name, kind in (("layout", Layout), ("mode", Mode)):
        asked = options.setdefault(name, next(iter(kind)))
        if asked not in list(kind):
            raise InvalidSize(f"{name} is {asked!r}. Use one of {', '.join(kind)}.")
        options[name] = kind(asked)
    read, trace = (trace, trace.name) if isinstance(trace, Trace) else (None, trace)
    paths = (trace,) if isinstance(trace, str | Path) else trace
    num_bytes = parse_bytes(memory) if isinstance(memory, str) else memory
    replay = ReplayOptions(tuple(map(str, paths)), model, num_bytes, **options)
    result = run_replay(replay, trace=read)
    timeline = timeline_of(TIMELINE_COLUMNS, result.timeline)
    return ReplayedTrace(summarize(result, replay), timeline, result.requests)
