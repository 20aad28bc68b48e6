"""Lines of JSON, and the fault of one that does not follow its format. Imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from kvstead.errors import TraceError

_LONGEST_SHOWN = 80  # characters of what was found instead


class Unreadable(Exception):
    """A row does not follow its format. expected: what should be there. found: what is."""

    def __init__(self, expected: str, found: object) -> None:
        super().__init__(expected, found)
        text = repr(found)
        self.reason = (
            f"expected {expected}, found {text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + '...'}"
        )

    def at(self, place: str) -> TraceError:
        """The error that ends the reading. place: the file and the row."""
        return TraceError(f"{place}: {self.reason}. Correct it or remove it.")


def malformed(place: str, expected: str, found: object) -> NoReturn:
    """Raise the `TraceError` for a line that does not follow its format."""
    raise Unreadable(expected, found).at(place) from None


def json_record(line: str) -> Mapping[str, Any]:
    """The JSON object of a line. Raises `Unreadable` for anything else."""
    line = line.removeprefix("\ufeff")
    try:
        return mapping(msgspec.json.decode(line))
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        pass
    try:
        return mapping(json.loads(line))  # which reads NaN and half a surrogate pair too
    except (ValueError, RecursionError):
        raise Unreadable("one JSON object", line) from None


def mapping(value: object) -> Mapping[str, Any]:
    """A JSON object. Raises `Unreadable` for any other value."""
    if not isinstance(value, dict):
        raise Unreadable("one JSON object", value)
    return value
