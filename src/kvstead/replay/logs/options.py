"""How to read a log, where the log itself does not say. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvstead.errors import InvalidSize
from kvstead.replay.checks import require_at_least, require_positive

COLUMN_NAMES = ("arrival", "prompt", "output", "session", "delay", "blocks", "messages")


class TimeUnit(StrEnum):
    """The unit of timestamps and delays that are numbers."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How to read a log.

    format: its name; None finds it by the first record. columns: which field is what, by the names in `COLUMN_NAMES`,
    for a CSV file or JSON Lines of any kind. time_unit: of timestamps and delays that are numbers. block_size: tokens a
    block id, and of the blocks of texts and sessions. tokenizer: a `tokenizer.json`, or a folder with one, to count
    texts with. deltas: turns of a session have only what is new. rate: requests, or sessions, that start per second,
    for logs without times. think_seconds: from an answer to the next turn, where the log does not say. strict: stop at
    the first row that cannot be read.

    Raises `InvalidSize` for an unknown column, or a number out of range.
    """

    format: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    time_unit: TimeUnit | None = None
    block_size: int | None = None
    tokenizer: str | None = None
    deltas: bool = False
    rate: float = 1.0
    think_seconds: float = 10.0
    strict: bool = False

    def __post_init__(self) -> None:
        for name, _ in self.columns:
            if name not in COLUMN_NAMES:
                raise InvalidSize(f"{name!r} is no column of a log. Name {', '.join(COLUMN_NAMES)}.")
        if self.block_size is not None and self.block_size < 1:
            raise InvalidSize(f"block_size is {self.block_size}. It must be 1 or more.")
        require_positive("rate", self.rate)
        require_at_least("think_seconds", self.think_seconds, 0)
