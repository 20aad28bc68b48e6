"""kvstead's manager of a model with sliding windows under the clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from kvstead.engine import KVCacheManager
from kvstead.model import ModelLayout, load_layout
from sides import WIDTH, Call

_MODEL = "gemma-3-27b"


class KVSteadBatch:
    """Running requests that have nothing in the prefix cache."""

    def __init__(self, lengths: Sequence[int], span: int, page_size: int) -> None:
        layout: ModelLayout = load_layout(_MODEL)
        num_rows = len(lengths)
        self._manager = KVCacheManager(
            layout,
            num_slots=num_rows * WIDTH,
            num_window_slots=2 * num_rows * span,
            page_size=page_size,
            max_requests=num_rows,
            max_length=WIDTH,
            storage=False,
        )
        assert self._manager.window is not None and self._manager.window.span == span, "the model's own window"  # noqa: PT018
        leases = [self._manager.match(np.arange(length)) for length in lengths]
        self._rows = np.array([lease.row for lease in leases if lease is not None])
        self._seq = np.array(lengths)
        self._tokens = np.zeros_like(self._seq)
        assert self._manager.extend(self._rows, self._seq) is not None, "the pool is made large enough"
        self._manager.commit(self._rows, self._seq, self._tokens)

    def decode_call(self) -> Call:
        """It frees what has fallen out of windows, allocates and writes the rows."""
        return partial(self._manager.decode, self._rows)

    def commit(self) -> None:
        """The rows' tokens are computed, and the next ones known."""
        self._seq += 1
        self._manager.commit(self._rows, self._seq, self._tokens)

    def released(self) -> int:
        """Window slots freed so far."""
        return int(self._manager.window_start[self._rows].sum())
