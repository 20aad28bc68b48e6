"""The parts of one entry of a pool, and each part as a tensor over all slots.

    slot s   byte  s * entry_bytes                                                        (s + 1) * entry_bytes
                   | key 0   | value 0   | key 1   | value 1   | ...    | index 0 | index 1 | key 0  ...
                     key[0]    value[0]    key[1]    value[1]             index[0]
                     [s]       [s]         [s]       [s]                  [s]

An entry is one token, or one sequence's state, over all layers. Parts with the largest elements come first, otherwise
in the order of the layers. So each part is aligned to its element size if the entry is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import torch

from kvstead.errors import LayoutError
from kvstead.model import CacheKind, ModelLayout
from kvstead.pools.byte_arena import ByteArena
from kvstead.pools.entry_spec import EntrySpec, Place

# Tensors by layer and name of the part.
Parts: TypeAlias = Mapping[tuple[int, str], torch.Tensor]


@dataclass(frozen=True, slots=True)
class EntryPart:
    """What `layer` keeps in an entry under `name`: a tensor of `shape` and `dtype`."""

    layer: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of this part in one entry."""
        return prod(self.shape) * self.dtype.itemsize


def token_parts(layout: ModelLayout, kinds: Collection[CacheKind]) -> list[EntryPart]:
    """The keys, values and indexer keys ("key", "value", "index") of the layers that own entries of `kinds`.

    Each is [heads, dim] in the cache dtype. Packed dtypes unknown to torch, and an indexer's keys, are uint8[1, bytes].
    """
    parts = []
    for at, layer in enumerate(layout.layers):
        entry = layer.tokens
        if entry is not None and entry.kind in kinds:
            parts += [
                _token_part(at, "key", entry.num_heads, entry.key_dim, entry.dtype, entry.key_bytes),
                _token_part(at, "value", entry.num_heads, entry.value_dim, entry.dtype, entry.value_bytes),
                _token_part(at, "index", 1, entry.index_bytes, "uint8", entry.index_bytes),
            ]
    return _in_order(part for part in parts if part.num_bytes)


def state_parts(layout: ModelLayout) -> list[EntryPart]:
    """The tensors of every layer's state, under the names that the layout gives them."""
    return _in_order(
        EntryPart(at, part.name, part.shape, getattr(torch, part.dtype))
        for at, layer in enumerate(layout.layers)
        for part in layer.state
    )


def token_spec(
    layout: ModelLayout,
    kinds: Collection[CacheKind],
    *,
    name: str,
    page_size: int = 1,
    place: Place = Place.LOW,
    zero_on_take: bool = False,
) -> EntrySpec:
    """The spec of an arena pool of tokens: an entry is one token over all layers that own entries of `kinds`.

    `entry_bytes` is the layout's bytes per token of those kinds. Raises `LayoutError` when no layer owns any or when
    entries of that size would misalign a part, and as `EntrySpec` does.
    """
    num_bytes, align = _size(token_parts(layout, kinds), name)
    return EntrySpec(name, num_bytes, page_size, place, zero_on_take, align)


def state_spec(layout: ModelLayout, *, name: str = "state", place: Place = Place.LOW) -> EntrySpec:
    """The spec of an arena pool of states: an entry, and a page, is the state of one sequence over all layers.

    `entry_bytes` is the layout's `state_bytes`. Raises `LayoutError` as `token_spec` does.
    """
    num_bytes, align = _size(state_parts(layout), name)
    return EntrySpec(name, num_bytes, place=place, align=align)


def entry_views(arena: ByteArena, spec: EntrySpec, parts: Sequence[EntryPart]) -> Parts:
    """Each part at every slot of the pool's grid, [slots, *shape]: views of the arena's bytes from byte 0 on.

    A row is a physical slot, so the views stay valid when pages move. Raises `LayoutError` for an arena without storage
    or without this pool, and when the parts do not add up to the pool's entry size.
    """
    if spec not in arena.specs:
        raise LayoutError(
            f"the arena has no pool {spec.name!r} with entries of {spec.entry_bytes} bytes. Register it first; a "
            "`PoolChain` does that with its specs."
        )
    num_bytes, _ = _size(parts, spec.name)
    if num_bytes != spec.entry_bytes:
        raise LayoutError(
            f"entries of pool {spec.name!r} have {spec.entry_bytes} bytes, those of the layout {num_bytes}. Make the "
            "spec from the same layout by `token_spec` or `state_spec`."
        )
    slots = arena.pages(spec).view(-1, spec.entry_bytes)
    views = {}
    start = 0
    for part in parts:
        end = start + part.num_bytes
        views[part.layer, part.name] = slots[:, start:end].view(part.dtype).view(slots.shape[0], *part.shape)
        start = end
    return views


def _token_part(layer: int, name: str, heads: int, dim: int, dtype: str, num_bytes: int) -> EntryPart:
    known = getattr(torch, dtype, None)
    if isinstance(known, torch.dtype) and heads * dim * known.itemsize == num_bytes:
        return EntryPart(layer, name, (heads, dim), known)
    return EntryPart(layer, name, (1, num_bytes), torch.uint8)


def _in_order(parts: Iterable[EntryPart]) -> list[EntryPart]:
    return sorted(parts, key=lambda part: -part.dtype.itemsize)


def _size(parts: Sequence[EntryPart], name: str) -> tuple[int, int]:
    """Bytes of an entry, and the size of its largest elements, which must divide them."""
    if not parts:
        raise LayoutError(f"no layer has entries for pool {name!r}. Leave the pool out.")
    num_bytes = sum(part.num_bytes for part in parts)
    largest = parts[0].dtype
    if num_bytes % largest.itemsize:
        raise LayoutError(
            f"entries of pool {name!r} have {num_bytes} bytes, not a multiple of the {largest.itemsize} bytes of a "
            f"{largest}. Use dtypes of one size for all parts (cache_dtype, state_dtype, conv_dtype)."
        )
    return num_bytes, largest.itemsize
