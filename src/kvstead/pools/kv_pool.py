"""The tensors of some cache kinds: keys and values, or one latent, for every slot.

    key[layer]    [num_slots + page_size, heads, key_dim]      row = slot; rows 0 .. page_size - 1 are padding,
    value[layer]  [num_slots + page_size, heads, value_dim]    which kernels may write and nothing reads

A layer that shares the entries of another has that layer's tensors. A layer without entries, or of a kind that the pool
does not hold, has None. A model with windows has two pools, for whole sequences and for windows, of different sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from kvstead.errors import InvalidSize
from kvstead.model import WHOLE_SEQUENCE, CacheKind, ModelLayout
from kvstead.pools.byte_arena import ByteArena, widest
from kvstead.pools.entries import Parts, entry_views, token_parts
from kvstead.pools.entry_spec import EntrySpec


class TokenTensors:
    """Entries of tokens by layer and slot, in bytes of their own or in an arena.

    A latent layer has its entries in `key` and None in `value`. Entries are in the layout's cache dtype, or of a packed
    dtype unknown to torch uint8[rows, 1, bytes]. `index[layer]`: a sparse-attention indexer's keys as bytes, or None.

    parts: the tensors of the layers that own entries. whole: tensors that together hold all bytes once; row = slot.
    """

    def __init__(
        self, layout: ModelLayout, parts: Parts, whole: Sequence[torch.Tensor], num_slots: int, page_size: int
    ) -> None:
        self.num_slots = num_slots
        self.page_size = page_size
        owners: list[int] = []
        for at, layer in enumerate(layout.layers):
            owners.append(at if layer.shared_with is None else owners[layer.shared_with])
        self.key = [parts.get((owner, "key")) for owner in owners]
        self.value = [parts.get((owner, "value")) for owner in owners]
        self.index = [parts.get((owner, "index")) for owner in owners]
        self._whole = whole

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows; layers that share entries count once."""
        return sum(tensor.nbytes for tensor in self._whole)

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None = None) -> None:
        """Store one layer's entries of some tokens.

        slots: int64[n], distinct. key, value: [n, heads, dim], in any dtype that converts; None for a value that the
        layer does not have. Raises `InvalidSize` when the layer has no entries here or the shapes differ.
        """
        pairs = (("key", self.key[layer], key), ("value", self.value[layer], value))
        for name, tensor, data in pairs:
            want = None if tensor is None else (slots.numel(), *tensor.shape[1:])
            have = None if data is None else tuple(data.shape)
            if want != have:
                raise InvalidSize(f"layer {layer} takes {name} entries of shape {want}, got {have}. Pass that shape.")
        for _, tensor, data in pairs:
            if tensor is not None and data is not None:
                tensor[slots] = data.to(tensor.dtype)

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """One layer's (key, value) entries at `slots`: copies, [n, heads, dim] each; None for what it does not have."""
        key, value = self.key[layer], self.value[layer]
        return (
            None if key is None else key.index_select(0, slots),
            None if value is None else value.index_select(0, slots),
        )

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy whole slots over all layers, int64[n] each; the two may overlap."""
        for tensor in self._whole:
            tensor[target] = tensor[source]


class KVPool(TokenTensors):
    """Storage for `num_slots` slots (a multiple of the page size) and the padding page, over the layers of `kinds`.

    Each layer has contiguous tensors of its own, which start as zeros.
    """

    def __init__(
        self,
        layout: ModelLayout,
        num_slots: int,
        page_size: int,
        *,
        kinds: Collection[CacheKind] = WHOLE_SEQUENCE,
        device: str | torch.device = "cpu",
    ) -> None:
        rows = num_slots + page_size
        parts = {
            (part.layer, part.name): torch.zeros((rows, *part.shape), dtype=part.dtype, device=device)
            for part in token_parts(layout, kinds)
        }
        super().__init__(layout, parts, list(parts.values()), num_slots, page_size)


class ArenaKVPool(TokenTensors):
    """A `KVPool` over the pool `spec` of an arena: every tensor is a view of the arena's bytes.

    Rows are physical slots (the allocator's `physical_slots`), `entry_bytes` apart, from byte 0 of the arena to its
    end. Rows that hold nothing of this pool are other pools' bytes, so read and write live slots only. The views stay
    valid when the chain moves pages. `num_slots` counts the slots above the sink: what the pool could hold if it had
    the arena to itself; `num_bytes` counts all rows. Before you call `move` or `write`, order the stream after the last
    forward pass (`PoolChain.order`).

    spec: from `token_spec` for the same layout and kinds, registered with the arena. Raises `LayoutError` for any other
    spec, or for an arena without storage.
    """

    def __init__(
        self,
        layout: ModelLayout,
        arena: ByteArena,
        spec: EntrySpec,
        *,
        kinds: Collection[CacheKind] = WHOLE_SEQUENCE,
    ) -> None:
        parts = entry_views(arena, spec, token_parts(layout, kinds))
        entries = widest(arena.pages(spec).view(-1, spec.entry_bytes))
        super().__init__(layout, parts, [entries], arena.num_usable(spec) * spec.page_size, spec.page_size)
