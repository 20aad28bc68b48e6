"""What a layer of a model caches and how: entries per token, a state per sequence, or nothing of its own.

Every figure is for one tensor-parallel rank, and a Python int, so that no product can overflow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import Literal, TypedDict, get_args

from kvstead.errors import InvalidSize, LayoutError
from kvstead.model.window import Window

PACKED_LATENT = "fp8_ds_mla"
"""Pseudo dtype of a latent entry: fp8 latent, one float32 scale per 128 elements, bfloat16 rope: 656 B for 512 + 64."""

_DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2} | dict.fromkeys(
    ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int8", "uint8"), 1
)

ConvColumns = Literal["kernel-1", "kernel"]


class CacheKind(StrEnum):
    """What decides the size and lifetime of a pool's entries."""

    FULL = "full"  # keys and values of every token
    WINDOW = "window"  # keys and values of the last `window` tokens
    CHUNK = "chunk"  # keys and values of the tokens in the current chunk
    LATENT = "latent"  # one compressed latent of every token (MLA)
    STATE = "state"  # a fixed size per sequence
    CROSS = "cross"  # keys and values of an encoder's output


WHOLE_SEQUENCE = (CacheKind.FULL, CacheKind.LATENT)
BOUNDED = (CacheKind.WINDOW, CacheKind.CHUNK)


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element. Raises `LayoutError` for a dtype that caches do not have."""
    if dtype not in _DTYPE_BYTES:
        raise LayoutError(f"{dtype!r} is not a cache dtype. Use one of {', '.join(_DTYPE_BYTES)}.")
    return _DTYPE_BYTES[dtype]


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
        for dtype in (self.state_dtype, self.conv_dtype):
            dtype_bytes(dtype)
        if self.cache_dtype != PACKED_LATENT:
            dtype_bytes(self.cache_dtype)
        if self.conv_columns not in get_args(ConvColumns):
            raise LayoutError(f"conv_columns is {self.conv_columns!r}. Use one of {', '.join(get_args(ConvColumns))}.")
        if self.tensor_parallel < 1:
            raise InvalidSize(f"tensor_parallel is {self.tensor_parallel}. It must be at least 1.")


@dataclass(frozen=True, slots=True)
class TokenCache:
    """What one layer keeps per token on this rank.

    `num_heads` heads of `key_dim` and `value_dim` elements. A latent entry has one head; its latent and rope part
    count as key, and `value_dim` is 0. `span` is the window or chunk in tokens, None without a bound. `index_bytes` is
    the key of a sparse-attention indexer beside the entry.
    """

    kind: CacheKind
    num_heads: int
    key_dim: int
    value_dim: int
    dtype: str
    key_bytes: int
    value_bytes: int
    span: int | None = None
    index_bytes: int = 0

    @property
    def token_bytes(self) -> int:
        """Bytes per token: key, value and indexer key."""
        return self.key_bytes + self.value_bytes + self.index_bytes

    def live_tokens(self, num_tokens: int) -> int:
        """How many tokens of a sequence of `num_tokens` are still held.

        A window holds the last `span` tokens. A chunk is dropped whole when the next one begins: of chunks of 8,192, a
        sequence of 8,192 tokens holds all, one of 8,193 holds one.
        """
        if self.span is None:
            return num_tokens
        return Window(self.span, self.kind is CacheKind.CHUNK).live_tokens(num_tokens)


@dataclass(frozen=True, slots=True)
class StatePart:
    """One tensor of a layer's recurrent state, for one sequence and on this rank."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_bytes", prod(self.shape) * dtype_bytes(self.dtype))


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What layer `index` keeps.

    `tokens` is None for a layer that owns no entries per token; `state` is empty for a layer without a state. A layer
    that reads the entries of another has `shared_kind` set and that layer's index in `shared_with`, or None when the
    owner is in another model (a draft model that reads its target's cache).
    """

    index: int
    tokens: TokenCache | None = None
    state: tuple[StatePart, ...] = ()
    shared_kind: CacheKind | None = None
    shared_with: int | None = None

    @property
    def kinds(self) -> tuple[CacheKind, ...]:
        """The kinds that this layer owns: none, one or two."""
        tokens = () if self.tokens is None else (self.tokens.kind,)
        return (*tokens, CacheKind.STATE) if self.state else tokens

    @property
    def token_bytes(self) -> int:
        """Bytes per token that this layer owns; 0 where it shares another's entries."""
        return 0 if self.tokens is None else self.tokens.token_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of this layer's state per sequence."""
        return sum(part.num_bytes for part in self.state)
