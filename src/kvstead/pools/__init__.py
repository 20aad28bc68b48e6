"""What holds data: the request table, the tensors of each cache kind, and the byte buffer that kinds may share."""

from kvstead.pools.byte_arena import ByteArena
from kvstead.pools.entry_spec import EntrySpec, Place
from kvstead.pools.kv_pool import KVPool
from kvstead.pools.request_table import RequestTable

__all__ = ["ByteArena", "EntrySpec", "KVPool", "Place", "RequestTable"]
