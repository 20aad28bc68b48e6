"""`Window`: the tokens that a layer with a window or chunk reads, and those that a sequence keeps for it.

    window of 4, sequence of 10     position  0 1 2 3 4 5 6 7 8 9
    the last token reads                                  * * * *
    needed to continue                                    * * * *     needed_from(10) == 6

    chunk of 4, sequence of 10
    the last token reads                                      * *
    needed to continue                                        * *     needed_from(10) == 8, needed_from(12) == 12

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
    """The bound of a model's window layers: the last `span` tokens, or chunks of `span` tokens.

    In a sliding window a token reads itself and the `span - 1` tokens before it. In a chunk it reads itself and the
    tokens before it in its chunk; chunks begin at multiples of `span`. Raises `InvalidSize` for a span below 1.
    """

    span: int
    is_chunked: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.span, int) or self.span < 1:
            raise InvalidSize(f"the window is {self.span} tokens. Use a whole number of at least 1.")

    def needed_from(self, length: int) -> int:
        """The first position whose window side a sequence of `length` cached tokens needs to continue.

        Sliding: the `span` tokens of the last token's window. That is one more than the next token reads, because a
        prefix can be reused only where its last token still has its whole window. Chunked: the tokens of the chunk that
        contains position `length`. At a multiple of `span` a new, empty chunk begins, and the result is `length`.
        """
        return length // self.span * self.span if self.is_chunked else max(0, length - self.span)

    def pages(self, page_size: int) -> int:
        """Window pages that one sequence may need at once.

        The pages of `span` tokens, one more because a window may begin anywhere in a page, and one to write to.
        """
        return -(-self.span // page_size) + 2

    @overload
    def live_tokens(self, lengths: int) -> int: ...
    @overload
    def live_tokens(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
    def live_tokens(self, lengths: int | npt.NDArray[np.int64]) -> int | npt.NDArray[np.int64]:
        """How many positions the last token of a sequence reads, itself included.

        lengths: the length of one sequence, or int64 of any shape, 0 or more. The result has the same shape; it is 0
        for an empty sequence.
        """
        if isinstance(lengths, np.ndarray):
            live: npt.NDArray[np.int64] = np.minimum(lengths, self.span)
            if self.is_chunked:
                live = lengths - np.maximum(lengths - 1, 0) // self.span * self.span
            return live
        return lengths - max(lengths - 1, 0) // self.span * self.span if self.is_chunked else min(lengths, self.span)

    def pairs(self, start: int, end: int) -> int:
        """How many positions the tokens `start .. end - 1` read in total, as an exact Python int.

        Raises `InvalidSize` unless 0 <= start <= end.
        """
        if not 0 <= start <= end:
            raise InvalidSize(
                f"the range of tokens is {start} .. {end}. Use a start of 0 or more, and no end before it."
            )
        return self._pairs_before(int(end)) - self._pairs_before(int(start))

    def _pairs_before(self, end: int) -> int:
        if self.is_chunked:
            num_whole, rest = divmod(end, self.span)
            return num_whole * _triangle(self.span) + _triangle(rest)
        rising = min(end, self.span)
        return _triangle(rising) + (end - rising) * self.span


def _triangle(num: int) -> int:
    return num * (num + 1) // 2
