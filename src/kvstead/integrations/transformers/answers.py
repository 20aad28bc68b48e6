"""What comes back for a prompt: pieces as they are generated, and the completion when the answer has ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from kvstead.engine import Request
from kvstead.integrations.transformers.sampling import Draw
from kvstead.integrations.transformers.text_stream import TextStream


class FinishReason(StrEnum):
    """Why an answer ended; equal to its string."""

    STOP = "stop"  # with a stop token
    LENGTH = "length"  # with as many tokens as it may have
    ABORTED = "aborted"
    REJECTED = "rejected"  # before it began


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer that has ended.

    prompt_tokens: the prompt's ids, empty if it could not be read. tokens: the generated ids, including a stop token.
    text: their text, without special tokens; empty without a tokenizer. num_cached: prompt tokens found in the cache.
    num_retractions: how often the request lost its memory to others. reason: why it was rejected, or aborted by an
    error.
    """

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    num_cached: int = 0
    num_retractions: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a step generated for one prompt.

    index: the prompt's place among those passed together, or the `request_id` of a prompt passed alone. text: a part of
    the answer's text; empty while a character is incomplete. tokens: the step's tokens. completion: None, except in the
    last piece, which has no tokens. The texts of all pieces joined are the answer's text.
    """

    index: int
    request_id: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    completion: Completion | None = None


@dataclass(slots=True, eq=False)
class Answer:
    """An answer in progress.

    index: of its pieces. text: None without a tokenizer. pieces: the queue that its pieces go to.
    """

    index: int
    request: Request
    draw: Draw
    text: TextStream | None
    pieces: deque[Piece]
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def take(self, token: int) -> None:
        """Queue the piece of the next token."""
        self.tokens.append(token)
        stream = None if token in self.request.stop_tokens else self.text
        self._queue("" if stream is None else stream.take(token), (token,))

    def end(self, finish_reason: FinishReason, reason: str = "") -> None:
        """Queue the last piece, with the completion."""
        rest = "" if self.text is None else self.text.rest()
        completion = Completion(
            tuple(self.request.prompt.tolist()),
            tuple(self.tokens),
            "".join((*self.texts, rest)),
            finish_reason,
            max(self.request.num_cached, 0),
            self.request.num_retractions,
            reason,
        )
        self._queue(rest, (), completion)

    def _queue(self, text: str, tokens: tuple[int, ...], completion: Completion | None = None) -> None:
        self.texts.append(text)
        self.pieces.append(Piece(self.index, self.request.request_id, text, tokens, completion))
