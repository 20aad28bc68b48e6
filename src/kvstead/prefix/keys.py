"""Token ids as the tree compares them."""

from __future__ import annotations

from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from kvstead.errors import RequestError
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.tokens import TokenArray, narrow

# int32[n] or int64[n] on the host.
Tokens: TypeAlias = NDArray[np.int32] | NDArray[np.int64]

_TOKEN_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))


def key_of(tokens: Tokens, page_size: int) -> TokenArray:
    """The whole pages of `tokens` as contiguous int32, sharing memory where possible. Raises `RequestError`."""
    dtype = getattr(tokens, "dtype", None)
    if dtype not in _TOKEN_DTYPES or tokens.ndim != 1 or not isinstance(tokens, np.ndarray):
        kind, shape = dtype or type(tokens).__name__, getattr(tokens, "shape", "unknown")
        raise RequestError(f"tokens are {kind} of shape {shape}. Pass a flat numpy array of int32 or int64 ids.")
    whole = np.ascontiguousarray(tokens[: tokens.size - tokens.size % page_size])
    if dtype == np.int32:
        return cast("TokenArray", whole)
    key: TokenArray = np.empty(whole.size, dtype=np.int32)
    bad = narrow(cast("IntArray", whole), key)
    if bad >= 0:
        raise RequestError(f"token {whole[bad]} at position {bad} does not fit int32. Pass ids of a vocabulary.")
    return key
