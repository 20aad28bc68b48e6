"""The records of a file: lines of JSON, one JSON document, a CSV or Parquet table, or the lines of a server's log.

The first bytes decide. A record is a mapping; what is no record is told by `Unreadable`, and reading goes on behind it.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

import ijson
import msgspec

from kvstead.errors import TraceError
from kvstead.replay.logs.formats import Record
from kvstead.replay.logs.json_lines import Unreadable, json_record, mapping
from kvstead.replay.logs.server_lines import is_server_log, requests_of
from kvstead.replay.logs.tables import table_rows
from kvstead.replay.streams import ByteStream, lines_of, source_name

Raw: TypeAlias = Any  # a line or a record
_PARQUET = b"PAR1"
_BLANK = codecs.BOM_UTF8 + b" \t\r\n"  # what may stand before the first character
_LARGEST_DOCUMENT = 1 << 28  # bytes of a JSON document that is read as a whole
_LARGEST_ELEMENT = 1 << 26  # bytes between the ends of two elements of a list
_LINES_OF_A_LOG = 500  # in which a server's log shows what it is


class Records(NamedTuple):
    """What a file holds. raws: numbered lines or records. parse: a record of a raw one; raises `Unreadable`.

    unit: what the numbers count. header: a record of the names of a table's columns.
    """

    raws: Iterator[tuple[int, Raw]]
    parse: Callable[[Raw], Record]
    unit: str = "line"
    header: Record | None = None


def records_of(stream: ByteStream, path: str) -> Records:
    """The records of a file. Raises `TraceError` for a file that is empty, or of none of these kinds."""
    head = stream.head()
    begin = head.lstrip(_BLANK)
    if head.startswith(_PARQUET):
        return Records(table_rows(path), mapping, "row")
    is_list = begin[:1] == b"[" and begin[1:].lstrip()[:1] in {b"{", b"]"}  # a server's log has a time there
    if is_list or (begin.startswith(b"{") and not _is_line(head)):
        return Records(_document(stream, path, is_list=is_list), mapping, "row")
    lines = (
        (number, line) for number, line in enumerate(lines_of(stream, path), start=1) if line and not line.isspace()
    )
    first = list(islice(lines, _LINES_OF_A_LOG if begin[:1] != b"{" else 1))
    if not first:
        raise TraceError(f"{source_name(path)} is empty. Expected a trace.")
    if begin.startswith(b"{"):
        return Records(chain(first, lines), json_record)
    if any(is_server_log(line) for _, line in first):
        return Records(requests_of(chain(first, lines)), mapping)
    try:
        header = [name.strip().lower() for name in _cells(first[0][1])]
    except Unreadable as error:
        raise TraceError(f"{source_name(path)}, line {first[0][0]}: {error.reason}. Is this a trace?") from None
    return Records(
        chain(first[1:], lines), lambda line: _csv(line, header), header=dict(zip(header, header, strict=True))
    )


def _is_line(head: bytes) -> bool:
    """Whether the first line is a JSON object by itself, and not the first of a document."""
    line, _, rest = head.lstrip(_BLANK).partition(b"\n")
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        # An object that is cut by the end of what has been read, or a line that is broken and followed by others.
        return bool(rest) and rest.lstrip()[:1] == b"{"
    return True


def _document(stream: ByteStream, path: str, *, is_list: bool) -> Iterator[tuple[int, Raw]]:
    """The elements of a list, one by one, or the one object of a file."""
    name = source_name(path)
    try:
        if is_list:
            limited = _Limited(stream)
            for number, element in enumerate(ijson.items(limited, "item", use_float=True), start=1):
                limited.since = 0
                yield number, element
            return
        data = stream.read(_LARGEST_DOCUMENT + 1)
        if len(data) > _LARGEST_DOCUMENT:
            raise TraceError(
                f"{name} is one JSON object of more than {_LARGEST_DOCUMENT >> 20} MiB. Write its requests as JSON "
                "Lines, one a line."
            )
        yield 1, msgspec.json.decode(data.removeprefix(codecs.BOM_UTF8))
    except _TooLarge:
        raise TraceError(
            f"{name} has an element of more than {_LARGEST_ELEMENT >> 20} MiB in its list. Is this a trace?"
        ) from None
    except (ijson.JSONError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        fault = " ".join(str(error).split())
        raise TraceError(f"{name} is no whole JSON document ({fault}). Fetch or write the file again.") from None


class _TooLarge(Exception):
    """An element of a list has more than `_LARGEST_ELEMENT` bytes."""


class _Limited:
    """A stream that counts what is read since the last element."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.since = 0

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, or fewer at the end."""
        data = self._stream.read(size)
        self.since += len(data)
        if self.since > _LARGEST_ELEMENT:
            raise _TooLarge
        return data


def _cells(line: str) -> list[str]:
    """The cells of a line; most lines have no quotes and need no CSV reader."""
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # a cell of more than 128 KiB, or a carriage return outside of quotes
        raise Unreadable("a line of a CSV table", line) from None


def _csv(line: str, header: list[str]) -> Record:
    cells = _cells(line)
    if len(cells) != len(header):
        raise Unreadable(f"{len(header)} columns as in the header", line)
    return {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
