"""Hypothesis strategies for traces, and traces from plain lists."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvstead.replay.trace import Trace, by_arrival

Rows = list[tuple[float, int, int, list[int] | None]]  # arrival, prompt length, output length, block ids


def make_trace_of(rows: Rows, block_size: int, *, name: str = "made", **fields: Any) -> Trace:
    """A trace of rows in any order; None for the ids of a row that carries none."""
    ids = [row[3] or [] for row in rows]
    return by_arrival(
        name=name,
        format=fields.get("format", "mooncake"),
        arrivals=np.array([row[0] for row in rows], dtype=np.float64),
        prompt_lens=np.array([row[1] for row in rows], dtype=np.int64),
        output_lens=np.array([row[2] for row in rows], dtype=np.int64),
        block_sizes=np.array([0 if row[3] is None else block_size for row in rows], dtype=np.int64),
        block_counts=np.array([len(row) for row in ids], dtype=np.int64),
        block_ids=np.array([block for row in ids for block in row], dtype=np.int64),
        problems=fields.get("problems", ()),
        follows=fields.get("follows"),
        delays=fields.get("delays"),
    )


@st.composite
def rows(draw: st.DrawFn, block_size: int) -> Rows:
    """Up to eight requests over a tree of few blocks, some without ids."""
    made: Rows = []
    for _ in range(draw(st.integers(1, 8))):
        arrival = draw(st.integers(0, 20)) / 4
        prompt_len = draw(st.integers(1, 5 * block_size))
        num_blocks = -(-prompt_len // block_size)
        block_ids = draw(st.none() | st.lists(st.integers(0, 7), min_size=num_blocks, max_size=num_blocks))
        made.append((arrival, prompt_len, draw(st.integers(1, 9)), block_ids))
    return made


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A small trace with blocks of 1 to 8 tokens."""
    block_size = draw(st.integers(1, 8))
    return make_trace_of(draw(rows(block_size)), block_size)
