"""A request, from waiting to its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kvstead.errors import RequestError
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, to_host
from kvstead.kernels.rows import MAX_TOKEN
from kvstead.prefix import Namespace


def token_ids(tokens: Integers) -> NDArray[np.int32] | IntArray:
    """Token ids as a flat array on the host. Raises `RequestError` when there are none or one is not 0 .. 2**31 - 1."""
    ids: NDArray[np.int32] | IntArray
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and tokens.ndim == 1 and tokens.flags.carray:
        ids = tokens
    else:
        ids = to_host(tokens)
    if ids.size == 0:
        raise RequestError("there are no tokens. Give at least one, a start token if the prompt is empty.")
    low, high = int(ids.min()), 0 if ids.dtype == np.int32 else int(ids.max())
    if low < 0 or high > MAX_TOKEN:
        raise RequestError(f"token ids reach from {low} to {high}. Use ids of 0 .. {MAX_TOKEN}.")
    return ids


class Status(StrEnum):
    """Where a request stands between its queueing and its end."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    ABORTED = "aborted"
    REJECTED = "rejected"


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and how far to go on from it.

    prompt: token ids, an integer array of at least one. max_new_tokens: tokens to generate at most. stop_tokens: ids
    that end the request when generated. The scheduler fills in the rest: `tokens` are the known ids (prompt and output)
    while the request is off the memory or ended, `num_cached` the prompt tokens found in the cache when it was first
    admitted, `num_dead` those behind them that were cached but lack windows or a state, `reason` why it was rejected.
    """

    request_id: int
    prompt: IntArray | NDArray[np.int32]
    max_new_tokens: int
    namespace: Namespace = field(default_factory=Namespace)
    stop_tokens: tuple[int, ...] = ()
    status: Status = Status.WAITING
    row: int = 0
    tokens: IntArray | NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    num_cached: int = -1
    num_dead: int = 0
    num_retractions: int = 0
    reason: str = ""

    @property
    def max_length(self) -> int:
        """Tokens of the prompt and the longest output."""
        return int(self.prompt.size) + self.max_new_tokens

    @property
    def output(self) -> IntArray | NDArray[np.int32]:
        """Generated token ids, once the request has ended."""
        return self.tokens[self.prompt.size :]
