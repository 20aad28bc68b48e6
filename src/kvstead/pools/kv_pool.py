"""The tensors of some cache kinds: keys and values, or one latent, of every slot.

    key[layer]    [num_slots + page_size, heads, key_dim]      row = slot; rows 0 .. page_size - 1 are padding,
    value[layer]  [num_slots + page_size, heads, value_dim]    which kernels may write to and nobody reads

A layer that attends to the entries of another has that layer's tensors; a layer that caches nothing, or is of a kind
that this pool does not hold, has None. A model with windows has two pools, one for the kinds that keep whole sequences
and one for the bounded, so that their numbers of slots may differ.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from kvstead.errors import InvalidSize
from kvstead.model import WHOLE_SEQUENCE, CacheKind, ModelLayout, TokenCache

_NOTHING = TokenCache(CacheKind.FULL, 0, 0, 0, "uint8", 0, 0)


class KVPool:
    """Storage for `num_slots` slots (a multiple of the page size) and the padding page, over the layers of `kinds`.

    A latent layer has its entries in `key` and None in `value`. Entries are of the layout's cache dtype; a packed dtype
    that torch does not know is kept as bytes, uint8[rows, 1, bytes]. `index[layer]` holds a sparse-attention indexer's
    keys as bytes, or None. All tensors start as zeros.
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
        self.num_slots = num_slots
        self.page_size = page_size
        rows = num_slots + page_size
        self.key: list[torch.Tensor | None] = []
        self.value: list[torch.Tensor | None] = []
        self.index: list[torch.Tensor | None] = []
        for layer in layout.layers:
            if layer.shared_with is not None:
                for tensors in (self.key, self.value, self.index):
                    tensors.append(tensors[layer.shared_with])
                continue
            entry = layer.tokens if layer.tokens is not None and layer.tokens.kind in kinds else _NOTHING
            heads, dtype = entry.num_heads, entry.dtype
            self.key.append(_tensor(rows, heads, entry.key_dim, entry.key_bytes, dtype, device))
            self.value.append(_tensor(rows, heads, entry.value_dim, entry.value_bytes, dtype, device))
            self.index.append(_tensor(rows, 1, entry.index_bytes, entry.index_bytes, "uint8", device))

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors, each counted once."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None = None) -> None:
        """Store one layer's entries of some tokens.

        slots: int64[n], distinct. key, value: [n, heads, dim], of any dtype that converts; value only where the layer
        has one. Raises `InvalidSize` when the layer keeps nothing or the shapes do not fit.
        """
        pairs = (("key", self.key[layer], key), ("value", self.value[layer], value))
        for name, tensor, data in pairs:
            want = None if tensor is None else (slots.numel(), *tensor.shape[1:])
            have = None if data is None else tuple(data.shape)
            if want != have:
                raise InvalidSize(f"layer {layer} takes {name} entries of shape {want}, got {have}. Pass just those.")
        for _, tensor, data in pairs:
            if tensor is not None and data is not None:
                tensor[slots] = data.to(tensor.dtype)

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """One layer's (key, value) entries at `slots`: copies, [n, heads, dim] each."""
        key, value = self.key[layer], self.value[layer]
        return None if key is None else key[slots], None if value is None else value[slots]

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy whole slots over all layers, int64[n] each; the two may overlap."""
        for tensor in self._tensors():
            tensor[target] = tensor[source]

    def _tensors(self) -> list[torch.Tensor]:
        """Every tensor once, shared ones too."""
        every = [tensor for tensor in (*self.key, *self.value, *self.index) if tensor is not None]
        return list({id(tensor): tensor for tensor in every}.values())


def _tensor(
    rows: int, heads: int, dim: int, num_bytes: int, dtype: str, device: str | torch.device
) -> torch.Tensor | None:
    if num_bytes == 0:
        return None
    known = getattr(torch, dtype, None)
    if not isinstance(known, torch.dtype) or heads * dim * known.itemsize != num_bytes:
        heads, dim, known = 1, num_bytes, torch.uint8
    return torch.zeros((rows, heads, dim), dtype=known, device=device)
