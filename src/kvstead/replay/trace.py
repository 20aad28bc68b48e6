"""A trace: when requests arrived, how long they are, and which prefix blocks their prompts are made of.

Request 1 carries no ids; the last block may be partial, so a prompt has ceil(prompt_len / block_size) blocks:

    block_offsets    0           3   3       5
    block_ids        [ 0  1  2 ]     [ 0  3 ]
                       |               |
                       +---- equal ----+    the two prompts begin with the same block
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstead.errors import TraceError
from kvstead.replay.tokens import FIRST_OUTPUT_TOKEN, PromptTokens

_COLUMNS = ("arrivals", "prompt_lens", "output_lens", "block_sizes", "block_offsets", "block_ids", "follows", "delays")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trace:
    """At least one request, in order of arrival, as read-only columns.

    arrivals: float64[n], seconds since the trace's first row, ascending; rows of equal time keep the file's order.
    prompt_lens, output_lens: int64[n], tokens, both at least 1.
    block_sizes: int64[n], tokens per block of this request's ids; 0 where the request carries no ids.
    block_offsets: int64[n + 1]; request i has `block_ids[block_offsets[i]:block_offsets[i + 1]]`.
    block_ids: int64[*], numbered from 0, without gaps where a reader made them; equal ids mean equal tokens.
    follows: int64[n], the request whose end a request waits for (a turn of the same session), -1 for none. delays:
    float64[n], seconds from that end to its arrival, which `arrivals` gives a lower bound of. By default none follows.
    problems: one sentence for each of the first rows that were left out, with file and line. num_left_out: how many
    rows were. guesses: what the file did not say and was assumed, a sentence each.
    num_blocks: distinct block ids, counted as the highest plus one.

    Raises `TraceError` if the columns are inconsistent.
    """

    name: str
    format: str
    arrivals: NDArray[np.float64]
    prompt_lens: NDArray[np.int64]
    output_lens: NDArray[np.int64]
    block_sizes: NDArray[np.int64]
    block_offsets: NDArray[np.int64]
    block_ids: NDArray[np.int64]
    problems: tuple[str, ...] = ()
    follows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    delays: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    num_left_out: int = 0
    guesses: tuple[str, ...] = ()
    num_blocks: int = field(init=False)
    _tokens: PromptTokens = field(init=False)
    _output_starts: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_left_out", max(self.num_left_out, len(self.problems)))
        if not self.follows.size:
            object.__setattr__(self, "follows", np.full(len(self.arrivals), -1))
            object.__setattr__(self, "delays", np.zeros(len(self.arrivals)))
        _require_consistent(self)
        for name in _COLUMNS:
            column = getattr(self, name).view()
            column.setflags(write=False)
            object.__setattr__(self, name, column)
        object.__setattr__(self, "num_blocks", int(self.block_ids.max(initial=-1)) + 1)
        object.__setattr__(self, "_tokens", _prompt_tokens(self))
        starts = np.cumsum(self.output_lens) - self.output_lens
        # Ids start over only after 2^30 generated tokens; no request runs past the end of the range.
        starts %= FIRST_OUTPUT_TOKEN - int(self.output_lens.max()) + 1
        object.__setattr__(self, "_output_starts", starts)

    def __len__(self) -> int:
        return len(self.arrivals)

    def __repr__(self) -> str:
        return f"Trace({self.name!r}, {self.format}, {len(self)} requests, {self.num_left_out} rows left out)"

    @property
    def has_reuse(self) -> bool:
        """Whether any request carries prefix ids; without them nothing is known about reuse."""
        return len(self.block_ids) > 0

    @property
    def block_size(self) -> int | None:
        """Tokens per block; None where no request carries ids, or merged files differ (then see `block_sizes`)."""
        sizes = np.unique(self.block_sizes[self.block_sizes > 0])
        return int(sizes[0]) if len(sizes) == 1 else None

    def blocks(self, request: int) -> NDArray[np.int64]:
        """The prefix block ids of one request: a read-only view, empty where it carries none."""
        return self.block_ids[self.block_offsets[request] : self.block_offsets[request + 1]]

    def prompt_tokens(self, request: int) -> NDArray[np.int32]:
        """The prompt's token ids: int32[prompt_len] in [0, 2^30), the caller's own.

        Made from the block ids alone: equal blocks give equal tokens, different blocks differ at every offset. A
        request without ids shares no token with any other. Not bounded by a vocabulary.
        """
        num_tokens = int(self.prompt_lens[request])
        block_size = int(self.block_sizes[request])
        if block_size == 0:
            return self._tokens.of_block(self.num_blocks + request, num_tokens)
        return self._tokens.of_blocks(self.blocks(request), block_size, num_tokens)

    def output_token_base(self, request: int) -> int:
        """The id of the first token this request generates; the j-th is `base + j`, and all are below 2^31.

        At least 2^30, so no generated token equals a prompt token. Two requests share generated ids only when they lie
        more than 2^30 generated tokens apart in the trace.
        """
        return FIRST_OUTPUT_TOKEN + int(self._output_starts[request])


def by_arrival(
    *,
    name: str,
    format: str,  # noqa: A002 - the field's own name
    arrivals: NDArray[np.float64],
    prompt_lens: NDArray[np.int64],
    output_lens: NDArray[np.int64],
    block_sizes: NDArray[np.int64],
    block_counts: NDArray[np.int64],
    block_ids: NDArray[np.int64],
    follows: NDArray[np.int64] | None = None,
    delays: NDArray[np.float64] | None = None,
    **notes: Any,
) -> Trace:
    """A trace of rows in any order: sorted by arrival, rows of equal time kept in the order given.

    block_counts: int64[n], ids of each row; they follow each other in `block_ids`. follows: by the order given. Other
    columns, and notes (`problems`, `num_left_out`, `guesses`), as in `Trace`.
    """
    order = np.argsort(arrivals, kind="stable")
    counts = block_counts[order]
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    # Where the ids of each sorted row lie in the unsorted array.
    source = np.arange(offsets[-1]) + np.repeat((np.cumsum(block_counts) - block_counts)[order] - offsets[:-1], counts)
    num = len(arrivals)
    places = np.full(num + 1, -1)  # of each row in the new order; the last entry is that of no row
    places[order] = np.arange(num)
    return Trace(
        name=name,
        format=format,
        arrivals=arrivals[order],
        prompt_lens=prompt_lens[order],
        output_lens=output_lens[order],
        block_sizes=block_sizes[order],
        block_offsets=offsets,
        block_ids=block_ids[source],
        follows=places[np.full(num, -1) if follows is None else follows[order]],
        delays=np.zeros(num) if delays is None else delays[order],
        **notes,
    )


def merge(traces: Sequence[Trace]) -> Trace:
    """Several traces at once, each starting at time 0, by arrival; requests of equal time in the order of `traces`.

    Block ids of different traces stay different, even where the numbers in the files are equal; block sizes may differ.
    Raises `TraceError` when `traces` is empty.
    """
    if not traces:
        raise TraceError("There is no trace to merge. Name at least one file.")
    if len(traces) == 1:
        return traces[0]
    first_ids = np.cumsum([0] + [trace.num_blocks for trace in traces])
    first_rows = np.cumsum([0] + [len(trace) for trace in traces])
    formats = {trace.format for trace in traces}
    return by_arrival(
        name=" + ".join(trace.name for trace in traces),
        format=formats.pop() if len(formats) == 1 else "mixed",
        arrivals=np.concatenate([trace.arrivals for trace in traces]),
        prompt_lens=np.concatenate([trace.prompt_lens for trace in traces]),
        output_lens=np.concatenate([trace.output_lens for trace in traces]),
        block_sizes=np.concatenate([trace.block_sizes for trace in traces]),
        block_counts=np.concatenate([np.diff(trace.block_offsets) for trace in traces]),
        block_ids=np.concatenate([trace.block_ids + first for trace, first in zip(traces, first_ids, strict=False)]),
        follows=np.concatenate(
            [
                np.where(trace.follows < 0, -1, trace.follows + first)
                for trace, first in zip(traces, first_rows, strict=False)
            ]
        ),
        delays=np.concatenate([trace.delays for trace in traces]),
        problems=tuple(problem for trace in traces for problem in trace.problems),
        num_left_out=sum(trace.num_left_out for trace in traces),
        guesses=tuple(f"{trace.name}: {guess}" for trace in traces for guess in trace.guesses),
    )


def _prompt_tokens(trace: Trace) -> PromptTokens:
    """Token ids for every block; a prompt without ids is one block of its own, numbered behind those that have ids."""
    has_ids = trace.block_sizes > 0
    longest = int(trace.prompt_lens.max())
    num_blocks = trace.num_blocks + (0 if has_ids.all() else len(trace))
    # A size of 0 does not change a gcd. Prompts without ids need no common size; a power of two is easy to divide.
    common_size = int(np.gcd.reduce(trace.block_sizes)) or 1 << (longest - 1).bit_length()
    return PromptTokens.for_blocks(num_blocks, common_size, longest)


def _require_consistent(trace: Trace) -> None:
    """Raise `TraceError` for the first fault of the columns."""
    num = len(trace.arrivals)
    columns: dict[str, tuple[NDArray[Any], type[np.generic], int]] = {
        "arrivals": (trace.arrivals, np.float64, num),
        "prompt_lens": (trace.prompt_lens, np.int64, num),
        "output_lens": (trace.output_lens, np.int64, num),
        "block_sizes": (trace.block_sizes, np.int64, num),
        "block_offsets": (trace.block_offsets, np.int64, num + 1),
        "follows": (trace.follows, np.int64, num),
        "delays": (trace.delays, np.float64, num),
    }
    for column, (values, dtype, length) in columns.items():
        if values.dtype != dtype or values.shape != (length,):
            raise TraceError(
                f"{trace.name}: {column} is {values.dtype}{list(values.shape)}. "
                f"It must be {np.dtype(dtype)}[{length}], as `arrivals` has {num} rows."
            )
    faults = {
        "has no request": num == 0,
        "has arrivals that are negative, not finite or not ascending": not _is_ascending_from_zero(trace.arrivals),
        "has empty prompts": bool((trace.prompt_lens < 1).any()),
        "has empty outputs": bool((trace.output_lens < 1).any()),
        "has turns that follow no earlier request": bool((trace.follows >= np.arange(num)).any()),
        "has negative delays": bool(not (trace.delays >= 0).all()),
        "has negative block sizes or ids": bool((trace.block_sizes < 0).any() or (trace.block_ids < 0).any()),
        "has a number of block ids other than ceil(prompt length / block size)": not _has_its_blocks(trace),
    }
    for fault, found in faults.items():
        if found:
            raise TraceError(f"{trace.name} {fault}. Correct these rows or leave them out.")


def _is_ascending_from_zero(arrivals: NDArray[np.float64]) -> bool:
    return bool(np.isfinite(arrivals).all() and (np.diff(arrivals, prepend=0.0) >= 0).all())


def _has_its_blocks(trace: Trace) -> bool:
    sizes = np.maximum(trace.block_sizes, 1)
    expected = np.where(trace.block_sizes > 0, -(-trace.prompt_lens // sizes), 0)
    offsets = trace.block_offsets
    starts_at_zero = len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == len(trace.block_ids)
    return bool(starts_at_zero and np.array_equal(np.diff(offsets), expected))
