"""What holds data: the request table, the tensors of each cache kind, and the byte buffer that kinds may share."""

from kvstead.pools.arena_kv_pool import ArenaKVPool
from kvstead.pools.byte_arena import ByteArena
from kvstead.pools.entries import state_spec, token_spec
from kvstead.pools.entry_spec import EntrySpec, Place
from kvstead.pools.kv_pool import KVPool, TokenTensors
from kvstead.pools.mirror import DeviceMirror
from kvstead.pools.request_table import RequestTable
from kvstead.pools.state_pool import ArenaStatePool, StatePool

__all__ = [
    "ArenaKVPool",
    "ArenaStatePool",
    "ByteArena",
    "DeviceMirror",
    "EntrySpec",
    "KVPool",
    "Place",
    "RequestTable",
    "StatePool",
    "TokenTensors",
    "state_spec",
    "token_spec",
]
