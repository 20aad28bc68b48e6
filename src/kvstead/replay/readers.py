"""Reads request traces and logs. The first record decides the format; the file's name does not matter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvstead.errors import TraceError
from kvstead.replay.logs.columns import Columns
from kvstead.replay.logs.fields import Row
from kvstead.replay.logs.formats import FORMAT_NAMES, FORMATS, Fields, Format, Record
from kvstead.replay.logs.json_lines import Unreadable
from kvstead.replay.logs.options import LogOptions
from kvstead.replay.logs.records import records_of
from kvstead.replay.logs.rows import RowReader
from kvstead.replay.streams import ByteStream, files_of, source_name
from kvstead.replay.trace import Trace, merge

_LONGEST_LIST = 120  # characters of fields that are shown
_MOST_TRIES = 20  # records that cannot be read, before a file is taken for no trace


def read_trace(
    path: str | Path,
    options: LogOptions | None = None,
    *,
    advance: Callable[[int], None] = lambda _num_bytes: None,
) -> Trace:
    """The requests of a file, of all files in a folder as one trace, or of standard input for `-`.

    Plain, gzip or zstandard; lines of JSON, a JSON document, CSV or Parquet. options: what the log does not say itself.
    advance: told how many bytes were read. `Trace.guesses` says what was assumed.

    A row that cannot be read or is inconsistent (the number of block ids is not ceil(prompt length / block size), a
    total is not the sum), or that has no token to prefill or to generate, is left out, and the first ten are named in
    `Trace.problems`. Raises `TraceError` for a source that cannot be read or has no format that is known, when no
    request remains, and with `options.strict` for the first row that cannot be read.
    """
    traces = [_read(file, options or LogOptions(), advance) for file in files_of(path)]
    return merge(traces) if len(traces) > 1 else traces[0]


def _read(path: str, options: LogOptions, advance: Callable[[int], None]) -> Trace:
    source = source_name(path)
    records = records_of(ByteStream(path, advance), path)
    columns = Columns(options)
    reader = (
        None if records.header is None else RowReader(_format(records.header, options, f"{source}, line 1"), options)
    )
    for number, raw in records.raws:
        place = f"{source}, {records.unit} {number}"
        try:
            record = records.parse(raw)
            reader = reader or RowReader(_format(record, options, place), options)
            for row in reader.rows(number, record):
                columns.note_time(row.seconds)
                fault = row.fault or _fault(row)
                if fault:
                    columns.leave_out(place, fault)
                else:
                    columns.add(row)
        except Unreadable as error:
            if options.strict:
                raise error.at(place) from None
            columns.leave_out(place, error.reason)
        if reader is None and columns.num_left_out == _MOST_TRIES:
            break
    if reader is None:
        first = columns.problems[0] if columns.problems else f"{source}: it has no rows."
        raise TraceError(f"{first} Expected a trace or a log: {', '.join(FORMAT_NAMES)}.")
    name = source if source == "standard input" else Path(path).name
    return columns.trace(source, name, reader)


def _format(record: Record, options: LogOptions, place: str) -> Format:
    """The format of a record: the one that is named, or the first that fits."""
    if options.columns:
        return Format(
            "columns", (), Fields(**{name: (path, path.lower()) for name, path in options.columns}), delay_unit="s"
        )
    if options.format is not None:
        for each in FORMATS:
            if each.name == options.format:
                return each
        raise TraceError(f"{options.format!r} is not a format of traces. Use one of {', '.join(FORMAT_NAMES)}.")
    for each in FORMATS:
        if each.matches(record):
            return each
    fields = ", ".join(map(str, record))
    found = fields if len(fields) < _LONGEST_LIST else f"{fields[:_LONGEST_LIST]}..."
    raise TraceError(
        f"{place}: expected the first row of a trace or a log ({', '.join(FORMAT_NAMES)}), found the fields {found}. "
        "Say which field is what with --columns."
    )


def _fault(row: Row) -> str:
    """Why a row that can be read is left out; empty when it is kept."""
    if row.prompt_len == 0:
        return "the prompt is empty"
    if row.output_len == 0:
        return "there is no token to generate"
    return ""
