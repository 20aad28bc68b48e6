"""Rows of the JSON Lines formats: Mooncake and Qwen-Bailian."""

from __future__ import annotations

import json
from typing import Any

from kvstead.replay.rows import MAX_TICKS, MAX_TOKENS, Row, malformed

MOONCAKE_BLOCK_SIZE = 512
QWEN_BLOCK_SIZE = 16


class MooncakeRows:
    """Mooncake: `timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids` (512 tokens each).

    An optional `block_size` replaces 512; it must be the same in every row, since equal ids mean equal blocks.
    """

    ticks_per_second = 1000

    def __init__(self, source: str) -> None:
        self._source = source
        self._block_size: int | None = None

    @property
    def block_size(self) -> int:
        """Tokens per block id, as the first row says."""
        return self._block_size or MOONCAKE_BLOCK_SIZE

    def parse(self, number: int, line: str) -> Row:
        """The row on line `number`. Raises `TraceError` when it is malformed."""
        record = json_object(self._source, number, line)
        size = record.get("block_size", MOONCAKE_BLOCK_SIZE)
        if type(size) is not int or not 0 < size <= MAX_TOKENS:
            malformed(self._source, number, f"a `block_size` of 1 to {MAX_TOKENS}", size)
        if self._block_size is None:
            self._block_size = size
        if size != self._block_size:
            malformed(self._source, number, f"`block_size` {self._block_size} as in the first row", size)
        return _row(self._source, number, record)


class QwenRows:
    """Qwen-Bailian: `timestamp` in seconds, `hash_ids` of 16 tokens each, and the request's place in its chat.

    `chat_id`, `parent_chat_id` (-1 for a chat's first request) and `turn` must be integers; they are not kept, as the
    block ids alone say what is shared.
    """

    ticks_per_second = 1
    block_size = QWEN_BLOCK_SIZE

    def __init__(self, source: str) -> None:
        self._source = source

    def parse(self, number: int, line: str) -> Row:
        """The row on line `number`. Raises `TraceError` when it is malformed."""
        record = json_object(self._source, number, line)
        for key in ("chat_id", "parent_chat_id", "turn"):
            if type(record.get(key)) is not int:
                malformed(self._source, number, f"an integer `{key}`", record.get(key))
        return _row(self._source, number, record)


def json_object(source: str, number: int, line: str) -> dict[str, Any]:
    """The JSON object on line `number`. Raises `TraceError` for anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # also an integer of too many digits
        malformed(source, number, "one JSON object", line)
    if type(record) is not dict:
        malformed(source, number, "one JSON object", record)
    return record


def _row(source: str, number: int, record: dict[str, Any]) -> Row:
    """What both formats share. `type(...) is int` because true and false are integers to `isinstance`."""
    timestamp = record.get("timestamp")
    if not (type(timestamp) is int or type(timestamp) is float) or not 0 <= timestamp < MAX_TICKS:
        malformed(source, number, "a `timestamp` of 0 or more", timestamp)
    for key in ("input_length", "output_length"):
        length = record.get(key)
        if type(length) is not int or not 0 <= length <= MAX_TOKENS:
            malformed(source, number, f"an integer `{key}` of 0 to {MAX_TOKENS}", length)
    block_ids = record.get("hash_ids")
    if type(block_ids) is not list or not set(map(type, block_ids)) <= {int}:
        malformed(source, number, "`hash_ids`, a list of integers", block_ids)
    return Row(number, timestamp, record["input_length"], record["output_length"], block_ids)
