"""A request, from waiting to its end."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kvstead.errors import RequestError
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, to_host, whole
from kvstead.kernels.rows import MAX_TOKEN
from kvstead.prefix import Keys, Namespace, TokenKey, key_spans


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


def token_keys(keys: Iterable[TokenKey]) -> tuple[TokenKey, ...]:
    """Keys of tokens, in their order. Raises `RequestError` for anything else, `TypeError` for what is no series."""
    kept = tuple(keys)
    key_spans(kept)
    return kept


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

    request_id: an int or a string. prompt: token ids, an integer array of at least one. max_new_tokens: tokens to
    generate at most. namespace: what all tokens depend on besides their ids; keys: what ranges of them depend on, by
    position from the prompt's start. Only requests with equal ones share cached pages. stop_tokens: ids that end the
    request when generated. The scheduler fills in the rest: `tokens` are the known ids (prompt and output) while the
    request is off the memory or ended, `num_cached` the prompt tokens found in the cache when it was first admitted,
    `num_dead` those behind them that were cached but lack windows or a state, `reason` why it was rejected.
    """

    request_id: int | str
    prompt: IntArray | NDArray[np.int32]
    max_new_tokens: int
    namespace: Namespace = field(default_factory=Namespace)
    stop_tokens: tuple[int, ...] = ()
    keys: Keys = ()
    status: Status = Status.WAITING
    row: int = 0
    tokens: IntArray | NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    num_cached: int = -1
    num_dead: int = 0
    num_retractions: int = 0
    reason: str = ""

    def __repr__(self) -> str:
        sizes = f"{len(self.prompt)} prompt tokens, {self.max_new_tokens} new ones at most"
        return f"<Request {self.request_id!r}: {self.status}, {sizes}>"

    @property
    def number(self) -> int:
        """The id as an int, for callers that number their requests. Raises `RequestError` for a string."""
        if isinstance(self.request_id, str):
            raise RequestError(f"request {self.request_id!r} has no number. Give it an int as its id.")
        return self.request_id

    @property
    def owner_tag(self) -> int:
        """The tag of the pages that it takes: its id as far as 31 bits hold it, of a string a checksum."""
        own = self.request_id
        return (zlib.crc32(own.encode()) if isinstance(own, str) else own) & MAX_TOKEN

    @property
    def max_length(self) -> int:
        """Tokens of the prompt and the longest output."""
        return int(self.prompt.size) + self.max_new_tokens

    @property
    def output(self) -> IntArray | NDArray[np.int32]:
        """Generated token ids, once the request has ended."""
        return self.tokens[self.prompt.size :]


def checked(request: Request) -> None:
    """Bring a new request into the form that the scheduler works with: whole numbers, and a prompt of its own.

    Raises `RequestError`, and then changes nothing.
    """
    name = f"request {request.request_id!r}"
    if request.status is not Status.WAITING or request.tokens.size:
        state = request.status if request.status is not Status.WAITING else "added already"
        raise RequestError(f"{name} is {state}. Add a new request.")
    if not isinstance(request.request_id, (int, str, np.integer)):
        raise RequestError(f"{name} has an id of type {type(request.request_id).__name__}. Use an int or a string.")
    try:
        max_new_tokens = whole(request.max_new_tokens, "max_new_tokens")
        stop_tokens = tuple(whole(token, "a stop token") for token in request.stop_tokens)
        hash(request.namespace)
        keys = token_keys(request.keys)
    except TypeError as error:
        raise RequestError(f"{name} cannot be served: {error}") from None
    if max_new_tokens < 1:
        raise RequestError(f"{name} is to generate {max_new_tokens} tokens. Ask for at least one.")
    request.prompt = token_ids(request.prompt).copy()
    request.max_new_tokens, request.stop_tokens, request.keys = max_new_tokens, stop_tokens, keys
    if not isinstance(request.request_id, str):
        request.request_id = int(request.request_id)
