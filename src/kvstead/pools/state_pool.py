"""The recurrent states of sequences: one slot for each sequence, over all layers.

    slot      0         1                                       2
              | padding | recurrent 0 | recurrent 1 | conv 0 | conv 1 | recurrent 0 | ...        `entry_bytes` a slot

Each tensor of each layer is a view [slots, *shape] of these bytes, so one row copy moves a whole state.
"""

from __future__ import annotations

import torch

from kvstead.errors import ForeignPage, InvalidSize, LayoutError
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, to_host
from kvstead.model import ModelLayout
from kvstead.pools.byte_arena import ByteArena
from kvstead.pools.entries import entry_views, state_parts, state_spec
from kvstead.pools.entry_spec import EntrySpec


class ArenaStatePool:
    """States in the pool `spec` of an arena, by physical slot (`StateAllocator.physical_slots`).

    `parts[layer]` has the layer's tensors by name, [slots, *shape]; {} for a layer without a state. Their rows and
    `num_slots` are as those of `ArenaKVPool`.

    spec: from `state_spec` for the same layout, registered with the arena, which has storage; else `LayoutError`.
    """

    def __init__(self, layout: ModelLayout, arena: ByteArena, spec: EntrySpec) -> None:
        if spec.page_size != 1:
            raise LayoutError(
                f"pool {spec.name!r} has {spec.page_size} states a page, not 1. Make its spec by `state_spec`."
            )
        views = entry_views(arena, spec, state_parts(layout))
        self.parts: list[dict[str, torch.Tensor]] = [
            {part.name: views[at, part.name] for part in layer.state} for at, layer in enumerate(layout.layers)
        ]
        self.num_slots = arena.num_usable(spec)
        self._arena = arena
        self._spec = spec

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows, the sink included."""
        return self._arena.num_pages(self._spec) * self._spec.entry_bytes

    def part(self, layer: int, name: str) -> torch.Tensor:
        """One tensor of one layer's states, [slots, *shape]. Raises `LayoutError` for a name that the layer lacks."""
        parts = self.parts[layer]
        if name not in parts:
            raise LayoutError(
                f"layer {layer} has no tensor {name!r}; it has: {', '.join(parts) or 'none'}. Use one of its names."
            )
        return parts[name]

    def zero(self, slots: Integers) -> None:
        """Zero the states of new sequences, int64[n]. Raises `ForeignPage` for a slot out of range."""
        self._arena.zero(self._spec, self._in_range(slots))

    def copy(self, source: Integers, target: Integers) -> None:
        """Copy whole states, int64[n] each, in one batch. Indices on a device are copied to the host first.

        In an arena, order the stream after the last forward pass first (`PoolChain.order`). Raises `ForeignPage` for a
        slot out of range, `InvalidSize` when the lengths differ or a target is named twice or is also a source.
        """
        src, dst = self._in_range(source), self._in_range(target)
        if src.size != dst.size:
            raise InvalidSize(
                f"{src.size} source slots and {dst.size} target slots differ in number. Give one target a source."
            )
        if len(set(dst.tolist()) - set(src.tolist())) < dst.size:
            raise InvalidSize(
                f"states {src.tolist()} cannot be copied to {dst.tolist()} in one batch: a target is named twice or is "
                "also a source. Copy it in a call of its own."
            )
        self._arena.copy(self._spec, dst, src)

    def _in_range(self, slots: Integers) -> IntArray:
        array = to_host(slots)
        limit = self._arena.num_pages(self._spec)
        bad = array[(array < 0) | (array >= limit)]
        if bad.size:
            raise ForeignPage(f"slot {bad[0]} does not belong to this pool (0 .. {limit - 1}). Use physical slots.")
        return array


class StatePool(ArenaStatePool):
    """`num_slots` states and the padding slot 0, in bytes of their own on `device`. They start as zeros.

    Raises `InvalidSize` for fewer than 1 slot, `LayoutError` as `state_spec` does.
    """

    def __init__(self, layout: ModelLayout, num_slots: int, *, device: str | torch.device = "cpu") -> None:
        if num_slots < 1:
            raise InvalidSize(f"num_slots is {num_slots}. Use 1 or more.")
        spec = state_spec(layout)
        arena = ByteArena((num_slots + 1) * spec.entry_bytes, device)
        arena.register([spec])
        super().__init__(layout, arena, spec)
