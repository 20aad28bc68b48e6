"""Rows of the CSV formats, which have lengths only: Azure 2023 and 2024, BurstGPT."""

from __future__ import annotations

import csv
import math
import re
from datetime import UTC, datetime

from kvstead.replay.rows import MAX_TICKS, MAX_TOKENS, Row, malformed

AZURE_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")
BURSTGPT_COLUMNS = ("timestamp", "request tokens", "response tokens", "total tokens")

_NANOSECONDS = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")


class _CsvRows:
    """Rows of a table, in which the columns `wanted` may stand in any order."""

    wanted: tuple[str, ...]
    block_size = 0

    def __init__(self, source: str, header_number: int, header: str) -> None:
        columns = columns_of(header)
        if not set(self.wanted) <= set(columns):
            malformed(source, header_number, f"a header with the columns {', '.join(self.wanted)}", header)
        self._source = source
        self._width = len(columns)
        self._places = [columns.index(name) for name in self.wanted]

    def _cells(self, number: int, line: str) -> list[str]:
        """The wanted cells of line `number`, stripped."""
        cells = _split(line)
        if len(cells) != self._width:
            malformed(self._source, number, f"{self._width} columns as in the header", line)
        return [cells[place].strip() for place in self._places]

    def _count(self, number: int, text: str) -> int:
        """A cell that counts tokens."""
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_TOKENS)) and int(text) <= MAX_TOKENS):
            malformed(self._source, number, f"a number of tokens, 0 to {MAX_TOKENS}", text)
        return int(text)


class AzureRows(_CsvRows):
    """Azure LLM inference traces: `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.

    2023 writes seven decimals and no zone, 2024 six or none and `+00:00`; a time without a zone is taken as UTC.
    Timestamps come out as whole nanoseconds, since a float of seconds since 1970 would round them.
    """

    wanted = AZURE_COLUMNS
    ticks_per_second = _NANOSECONDS

    def parse(self, number: int, line: str) -> Row:
        """The row on line `number`. Raises `TraceError` when it is malformed."""
        time, prompt, output = self._cells(number, line)
        count = self._count
        return Row(number, self._nanoseconds(number, time), count(number, prompt), count(number, output))

    def _nanoseconds(self, number: int, text: str) -> int:
        match = _TIME.fullmatch(text)
        if match is None:
            malformed(self._source, number, "a time such as 2023-11-16 18:17:03.9799600", text)
        try:
            seconds = datetime.fromisoformat(match[1] + (match[3] or "+00:00")) - _EPOCH
        except ValueError:
            malformed(self._source, number, "a date and time that exist", text)
        fraction = int((match[2] or "").ljust(9, "0"))
        nanoseconds = (seconds.days * 86_400 + seconds.seconds) * _NANOSECONDS + fraction
        if not 0 <= nanoseconds < MAX_TICKS:
            malformed(self._source, number, "a time between 1970 and 2116", text)
        return nanoseconds


class BurstGPTRows(_CsvRows):
    """BurstGPT: `Timestamp` in seconds, `Request tokens`, `Response tokens`, `Total tokens`, in columns of any order.

    Model, log type, session and elapsed time are not used. Requests that failed have 0 response tokens.
    """

    wanted = BURSTGPT_COLUMNS
    ticks_per_second = 1

    def parse(self, number: int, line: str) -> Row:
        """The row on line `number`. Raises `TraceError` when it is malformed."""
        time, *counts = self._cells(number, line)
        prompt, output, total = (self._count(number, text) for text in counts)
        fault = "" if prompt + output == total else f"{prompt} + {output} tokens do not add up to the total of {total}"
        try:
            seconds = float(time)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < MAX_TICKS:
            malformed(self._source, number, "a timestamp in seconds, 0 or more", time)
        return Row(number, seconds, prompt, output, fault=fault)


def columns_of(header: str) -> list[str]:
    """The column names of a header line, in lower case."""
    return [name.strip().lower() for name in _split(header)]


def _split(line: str) -> list[str]:
    """The cells of a line; most lines have no quotes and need no CSV reader. What is no CSV is one cell."""
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # a cell of more than 128 KiB, or a carriage return outside of quotes
        return [line]
