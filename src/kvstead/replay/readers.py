"""Reads request traces. The first line decides the format; the file's name does not matter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from kvstead.errors import TraceError
from kvstead.replay.csv_rows import AZURE_COLUMNS, BURSTGPT_COLUMNS, AzureRows, BurstGPTRows, columns_of
from kvstead.replay.json_rows import MooncakeRows, QwenRows, json_object
from kvstead.replay.rows import Row, RowParser, malformed
from kvstead.replay.streams import read_lines, source_name
from kvstead.replay.trace import Trace, by_arrival


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format: how to recognise its first line, and what parses its rows.

    parser: makes one from the source's name, the first line's number and the first line. num_header_lines: lines before
    the rows.
    """

    matches: Callable[[str], bool]
    parser: Callable[[str, int, str], RowParser]
    num_header_lines: int


_FORMATS = {
    "qwen": TraceFormat(lambda line: "chat_id" in _keys(line), lambda source, *_: QwenRows(source), 0),
    # The order decides: a line of Qwen-Bailian has `hash_ids` too.
    "mooncake": TraceFormat(lambda line: "hash_ids" in _keys(line), lambda source, *_: MooncakeRows(source), 0),
    "azure": TraceFormat(lambda line: set(AZURE_COLUMNS) <= set(columns_of(line)), AzureRows, 1),
    "burstgpt": TraceFormat(lambda line: set(BURSTGPT_COLUMNS) <= set(columns_of(line)), BurstGPTRows, 1),
}

TRACE_FORMATS = tuple(_FORMATS)
_EXPECTED_FORMATS = (
    "JSON Lines with `hash_ids` (Mooncake, Qwen-Bailian), or CSV with the header "
    "TIMESTAMP,ContextTokens,GeneratedTokens (Azure) or "
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type (BurstGPT)"
)


def read_trace(path: str | Path, *, format: str | None = None) -> Trace:  # noqa: A002 - the field's own name
    """The requests of a file, or of standard input for `-`.

    Plain, gzip or zstandard. format: one of `TRACE_FORMATS`; None detects it from the first line.

        mooncake   JSON Lines, milliseconds, 512 tokens per block, or `block_size`
        qwen       Qwen-Bailian JSON Lines, seconds, 16 tokens per block
        azure      Azure 2023 and 2024 CSV, no block ids
        burstgpt   BurstGPT CSV, seconds, no block ids

    Raises `TraceError` with file and line for a malformed row, and if no request remains. A well-formed row that is
    inconsistent (the number of block ids is not ceil(prompt length / block size), a total is not the sum), or that has
    no token to prefill or to generate, is left out and named in `Trace.problems`.
    """
    source = source_name(path)
    lines = ((number, line) for number, line in enumerate(read_lines(path), start=1) if line and not line.isspace())
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{source} is empty. Expected a trace: {_EXPECTED_FORMATS}.")
    name = format or next((name for name, candidate in _FORMATS.items() if candidate.matches(first[1])), None)
    if name is None:
        malformed(source, first[0], f"the first line of a trace ({_EXPECTED_FORMATS})", first[1])
    if name not in _FORMATS:
        raise TraceError(f"{name!r} is not a trace format. Use one of {', '.join(TRACE_FORMATS)}.")
    chosen = _FORMATS[name]
    parser = chosen.parser(source, *first)
    rows = lines if chosen.num_header_lines else chain([first], lines)
    columns = _Columns(source, parser)
    for number, line in rows:
        columns.add(parser.parse(number, line))
    return columns.trace("standard input" if source == "standard input" else Path(path).name, name)


@dataclass(slots=True)
class _Columns:
    """Collects rows; inconsistent ones go to `problems`."""

    source: str
    parser: RowParser
    timestamps: list[float] = field(default_factory=list)
    prompt_lens: list[int] = field(default_factory=list)
    output_lens: list[int] = field(default_factory=list)
    block_counts: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _origin: float | None = None
    _numbers: defaultdict[int, int] = field(default_factory=defaultdict)

    def __post_init__(self) -> None:
        # A new id gets the next number, so the numbers have no gaps, even if the file's ids have.
        self._numbers.default_factory = self._numbers.__len__

    def add(self, row: Row) -> None:
        if self._origin is None or row.timestamp < self._origin:
            self._origin = row.timestamp
        fault = row.fault or _fault(row, self.parser.block_size)
        if fault:
            self.problems.append(f"{self.source}, line {row.line}: {fault}.")
            return
        self.timestamps.append(row.timestamp)
        self.prompt_lens.append(row.prompt_len)
        self.output_lens.append(row.output_len)
        if row.block_ids is not None:
            self.block_counts.append(len(row.block_ids))
            self.block_ids.extend(map(self._numbers.__getitem__, row.block_ids))

    def trace(self, name: str, format: str) -> Trace:  # noqa: A002 - the field's own name
        """The collected rows. Raises `TraceError` when there is none."""
        num = len(self.timestamps)
        if num == 0:
            reason = f"all {len(self.problems)} rows are inconsistent" if self.problems else "it has no rows"
            hint = f"The first: {self.problems[0]}" if self.problems else f"Expected {_EXPECTED_FORMATS}."
            raise TraceError(f"{self.source} holds no request: {reason}. {hint}")
        return by_arrival(
            name=name,
            format=format,
            arrivals=(np.array(self.timestamps) - self._origin) / self.parser.ticks_per_second,
            prompt_lens=np.array(self.prompt_lens, dtype=np.int64),
            output_lens=np.array(self.output_lens, dtype=np.int64),
            block_sizes=np.full(num, self.parser.block_size, dtype=np.int64),
            block_counts=np.array(self.block_counts or [0] * num, dtype=np.int64),
            block_ids=np.array(self.block_ids, dtype=np.int64),
            problems=tuple(self.problems),
        )


def _fault(row: Row, block_size: int) -> str:
    """Why a row is left out; empty when it is kept."""
    if row.block_ids is not None:
        expected = -(-row.prompt_len // block_size)
        if len(row.block_ids) != expected:
            return (
                f"{row.prompt_len} prompt tokens take {expected} blocks of {block_size} tokens, "
                f"but there are {len(row.block_ids)} block ids"
            )
    if row.prompt_len == 0:
        return "the prompt is empty"
    if row.output_len == 0:
        return "there is no token to generate"
    return ""


def _keys(line: str) -> frozenset[str]:
    """The keys of a JSON object; none when the line is something else."""
    try:
        return frozenset(json_object("", 0, line))
    except TraceError:
        return frozenset()
