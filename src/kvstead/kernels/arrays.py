"""The door between callers' arrays and the host's: int64 numpy in, int64 torch out."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from operator import index
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from kvstead.errors import InvalidSize
from kvstead.kernels.array_types import IntArray

# Any integer sequence, array or tensor, on any device, of any shape.
Integers: TypeAlias = Sequence[int] | np.ndarray | torch.Tensor

_INT64 = np.dtype(np.int64)
_MOST_ADDRESSED = 1 << 46  # bytes; a process has 2^47 addresses on the common machines
_MAP_NORESERVE = 0x4000  # Linux: memory is counted when it is first written


def whole(value: SupportsIndex, what: str) -> int:
    """A number as a Python int, which does not wrap as numpy's do. Raises `TypeError` for one that is not whole."""
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}. Pass a whole number.") from None


def untouched(shape: tuple[int, int], dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """An array of any content that takes memory only where it is written, also one that is larger than the memory.

    Raises `InvalidSize` for more than 2^46 bytes.
    """
    num_bytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
    if num_bytes > _MOST_ADDRESSED:
        raise InvalidSize(
            f"{shape[0] - 1:,} rows of {shape[1]:,} tokens take {num_bytes:,} bytes, and a table has 2^46 at most. "
            "Run fewer requests at once, or shorter ones."
        )
    try:
        return np.empty(shape, dtype=dtype)
    except MemoryError:
        if sys.platform != "linux":
            raise
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE)
    return np.frombuffer(memory, dtype=dtype).reshape(shape)


def to_host(values: Integers) -> IntArray:
    """`values` as a flat, contiguous int64 array on the host.

    Shares memory where it can (a contiguous, aligned, writable int64 array, or such a tensor on the CPU; kernels are
    compiled for these alone). A tensor on another device is copied to the host, which waits for that device. Raises
    `TypeError` when the values are no integers.
    """
    if isinstance(values, np.ndarray):
        if values.dtype is _INT64 and values.ndim == 1 and values.flags.carray:
            return values
        array = values
    elif isinstance(values, torch.Tensor):
        array = values.numpy() if values.is_cpu else values.cpu().numpy()
    else:
        array = np.asarray(values)
    if array.dtype is not _INT64 and array.dtype != _INT64:
        if array.size and array.dtype.kind not in "iu":
            raise TypeError(f"expected integers, got {array.dtype}. Pass slots, pages and lengths as an integer type.")
        array = array.astype(_INT64)
    if array.ndim != 1:
        array = array.reshape(-1)
    return array if array.flags.carray else array.copy()


def to_device(array: IntArray, device: torch.device) -> torch.Tensor:
    """The array as a tensor: shared on the CPU, else copied to `device` without waiting for it."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def hand_out(array: IntArray, slots: Integers, out: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """`array` as a tensor in the shape of `slots`: `out`, if there is one, else a new one on `device`.

    Raises `InvalidSize` for an `out` of another shape or type, which is then as it was.
    """
    shape = np.shape(slots)
    if out is None:
        return to_device(array, device).reshape(shape)
    if out.shape != shape or out.dtype != torch.int64:
        raise InvalidSize(
            f"out is {out.dtype} of shape {tuple(out.shape)}, for slots of shape {tuple(shape)}. Pass int64 in the "
            "shape of the slots."
        )
    return out.copy_(torch.from_numpy(array).reshape(shape), non_blocking=True)
