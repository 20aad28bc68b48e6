"""`Window`: which tokens a layer with a bound reads, and which a sequence keeps for it.

    window of 4, sequence of 10     position  0 1 2 3 4 5 6 7 8 9
    the last token reads                                  * * * *
    needed to go on                                       * * * *     needed_from(10) == 6

    chunk of 4, sequence of 10
    the last token reads                                      * *
    needed to go on                                           * *     needed_from(10) == 8, needed_from(12) == 12

Closed forms, exact for any length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from kvstead.errors import InvalidSize


@dataclass(frozen=True, slots=True)
class Window:
    """The bound that all bounded layers of a model share: the last `span` tokens, or chunks of `span` tokens.

    A token of a sliding window reads itself and the `span - 1` tokens before it. A token of a chunk reads itself and
    what lies before it in its chunk; chunks begin at multiples of `span`. Raises `InvalidSize` for a span below 1.
    """

    span: int
    is_chunked: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.span, int) or self.span < 1:
            raise InvalidSize(f"the window is {self.span} tokens. It must be a whole number of at least 1.")

    def needed_from(self, length: int) -> int:
        """The first position whose window side a sequence of `length` cached tokens needs to go on.

        Sliding: the whole window of the last token, `span` tokens. That is one more than the next token reads: a prefix
        can be taken up just where its last token still has all that it once read. Chunked: the tokens of the chunk that
        position `length` lies in. At a multiple of `span` a new chunk begins, which starts with nothing, so the result
        is `length`.
        """
        return length // self.span * self.span if self.is_chunked else max(0, length - self.span)

    def pages(self, page_size: int) -> int:
        """Window pages that one sequence may need at once.

        Those of `span` tokens, one more because they begin anywhere in a page, and one to write into.
        """
        return -(-self.span // page_size) + 2

    @overload
    def live_tokens(self, lengths: int) -> int: ...
    @overload
    def live_tokens(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
    def live_tokens(self, lengths: int | npt.NDArray[np.int64]) -> int | npt.NDArray[np.int64]:
        """How many positions the last token of a sequence reads, itself included.

        lengths: tokens of one sequence, or int64 of any shape, 0 or more; the result has the same shape, 0 where there
        is no token.
        """
        if isinstance(lengths, np.ndarray):
            live: npt.NDArray[np.int64] = np.minimum(lengths, self.span)
            if self.is_chunked:
                live = lengths - np.maximum(lengths - 1, 0) // self.span * self.span
            return live
        return lengths - max(lengths - 1, 0) // self.span * self.span if self.is_chunked else min(lengths, self.span)

    def pairs(self, start: int, end: int) -> int:
        """How many positions the tokens `start .. end - 1` read, summed over them: a Python int, which is exact.

        Raises `InvalidSize` unless 0 <= start <= end.
        """
        if not 0 <= start <= end:
            raise InvalidSize(f"tokens {start} .. {end} are asked for. Use 0 or more, and no end before the start.")
        return self._pairs_before(int(end)) - self._pairs_before(int(start))

    def _pairs_before(self, end: int) -> int:
        if self.is_chunked:
            num_whole, rest = divmod(end, self.span)
            return num_whole * _triangle(self.span) + _triangle(rest)
        rising = min(end, self.span)
        return _triangle(rising) + (end - rising) * self.span


def _triangle(num: int) -> int:
    return num * (num + 1) // 2
