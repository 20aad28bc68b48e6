"""How a kernel is compiled, and short names for the numba types in its signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit, types

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
