"""What holds data: the request table, and the tensors of each cache kind."""

from kvstead.pools.kv_pool import KVPool
from kvstead.pools.request_table import RequestTable

__all__ = ["KVPool", "RequestTable"]
