"""Token ids of any 64 bits in a tree that keeps 32: SGLang pads images with ids of 62 bits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvstead.kernels.array_types import IntArray
from kvstead.kernels.tokens import TokenArray

_UNKNOWN = np.iinfo(np.int32).min  # the code of ids that were never kept: no key in a tree has it
_LARGEST = np.iinfo(np.int32).max


class TokenCodes:
    """Gives every id below 0 or outside int32 a code of its own below 0. Other ids stand for themselves."""

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}
        self._ids: dict[int, int] = {}
        self._next = -1
        self._limit = 1024

    def __len__(self) -> int:
        return len(self._codes)

    def encode(self, tokens: IntArray, *, keep: bool) -> IntArray:
        """Ids as codes, the same array where all stand for themselves. keep: give codes to ids that have none yet."""
        is_wide = (tokens < 0) | (tokens > _LARGEST)
        if not is_wide.any():
            return tokens
        ids, places = np.unique(tokens[is_wide], return_inverse=True)
        codes = [self._code(each, keep=keep) for each in ids.tolist()]
        coded = tokens.copy()
        coded[is_wide] = np.array(codes, dtype=np.int64)[places]
        return coded

    def decode(self, tokens: TokenArray) -> IntArray:
        """The ids that codes stand for: int64[n]."""
        ids = tokens.astype(np.int64)
        for at in np.flatnonzero(tokens < 0).tolist():
            ids[at] = self._ids[int(tokens[at])]
        return ids

    @property
    def is_crowded(self) -> bool:
        """Whether there are so many codes that it pays to drop those which no key has any more."""
        return len(self._codes) > self._limit

    def drop_unused(self, used: Iterable[TokenArray]) -> None:
        """Drop codes that are in none of these keys."""
        live: set[int] = set()
        for tokens in used:
            live.update(tokens[tokens < 0].tolist())
        self._ids = {code: each for code, each in self._ids.items() if code in live}
        self._codes = {each: code for code, each in self._ids.items()}
        self._limit = max(1024, 2 * len(self._codes))

    def _code(self, wide: int, *, keep: bool) -> int:
        code = self._codes.get(wide, _UNKNOWN)
        if code == _UNKNOWN and keep:
            code, self._next = self._next, self._next - 1
            self._codes[wide], self._ids[code] = code, wide
        return code
