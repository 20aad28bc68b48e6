"""What comes back for a prompt: pieces as they are generated, and the whole when it has ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from kvstead.engine import Request
from kvstead.integrations.transformers.sampling import Draw
from kvstead.integrations.transformers.text import TextStream


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"  # with a stop token
    LENGTH = "length"  # with as many tokens as it may have
    ABORTED = "aborted"
    REJECTED = "rejected"  # it was never begun


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer, ended.

    prompt_tokens: the prompt's ids, none where it could not be read. tokens: the ids generated, with the stop token
    that ended them. text: theirs, without special tokens; empty without a tokenizer. num_cached: prompt tokens that
    were in the cache when it was begun. num_retractions: how often it had to leave the memory for others. reason: why
    it was rejected, or aborted by a fault.
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
    """What a step brought for one prompt.

    index: the prompt's place among those that were given together; of one by itself its `request_id`. text: a part of
    the answer's text, perhaps none while a character is incomplete. tokens: the step's. completion: the whole answer,
    with the last piece, which has no tokens of its own; else None. The texts of all pieces together are the answer's.
    """

    index: int
    request_id: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    completion: Completion | None = None


@dataclass(slots=True, eq=False)
class Answer:
    """What has come so far for one request.

    index: of its pieces. text: None without a tokenizer. pieces: where they go.
    """

    index: int
    request: Request
    draw: Draw
    text: TextStream | None
    pieces: deque[Piece]
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def take(self, token: int) -> None:
        """Hand out the next token."""
        self.tokens.append(token)
        is_said = token not in self.request.stop_tokens
        self._hand_out(self.text.take(token) if self.text is not None and is_said else "", (token,))

    def end(self, finish_reason: FinishReason, reason: str = "") -> None:
        """Hand out the last piece."""
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
        self._hand_out(rest, (), completion)

    def _hand_out(self, text: str, tokens: tuple[int, ...], completion: Completion | None = None) -> None:
        self.texts.append(text)
        self.pieces.append(Piece(self.index, self.request.request_id, text, tokens, completion))
