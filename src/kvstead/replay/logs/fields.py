"""Fields of a record: found by a dotted path, and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstead.errors import InvalidSize
from kvstead.replay.logs.json_lines import Unreadable

MAX_TOKENS = 1 << 24  # per prompt or output: beyond every context length, and small enough to allocate
MAX_SECONDS = 1 << 33  # since 1970 the year 2242

TICKS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_LONGEST_NUMBER = 40  # characters
_LEAST_OF_UNIT = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (0, "s"))  # of times since 1970
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s*(Z|UTC|[+-]\d\d:?\d\d)?")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


class Row(NamedTuple):
    """One request of a log.

    number: its line, or its number in a file without lines. seconds: when it arrived, since the file's first row; None
    where the log does not say. prompt_len, output_len: tokens. block_ids: names of the prompt's prefix blocks. session:
    what it belongs to, in the order of the rows. delay: seconds from the end of the session's row before to its
    arrival. fault: why the row is left out, empty if it is not.
    """

    number: int
    seconds: float | None
    prompt_len: int
    output_len: int
    block_ids: Sequence[Any] | NDArray[np.int64] | None = None
    session: str | None = None
    delay: float | None = None
    fault: str = ""


def field_of(record: Mapping[str, Any], paths: Iterable[str]) -> Any:
    """What a record has at the first of some dotted paths where it has something; None if nowhere."""
    for path in paths:
        value: Any = record
        for name in path.split(".") if path not in record else [path]:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None and value != "":
            return value
    return None


def tokens_of(record: Mapping[str, Any], paths: tuple[str, ...]) -> int:
    """A number of tokens. Raises `Unreadable` for anything but a whole number in range."""
    value = field_of(record, paths)
    number = number_of(value)
    if number is None or not 0 <= number <= MAX_TOKENS or int(number) != number:
        raise Unreadable(f"a number of tokens in `{paths[0]}`, 0 to {MAX_TOKENS}", value)
    return int(number)


def number_of(value: Any) -> int | float | None:
    """A number, also one that is written as text; None for anything else, and for what is not finite."""
    if isinstance(value, str) and len(value) < _LONGEST_NUMBER and _NUMBER.fullmatch(value.strip()):
        value = value.strip()
        value = int(value) if value.lstrip("+-").isdigit() else float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


class Clock:
    """Turns the timestamps of one file into seconds since its first: numbers of one unit, or text in ISO 8601.

    unit: of numbers, one of `TICKS_PER_SECOND`; None guesses it from the first, as a time since 1970. Text without a
    zone is taken as UTC. Raises `InvalidSize` for an unknown unit.
    """

    def __init__(self, unit: str | None) -> None:
        if unit is not None and unit not in TICKS_PER_SECOND:
            raise InvalidSize(f"{unit!r} is no unit of time. Use one of {', '.join(TICKS_PER_SECOND)}.")
        self.unit = unit
        self.is_guessed = False
        self._first: float | None = None
        self._per_second = 1

    @property
    def has_begun(self) -> bool:
        """Whether there was a timestamp yet."""
        return self._first is not None

    def seconds(self, value: object, name: str) -> float:
        """Seconds since the first timestamp. name: the field, for messages. Raises `Unreadable` for no timestamp."""
        number = number_of(value)
        if number is not None:
            if self.unit is None:
                self.unit = next(unit for least, unit in _LEAST_OF_UNIT if abs(number) >= least)
                self.is_guessed = True
            ticks, per_second = number, TICKS_PER_SECOND[self.unit]
        else:
            ticks, per_second = _nanoseconds(value, name), TICKS_PER_SECOND["ns"]
        if not 0 <= ticks / per_second < MAX_SECONDS:
            raise Unreadable(f"a time of 0 or more in `{name}`, before the year 2242", value)
        if self._first is None:
            self._first, self._per_second = ticks, per_second
        elif per_second != self._per_second:
            raise Unreadable(f"`{name}` as in the first row, a number or text", value)
        return (ticks - self._first) / per_second


def _nanoseconds(value: object, name: str) -> int:
    """Text in ISO 8601, or a table's own timestamp, as nanoseconds since 1970: a float of seconds would round them."""
    text = value.isoformat(" ") if isinstance(value, datetime) else value
    match = _TIME.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise Unreadable(f"a time in `{name}`, a number or text such as 2023-11-16 18:17:03.979", value)
    day, time, fraction, zone = match.groups()
    try:
        since = datetime.fromisoformat(f"{day} {time}{'+00:00' if zone in {None, 'Z', 'UTC'} else zone}") - _EPOCH
    except ValueError:
        raise Unreadable(f"a date and time that exist in `{name}`", value) from None
    return (since.days * 86_400 + since.seconds) * 10**9 + int((fraction or "").ljust(9, "0"))
