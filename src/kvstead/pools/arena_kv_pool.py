"""Keys and values in an arena, beside the pools of other kinds."""

from __future__ import annotations

from collections.abc import Collection

from kvstead.model import WHOLE_SEQUENCE, CacheKind, ModelLayout
from kvstead.pools.byte_arena import ByteArena, widest
from kvstead.pools.entries import entry_views, token_parts
from kvstead.pools.entry_spec import EntrySpec
from kvstead.pools.kv_pool import TokenTensors


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
