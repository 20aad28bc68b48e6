"""The requests that hold memory, and what the scheduler notes of each by its row."""

from __future__ import annotations

import numpy as np

from kvstead.engine.request import Request, Status
from kvstead.kernels.array_types import IntArray


class RunningRequests:
    """Requests on the memory.

    active: by row, in the order of admission. prefilling: those of them in the middle of their prompt, in that order
    too. ended: by row, requests that ended while a step that holds the row was under way. target: int64[rows + 1],
    tokens at which the row ends. last_step: int64[rows + 1], the last planned step that holds the row. num_stopping:
    active requests with stop tokens.
    """

    def __init__(self, num_rows: int) -> None:
        self.active: dict[int, Request] = {}
        self.prefilling: list[Request] = []
        self.ended: dict[int, Request] = {}
        self.target: IntArray = np.zeros(num_rows + 1, dtype=np.int64)
        self.last_step: IntArray = np.zeros(num_rows + 1, dtype=np.int64)
        self.num_stopping = 0
        self._decoding: IntArray | None = None  # None when to be listed anew

    def __len__(self) -> int:
        return len(self.active) + len(self.ended)

    def begin(self, request: Request, row: int) -> None:
        """Put a request on its row; its prompt comes first."""
        request.row = row
        request.status = Status.PREFILL
        self.active[row] = request
        self.prefilling.append(request)
        self.target[row] = request.max_length
        self.num_stopping += bool(request.stop_tokens)

    def start_decoding(self, request: Request) -> None:
        """Note that the last chunk of a prompt is planned."""
        request.status = Status.DECODE
        self.prefilling.remove(request)
        self._decoding = None

    def leave(self, request: Request) -> None:
        """Take a request out of the batch."""
        del self.active[request.row]
        if request in self.prefilling:
            self.prefilling.remove(request)
        self._decoding = None
        self.num_stopping -= bool(request.stop_tokens)

    def decoding(self) -> IntArray:
        """The rows of requests that decode, int64[*], in the order of admission; not to be written."""
        if self._decoding is None:
            rows = [row for row, request in self.active.items() if request.status is Status.DECODE]
            self._decoding = np.array(rows, dtype=np.int64)
        return self._decoding

    def held_after(self, step: int) -> list[Request]:
        """Active requests that a step after `step` holds, the last admitted first."""
        return [request for row, request in reversed(self.active.items()) if self.last_step[row] > step]

    def pop_ended(self, step: int) -> list[Request]:
        """Take out the requests that ended and that no step after `step` holds."""
        return [self.ended.pop(row) for row in list(self.ended) if self.last_step[row] <= step]
