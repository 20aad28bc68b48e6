"""What is computed in one step, its result, and what computes it: the part that an engine supplies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch

from kvstead.engine.request import Request, token_ids
from kvstead.errors import RequestError
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, to_host


@dataclass(slots=True)
class Chunk:
    """A stretch of a request's known tokens to be computed: positions `start` .. `end` - 1 into `slots`."""

    request: Request
    row: int
    start: int
    end: int
    slots: torch.Tensor
    is_last: bool


@dataclass(slots=True)
class Step:
    """One batch: a token of each decoding row, and chunks of prompts.

    rows: int64[d] table rows; lengths: int64[d], their tokens including the one computed now; slots: int64[d], where
    that one's entries go. A runner returns one token id for each row and then one for each chunk. A row's input token
    is the one its previous step produced, known to the runner even before that step's results are processed.
    """

    index: int
    rows: IntArray
    lengths: IntArray
    slots: torch.Tensor
    chunks: tuple[Chunk, ...]

    def divide(self, tokens: Integers) -> tuple[IntArray, IntArray]:
        """The tokens of its rows and those of its chunks. Raises `RequestError` where one is missing or no token id."""
        sampled, num_rows = to_host(tokens), self.rows.size
        if sampled.size != num_rows + len(self.chunks):
            raise RequestError(
                f"{sampled.size} tokens came for {num_rows} rows and {len(self.chunks)} chunks. Give each one."
            )
        if self.chunks:
            token_ids(sampled[num_rows:])
        return sampled[:num_rows], sampled[num_rows:]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return self.rows.size + (sum(chunk.end - chunk.start for chunk in self.chunks) if self.chunks else 0)


@dataclass(slots=True)
class Outcome:
    """Which requests got their first token in a step, and which ended with it."""

    step: Step
    started: list[Request] = field(default_factory=list)
    ended: list[Request] = field(default_factory=list)


class Pending(Protocol):
    """A step that was launched and whose tokens may not be known yet."""

    def tokens(self) -> Integers:
        """Wait for the step; one token id for each decoding row, then one for each chunk."""


class Runner(Protocol):
    """Computes steps in the order in which they are launched, on the rows as they are at the launch.

    What a row reads may be handed to another request while a step is under way; that one writes in a later step.
    """

    def launch(self, step: Step) -> Pending:
        """Start to compute a step; its slots may be written from now on."""
