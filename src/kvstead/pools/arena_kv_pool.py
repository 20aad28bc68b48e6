"""Keys and values that lie in an arena, beside the pools of other kinds."""

from __future__ import annotations

from collections.abc import Collection

from kvstead.model import WHOLE_SEQUENCE, CacheKind, ModelLayout
from kvstead.pools.byte_arena import ByteArena, widest
from kvstead.pools.entries import entry_views, token_parts
from kvstead.pools.entry_spec import EntrySpec
from kvstead.pools.kv_pool import TokenTensors


class ArenaKVPool(TokenTensors):
    """The interface of a `KVPool` over the pool `spec` of an arena: every tensor is a view of the arena's bytes.

    Rows are physical slots (the allocator's `physical_slots`), from byte 0 of the arena to its end, `entry_bytes`
    apart, so the pages of this pool that hold nothing are other pools' bytes: write and read live slots only. When the
    chain moves pages the views stay as they are. `num_slots` are those above the sink: what the pool could hold if it
    had the arena for itself; `num_bytes` are those of all its rows. Before a `move` or `write` of one's own the stream
    has to be in order with the last forward pass (`PoolChain.order`).

    spec: of `token_spec` from the same layout and kinds, registered with the arena. Raises `LayoutError` for another,
    or for an arena without storage.
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
