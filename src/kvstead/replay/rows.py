"""One request as a row of a file, and the error for a malformed line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn, Protocol

from kvstead.errors import TraceError

MAX_TOKENS = 1 << 24  # per prompt or output: beyond every context length, and small enough to allocate
MAX_TICKS = 1 << 62  # as nanoseconds since 1970 the year 2116; fits int64


class Row(NamedTuple):
    """A well-formed row; the reader checks whether its numbers fit together.

    timestamp: in the unit of the format. block_ids: None where the format carries none.
    fault: why the row is inconsistent, empty if it is not.
    """

    line: int
    timestamp: float
    prompt_len: int
    output_len: int
    block_ids: Sequence[int] | None = None
    fault: str = ""


class RowParser(Protocol):
    """Parses the lines of one file in one format."""

    @property
    def ticks_per_second(self) -> int:
        """Timestamps per second: 1000 for milliseconds."""

    @property
    def block_size(self) -> int:
        """Tokens per block id, 0 where the format carries none. Final after the first row."""

    def parse(self, number: int, line: str) -> Row:
        """The row on line `number`. Raises `TraceError` when it is malformed."""


def malformed(source: str, number: int, expected: str, found: object) -> NoReturn:
    """Raise the `TraceError` for a line that does not follow the format."""
    text = repr(found)
    shown = text if len(text) <= 80 else text[:77] + "..."  # noqa: PLR2004 - fits a terminal line
    raise TraceError(f"{source}, line {number}: expected {expected}, found {shown}. Correct the line or remove it.")
