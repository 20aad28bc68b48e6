"""What holds data: the request table, the tensors of each cache kind, and the byte buffer that kinds may share.

Names are resolved when first used: an allocator needs no tensors of keys and values, nor the models that they are of.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvstead.pools.byte_arena import ByteArena as ByteArena
    from kvstead.pools.entries import state_spec as state_spec
    from kvstead.pools.entries import token_spec as token_spec
    from kvstead.pools.entry_spec import EntrySpec as EntrySpec
    from kvstead.pools.entry_spec import Place as Place
    from kvstead.pools.kv_pool import ArenaKVPool as ArenaKVPool
    from kvstead.pools.kv_pool import KVPool as KVPool
    from kvstead.pools.kv_pool import TokenTensors as TokenTensors
    from kvstead.pools.request_table import RequestTable as RequestTable
    from kvstead.pools.state_pool import ArenaStatePool as ArenaStatePool
    from kvstead.pools.state_pool import StatePool as StatePool

_MODULES = {
    "ArenaKVPool": "kv_pool",
    "ArenaStatePool": "state_pool",
    "ByteArena": "byte_arena",
    "EntrySpec": "entry_spec",
    "KVPool": "kv_pool",
    "Place": "entry_spec",
    "RequestTable": "request_table",
    "StatePool": "state_pool",
    "TokenTensors": "kv_pool",
    "state_spec": "entries",
    "token_spec": "entries",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'kvstead.pools' has no attribute {name!r}")
    return getattr(import_module(f"kvstead.pools.{_MODULES[name]}"), name)
