"""What one pool of a unified buffer keeps, as SGLang describes it.

An entry is one token (or one request's state) over all layers of the pool:

    MHA      | K 0 | V 0 | K 1 | V 1 | ...                      | pad to 16 bytes |
    MLA      | latent 0 | latent 1 | ...                        | pad to 16 bytes |
    Mamba    | conv 0 of each layer | conv 1 of each layer | ... | temporal of each layer |
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import prod
from typing import Any, NamedTuple

import torch

from kvstead.errors import LayoutError

_ENTRY_ALIGN = 16  # bytes


class LayerParts(NamedTuple):
    """One tensor a layer: `shape` elements of `dtype` from byte `start` of an entry on, `stride` bytes to the next."""

    start: int
    stride: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of one layer's tensor."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class SubPoolSpec:
    """name: of the pool. layer_num: layers that it serves. grow_direction: "up", "down" or "float" (in between).

    Raises `LayoutError` for another direction or for no layers.
    """

    _: KW_ONLY
    name: str
    layer_num: int
    grow_direction: str
    draft_region: None = None

    def __post_init__(self) -> None:
        if self.grow_direction not in {"up", "down", "float"} or self.layer_num < 1:
            raise LayoutError(
                f"pool {self.name!r} has grow_direction {self.grow_direction!r} and layer_num {self.layer_num}. Use "
                "up, down or float, and 1 layer or more."
            )

    def entry_bytes(self) -> int:
        """Bytes of one entry over all layers, with padding."""
        num_bytes = self.host_entry_bytes()
        return num_bytes if is_state(self) else -(-num_bytes // _ENTRY_ALIGN) * _ENTRY_ALIGN

    def host_entry_bytes(self) -> int:
        """Bytes of one entry over all layers, without padding."""
        return self.layer_num * sum(part.num_bytes for part in layer_parts(self))

    def get_dtype(self) -> torch.dtype:
        """The dtype in which its first tensors are stored."""
        return layer_parts(self)[0].dtype


@dataclass(frozen=True)
class MHASubPoolSpec(SubPoolSpec):
    """Keys and values of `head_num` heads.

    v_head_dim: `head_dim` if not given. kv_cache_dtype: what is stored as `store_dtype`; itself if not given.
    """

    head_num: int
    head_dim: int
    store_dtype: torch.dtype
    kv_cache_dtype: torch.dtype | None = None
    v_head_dim: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "kv_cache_dtype", self.kv_cache_dtype or self.store_dtype)
        object.__setattr__(self, "v_head_dim", self.v_head_dim or self.head_dim)

    def k_row_bytes(self) -> int:
        """Bytes of the keys of one token in one layer."""
        return layer_parts(self)[0].num_bytes

    def v_row_bytes(self) -> int:
        """Bytes of the values of one token in one layer."""
        return layer_parts(self)[1].num_bytes

    def page_bytes(self, page_size: int) -> int:
        """Bytes of a page over all layers, with padding."""
        return page_size * self.entry_bytes()


@dataclass(frozen=True)
class MLASubPoolSpec(SubPoolSpec):
    """One latent row a layer; values are its first `kv_lora_rank` elements."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    store_dtype: torch.dtype

    @property
    def kv_cache_dim(self) -> int:
        """Elements of a latent row: `kv_lora_rank` and the rotary part."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def row_bytes(self) -> int:
        """Bytes of the latent row of one token in one layer."""
        return layer_parts(self)[0].num_bytes


@dataclass(frozen=True)
class MambaSubPoolSpec(SubPoolSpec):
    """Convolution states, some a layer, and one temporal state a layer. A request has one entry."""

    conv_state_shapes: tuple[tuple[int, ...], ...]
    conv_dtype: torch.dtype
    temporal_state_shape: tuple[int, ...]
    temporal_dtype: torch.dtype
    conv_slice_axis: int = 0

    def conv_row_bytes(self, idx: int) -> int:
        """Bytes of one convolution state of one layer."""
        return layer_parts(self)[idx].num_bytes

    def temporal_row_bytes(self) -> int:
        """Bytes of the temporal state of one layer."""
        return layer_parts(self)[-1].num_bytes


def is_latent(spec: Any) -> bool:
    """Whether a spec, ours or SGLang's, is of latent rows."""
    return hasattr(spec, "kv_lora_rank")


def is_state(spec: Any) -> bool:
    """Whether a spec is of recurrent states, each of which is a page."""
    return hasattr(spec, "conv_state_shapes")


def layer_parts(spec: Any) -> list[LayerParts]:
    """The tensors of an entry of a spec, ours or SGLang's: K and V, the latent row, or the states, temporal last."""
    if is_state(spec):
        return _state_parts(spec)
    dtype = spec.store_dtype
    if is_latent(spec):
        return [LayerParts(0, spec.kv_cache_dim * dtype.itemsize, (1, spec.kv_cache_dim), dtype)]
    key, value = (spec.head_num, spec.head_dim), (spec.head_num, spec.v_head_dim)
    start = prod(key) * dtype.itemsize
    stride = start + prod(value) * dtype.itemsize
    return [LayerParts(0, stride, key, dtype), LayerParts(start, stride, value, dtype)]


def _state_parts(spec: Any) -> list[LayerParts]:
    """Each tensor of all layers in one block."""
    parts = []
    start = 0
    convs = [(shape, spec.conv_dtype) for shape in spec.conv_state_shapes]
    for shape, dtype in [*convs, (spec.temporal_state_shape, spec.temporal_dtype)]:
        stride = prod(shape) * dtype.itemsize
        parts.append(LayerParts(start, stride, tuple(shape), dtype))
        start += spec.layer_num * stride
    return parts
