"""How a kernel is compiled, and the array types that kernels work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]  # slots, pages, lengths
TagArray: TypeAlias = NDArray[np.int32]  # owner tags
StateArray: TypeAlias = NDArray[np.uint8]  # page states
WordArray: TypeAlias = NDArray[np.uint64]  # bitmap words

i64 = types.int64
I64 = types.int64[::1]
I32 = types.int32[::1]
U8 = types.uint8[::1]
U64 = types.uint64[::1]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(signature: object) -> Callable[[_Function], _Function]:
    """Compile for one signature and keep the machine code on disk; the GIL is released while it runs."""
    compiled = njit(signature, cache=True, error_model="numpy", nogil=True)
    return cast("Callable[[_Function], _Function]", compiled)
