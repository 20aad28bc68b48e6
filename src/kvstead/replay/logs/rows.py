"""Makes rows of records: checks their fields, counts texts, and gives turns of a session the prefix before them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvstead.replay.logs.chats import messages_of, prompt_of, turns_of
from kvstead.replay.logs.fields import (
    MAX_TOKENS,
    TICKS_PER_SECOND,
    Clock,
    Row,
    field_of,
    number_of,
    tokens_of,
)
from kvstead.replay.logs.formats import Format, Record
from kvstead.replay.logs.json_lines import Unreadable
from kvstead.replay.logs.options import LogOptions
from kvstead.replay.logs.texts import BYTES_PER_TOKEN, TextTokens, own_names

_DEFAULT_BLOCK_SIZE = 16


@dataclass(slots=True)
class _Session:
    """What is known of a session: how long its context is, and whose names its blocks have."""

    owner: int
    num_tokens: int = 0  # of the last prompt and its answer
    first_ids: list[Any] = field(default_factory=list)  # whole blocks that the log names


class RowReader:
    """Makes the rows of one file. `block_size` is known after the first row, `guesses` after the last."""

    def __init__(self, chosen: Format, options: LogOptions) -> None:
        self.format = chosen.name
        self._format = chosen
        self._fields = chosen.fields
        self._options = options
        self._clock = Clock(options.time_unit or chosen.unit)
        self._texts = TextTokens(options.tokenizer)
        self._sessions: dict[str, _Session] = {}
        self._num_owners = 0
        self._guesses: Counter[str] = Counter()
        self._counted = self._stated = 0
        self.block_size = options.block_size or chosen.block_size
        self._row_block_size: int | None = None

    @property
    def guesses(self) -> tuple[str, ...]:
        """What the log did not say and was assumed, one sentence each, with the number of requests."""
        sentences = [f"{text} ({number:,} requests)" for text, number in self._guesses.items()]
        if self._clock.is_guessed:
            sentences.append(f"timestamps are in {self._clock.unit}, as their size says; --time-unit sets another unit")
        if self._stated and self._options.tokenizer is None:
            ratio = self._counted / self._stated
            sentences.append(f"prompts counted from their texts are {ratio:.2f} times as long as the log says")
        return tuple(sentences)

    def rows(self, number: int, record: Record) -> Iterator[Row]:
        """The requests of a record. Raises `Unreadable` for one that does not follow the format."""
        for request in self._format.unpack(record):
            if self._fields.chat and (chat := field_of(request, self._fields.chat)) is not None:
                yield from self._chat(number, request, chat)
            else:
                yield self._row(number, request)

    def _chat(self, number: int, record: Record, chat: object) -> Iterator[Row]:
        self._guess_texts()
        session = field_of(record, self._fields.session) or f"{number}"
        seconds = self._seconds(record)
        for turn in turns_of(messages_of(chat), self._texts, self._own_block_size()):
            yield Row(number, seconds, turn.prompt_len, turn.output_len, turn.block_ids, str(session))
            seconds = None  # the next turn comes after the answer
            self._guess("turns after the first arrive when the answer is read")

    def _row(self, number: int, record: Record) -> Row:
        fields = self._fields
        session = field_of(record, fields.session)
        session = None if session is None else str(session)
        seconds, delay = self._seconds(record), self._delay(record)
        if seconds is None and delay is None and session is None and self._clock.has_begun:
            raise Unreadable(f"a time in `{fields.arrival[0]}`, as in the first row", None)
        prompt_len, block_ids = self._prompt(record)
        output_len = self._output(record)
        total = field_of(record, fields.total)
        fault = ""
        if total is not None and prompt_len + output_len != number_of(total):
            fault = f"{prompt_len} + {output_len} tokens do not add up to the total of {total}"
        if block_ids is not None and (num_blocks := -(-prompt_len // self.block_size)) != len(block_ids):
            fault = fault or (
                f"{prompt_len} prompt tokens take {num_blocks} blocks of {self.block_size} tokens, but there are "
                f"{len(block_ids)} block ids"
            )
        if session is not None and not fault:
            prompt_len, block_ids = self._in_session(session, prompt_len, output_len, block_ids)
        return Row(number, seconds, prompt_len, output_len, block_ids, session, delay, fault)

    def _seconds(self, record: Record) -> float | None:
        value = field_of(record, self._fields.arrival)
        if value is None:
            if any(path in record for path in self._fields.arrival) and field_of(record, self._fields.delay) is None:
                raise Unreadable(f"a time in `{self._fields.arrival[0]}`", "nothing")
            return None
        seconds = self._clock.seconds(value, self._fields.arrival[0])
        return seconds - (number_of(field_of(record, self._fields.latency)) or 0)

    def _delay(self, record: Record) -> float | None:
        value = field_of(record, self._fields.delay)
        number = number_of(value)
        if value is not None and (number is None or number < 0):
            raise Unreadable(f"a `{self._fields.delay[0]}` of 0 or more", value)
        return None if number is None else number / TICKS_PER_SECOND[self._options.time_unit or self._format.delay_unit]

    def _prompt(self, record: Record) -> tuple[int, Any]:
        """The prompt's length, and the names of its blocks, if the log has ids or texts."""
        fields = self._fields
        text = field_of(record, fields.messages)
        stated = field_of(record, fields.prompt)
        if text is None:
            block_ids = field_of(record, fields.blocks)
            if block_ids is not None:
                self._check_blocks(record, block_ids)
            return tokens_of(record, fields.prompt or ("prompt tokens",)), block_ids
        self._guess_texts()
        counted, names = prompt_of(messages_of(_unpacked(text)), self._texts, self._own_block_size())
        if stated is not None:
            self._counted += counted
            self._stated += tokens_of(record, fields.prompt)
        return counted, names

    def _output(self, record: Record) -> int:
        fields = self._fields
        if field_of(record, fields.output) is not None:
            return tokens_of(record, fields.output)
        answer = field_of(record, fields.answer)
        if isinstance(answer, str):
            return int(self._texts.of(answer).size)
        if isinstance(answer, list):
            self._guess("an answer has a token for each part that was streamed")
            return min(len(answer), MAX_TOKENS)
        if field_of(record, fields.most_output) is not None:
            self._guess("outputs are as long as their limit allows")
            return tokens_of(record, fields.most_output)
        return tokens_of(record, fields.output or fields.most_output or ("output tokens",))

    def _check_blocks(self, record: Record, block_ids: object) -> None:
        """Raise `Unreadable` unless blocks are named by a list, and of the size of the first row's."""
        if not isinstance(block_ids, list) or not {type(each) for each in block_ids} <= {int, str}:
            raise Unreadable(f"`{self._fields.blocks[0]}`, a list of integers or texts", block_ids)
        size = record.get("block_size", self.block_size)
        if type(size) is not int or not 0 < size <= MAX_TOKENS:
            raise Unreadable(f"a `block_size` of 1 to {MAX_TOKENS}", size)
        if self._row_block_size is None:
            self._row_block_size = self.block_size = self._options.block_size or size
        elif size != self._row_block_size and not self._options.block_size:
            raise Unreadable(f"`block_size` {self._row_block_size} as in the first row", size)

    def _in_session(self, name: str, prompt_len: int, output_len: int, block_ids: Any) -> tuple[int, Any]:
        """A turn's length and blocks: where the log names none, it shares those of the turn before it."""
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = _Session(self._new_owner())
        elif self._options.deltas:
            prompt_len, block_ids = prompt_len + session.num_tokens, None
        if block_ids is None:
            self._row_block_size = self._own_block_size()
            if prompt_len < session.num_tokens and not self._options.deltas:
                session.owner, session.first_ids = self._new_owner(), []
            block_ids = own_names(session.owner, -(-prompt_len // self.block_size))
            if session.first_ids:
                block_ids = [*session.first_ids, *block_ids[len(session.first_ids) :].tolist()]
            self._guess("a turn begins with the turn before it and its answer")
        elif self._options.deltas:
            session.first_ids = list(block_ids[: prompt_len // self.block_size])
        session.num_tokens = prompt_len + output_len
        return prompt_len, block_ids

    def _new_owner(self) -> int:
        self._num_owners += 1
        return self._num_owners

    def _own_block_size(self) -> int:
        """The size of blocks that the log does not name."""
        self.block_size = self.block_size or _DEFAULT_BLOCK_SIZE
        return self.block_size

    def _guess(self, sentence: str) -> None:
        self._guesses[sentence] += 1

    def _guess_texts(self) -> None:
        if self._options.tokenizer is None:
            self._guess(f"texts have a token for every {BYTES_PER_TOKEN} bytes")


def _unpacked(text: object) -> object:
    """Messages that a log has as JSON text, or one level deeper; anything else as it is."""
    if isinstance(text, str) and text.lstrip()[:1] in {"{", "["}:
        try:
            text = json.loads(text)
        except (ValueError, RecursionError):
            return text
    if isinstance(text, list) and text and all(isinstance(each, str) for each in text):
        return "".join(text)
    if isinstance(text, dict):
        return field_of(text, ("messages", "prompt", "text_input")) or ""
    return text
