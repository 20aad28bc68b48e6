"""How caches are stored: the choices that a configuration leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from kvstead.errors import InvalidSize, LayoutError
from kvstead.model.kinds import PACKED_LATENT, dtype_bytes
from kvstead.model.state import StateOptions

ConvColumns = Literal["kernel-1", "kernel"]

_DROPPED_COLUMNS: dict[str, int] = {"kernel-1": 1, "kernel": 0}


class LayoutKeywords(TypedDict, total=False):
    """The keywords of `ModelLayout.from_config` except `name`, for functions that pass them on."""

    cache_dtype: str
    state_dtype: str
    conv_dtype: str
    conv_columns: ConvColumns
    tensor_parallel: int


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """How caches are stored. Raises `LayoutError` for an unknown choice, `InvalidSize` for fewer ranks than one."""

    cache_dtype: str = "bfloat16"
    state_dtype: str = "float32"
    conv_dtype: str = "bfloat16"
    conv_columns: ConvColumns = "kernel-1"
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        for dtype in (
            self.state_dtype,
            self.conv_dtype,
            *([] if self.cache_dtype == PACKED_LATENT else [self.cache_dtype]),
        ):
            dtype_bytes(dtype)
        if self.conv_columns not in _DROPPED_COLUMNS:
            raise LayoutError(f"conv_columns is {self.conv_columns!r}. Use one of {', '.join(_DROPPED_COLUMNS)}.")
        if self.tensor_parallel < 1:
            raise InvalidSize(f"tensor_parallel is {self.tensor_parallel}. It must be at least 1.")

    @property
    def state(self) -> StateOptions:
        """The options of recurrent states."""
        return StateOptions(
            self.state_dtype, self.conv_dtype, _DROPPED_COLUMNS[self.conv_columns], self.tensor_parallel
        )
