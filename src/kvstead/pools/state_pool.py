"""The recurrent states of sequences: one slot each, over all layers.

    slot      0         1                                       2
              | padding | recurrent 0 | recurrent 1 | conv 0 | conv 1 | recurrent 0 | ...        `entry_bytes` a slot

Each tensor of each layer is a view [slots, *shape] of these bytes, so a state is copied or zeroed as one row.
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
    """States in the pool `spec` of an arena; a slot is a physical one (`StateAllocator.physical_slots`).

    `parts[layer]` has the layer's tensors by name, [slots, *shape], {} where it keeps no state. Rows reach from byte 0
    of the arena to its end, and those that hold no state of this pool are other pools' bytes. When the chain moves
    pages the views stay as they are. `num_slots` are those above the sink: what the pool could hold if it had the arena
    for itself; `num_bytes` are those of all its rows.

    spec: of `state_spec` from the same layout, registered with the arena. Raises `LayoutError` for another, or for an
    arena without storage.
    """

    def __init__(self, layout: ModelLayout, arena: ByteArena, spec: EntrySpec) -> None:
        if spec.page_size != 1:
            raise LayoutError(f"pool {spec.name!r} has {spec.page_size} states a page. Make its spec by `state_spec`.")
        views = entry_views(arena, spec, state_parts(layout))
        self.parts: list[dict[str, torch.Tensor]] = [
            {part.name: views[at, part.name] for part in layer.state} for at, layer in enumerate(layout.layers)
        ]
        self.num_slots = arena.num_usable(spec)
        self._arena = arena
        self._spec = spec

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self._arena.num_pages(self._spec) * self._spec.entry_bytes

    def part(self, layer: int, name: str) -> torch.Tensor:
        """One tensor of one layer's states, [slots, *shape], as in `parts`. Raises `LayoutError` for no such name."""
        parts = self.parts[layer]
        if name not in parts:
            raise LayoutError(f"layer {layer} keeps no {name!r}. Ask for one of: {', '.join(parts) or 'nothing'}.")
        return parts[name]

    def zero(self, slots: Integers) -> None:
        """Make states zeros, int64[n], as a new sequence has them. Raises `ForeignPage` for a slot out of range."""
        self._arena.zero(self._spec, self._in_range(slots))

    def copy(self, source: Integers, target: Integers) -> None:
        """Copy whole states, int64[n] each, in one batch. Indices on a device are copied to the host first.

        In an arena the stream has to be in order with the last forward pass (`PoolChain.order`). Raises `ForeignPage`
        for a slot out of range, `InvalidSize` when the two differ in length, a target is named twice or is a source.
        """
        src, dst = self._in_range(source), self._in_range(target)
        if src.size != dst.size:
            raise InvalidSize(f"{src.size} states are to be copied to {dst.size} slots. Name as many of each.")
        if len(set(dst.tolist()) - set(src.tolist())) < dst.size:
            raise InvalidSize(
                f"states {src.tolist()} cannot be copied to {dst.tolist()} in one batch. Name every target once, and "
                "none that is a source."
            )
        self._arena.copy(self._spec, dst, src)

    def _in_range(self, slots: Integers) -> IntArray:
        array = to_host(slots)
        limit = self._arena.num_pages(self._spec)
        bad = array[(array < 0) | (array >= limit)]
        if bad.size:
            raise ForeignPage(f"slot {bad[0]} is none of this pool's (they are below {limit}). Use physical slots.")
        return array


class StatePool(ArenaStatePool):
    """`num_slots` states, and the padding slot 0, in bytes of their own on `device`. They start as zeros.

    Raises `InvalidSize` for fewer than 1, `LayoutError` as `state_spec` does.
    """

    def __init__(self, layout: ModelLayout, num_slots: int, *, device: str | torch.device = "cpu") -> None:
        if num_slots < 1:
            raise InvalidSize(f"a pool of {num_slots} states is asked for. Use 1 or more.")
        spec = state_spec(layout)
        arena = ByteArena((num_slots + 1) * spec.entry_bytes, device)
        arena.register([spec])
        super().__init__(layout, arena, spec)
