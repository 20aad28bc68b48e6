"""Requests that are texts: chats turn by turn, and single requests with all their messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstead.replay.logs.fields import MAX_TOKENS, field_of
from kvstead.replay.logs.json_lines import Unreadable
from kvstead.replay.logs.texts import TextTokens, block_names

_MODEL_ROLES = frozenset({"assistant", "gpt", "chatgpt", "bard", "bing", "model"})


class Message(NamedTuple):
    """A message of a chat: who wrote it, and what."""

    role: str
    text: str


class Turn(NamedTuple):
    """A request of a chat, counted: its prompt and its answer in tokens, and the names of the prompt's blocks."""

    prompt_len: int
    output_len: int
    block_ids: NDArray[np.int64]


def messages_of(value: object) -> list[Message]:
    """Messages in any of the usual spellings: a text, or a list of `role`/`from` with `content`/`value`/`text`.

    Of contents with several parts the texts are taken; images count nothing. Raises `Unreadable` for anything else.
    """
    if isinstance(value, str):
        return [Message("user", value)]
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise Unreadable("a list of messages", value)
    return [
        Message(
            str(field_of(each, ("role", "from")) or "user").lower(), _text(field_of(each, ("content", "value", "text")))
        )
        for each in value
    ]


def turns_of(messages: list[Message], count: TextTokens, block_size: int) -> Iterator[Turn]:
    """The requests of a chat: one for each message of the model, whose prompt is all that stands before it."""
    lengths, tokens = _tokens(messages, count)
    starts = np.cumsum(lengths) - lengths
    answers = [place for place, message in enumerate(messages) if message.role in _MODEL_ROLES and starts[place]]
    ends = [int(starts[place]) for place in answers]
    for place, end, names in zip(answers, ends, block_names(tokens, block_size, ends), strict=True):
        yield Turn(_bounded(end), _bounded(int(count.of(messages[place].text).size)), names)


def prompt_of(messages: list[Message], count: TextTokens, block_size: int) -> tuple[int, NDArray[np.int64]]:
    """The prompt that a request's messages make: its length in tokens, and the names of its blocks."""
    _, tokens = _tokens(messages, count)
    return _bounded(tokens.size), block_names(tokens, block_size, [tokens.size])[0]


def _tokens(messages: list[Message], count: TextTokens) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The tokens of messages one by one, their authors counted as text, and in a row."""
    each = [count.of(f"{message.role}\n{message.text}\n") for message in messages]
    lengths = np.array([tokens.size for tokens in each], dtype=np.int64)
    return lengths, np.concatenate([np.empty(0, dtype=np.uint64), *each])


def _bounded(num_tokens: int) -> int:
    if num_tokens > MAX_TOKENS:
        raise Unreadable(f"a text of at most {MAX_TOKENS} tokens", f"one of {num_tokens}")
    return num_tokens


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts: Iterable[Any] = content if isinstance(content, list) else ()
    return "".join(
        part if isinstance(part, str) else str(part.get("text") or "")
        for part in parts
        if isinstance(part, str | Mapping)
    )
