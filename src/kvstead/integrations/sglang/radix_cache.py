"""SGLang's prefix cache on kvstead's prefix tree.

row of a request   [ 0 .. cache_protected_len | .. whole pages        | the rest ]
                     slots of the tree, locked  slots of the request    never cached

checkpoint         inserts the whole pages; where the tree had them already, the row gets the tree's slots and its own
                   are freed; then the lock of the request moves to the new end
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch

from kvstead.integrations.sglang.attribute_of import AttributeOf
from kvstead.integrations.sglang.base_prefix_cache import CacheInitParams, engine_types
from kvstead.integrations.sglang.radix_node import RadixKey, TreeNode
from kvstead.integrations.sglang.token_codes import TokenCodes
from kvstead.integrations.sglang.tree_events import TreeEvents
from kvstead.integrations.sglang.tree_pools import UnboundPool, pool_of, slots_of
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_device, to_host
from kvstead.prefix import Insertion, Match, Namespace, PrefixTree, SlotPool

__all__ = ["RadixCache", "RadixKey", "TreeNode"]

_HIGHEST_PRIORITY = 2**63 - 1
_NO_PAIRS = "Keys of token pairs (EAGLE) are not supported. Use SGLang's own cache with EAGLE."


class RadixCache(ABC):  # noqa: B024 - an ABC as SGLang's, so that subclasses can change from one base to the other
    """Cached prefixes over the slots of `params.token_to_kv_pool_allocator`, ours or SGLang's, or over no slots.

    params: SGLang's `CacheInitParams`, or ours. Parameters and results of the methods are SGLang's types in a process
    that has loaded it. Without an allocator slots stand for nothing and the values that come with keys are ignored.

    Raises `NotImplementedError` for keys of token pairs and for KV events, `InvalidSize` for an unknown policy,
    `LayoutError` for pages of another size than the allocator's.
    """

    is_eagle = False
    _splits_prompts = True

    evictable_size_ = AttributeOf[int]("core.evictable_tokens")
    protected_size_ = AttributeOf[int]("core.protected_tokens")

    def __init__(self, params: Any) -> None:
        if params.is_eagle:
            raise NotImplementedError(_NO_PAIRS)
        if params.eviction_policy_config:
            raise NotImplementedError(
                f"eviction_policy_config {params.eviction_policy_config} is not supported. Leave it out."
            )
        self.disable: bool = params.disable
        self.kv_events = self._recorder(params)
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
        self.page_size: int = params.page_size
        self.eviction_policy: str = params.eviction_policy.lower()
        self.device = torch.device(getattr(params.token_to_kv_pool_allocator, "device", "cpu"))
        self.reset()

    @classmethod
    def create_simulated(
        cls,
        disable: bool = False,
        mock_allocator: Any = None,
        page_size: int = 1,
        enable_kv_cache_events: bool = False,
        dynamo_kv_event_format: bool = False,
        kv_event_lora_names: Any = None,
    ) -> Self:
        """A cache without a table of requests, to simulate with: over `mock_allocator`, or over nothing."""
        params = CacheInitParams(disable, None, mock_allocator, page_size)
        params.enable_kv_cache_events = enable_kv_cache_events
        params.dynamo_kv_event_format, params.kv_event_lora_names = dynamo_kv_event_format, kv_event_lora_names
        return cls(params)

    def reset(self) -> None:
        """Forget everything. No slots are freed: clear the allocator as well."""
        self._codes = TokenCodes()
        self._pool, self.core = self._new_tree("lru" if self.disable else self.eviction_policy)
        self.root_node = TreeNode(self.core.root, self.page_size, self.device, self._codes)
        if self.kv_events is not None and self.kv_events.enabled:
            self.core.watch(TreeEvents(self.kv_events, self.root_node))
            self.kv_events.record_all_cleared()

    def match_prefix(self, params: Any) -> Any:
        """Find the longest cached prefix of `params.key`, in whole pages: a `MatchResult`, which locks nothing."""
        node, length = self.root_node, 0
        if not self.disable:
            found = self._match(params.key)
            node, length = self._view(found), found.num_tokens
        return engine_types().MatchResult(
            device_prefix_len=length, last_device_node=node, last_host_node=node, best_match_node=node
        )

    def touch_prefix(self, key: Any) -> None:
        """Mark the cached part of a key as used now."""
        if not self.disable:
            self._match(key)

    def insert(self, params: Any) -> Any:
        """Insert the whole pages of `params.key`, whose slots are `params.value`: an `InsertResult`.

        The tree owns the slots from `prefix_len` on. Those before it were cached already: the caller frees its own.
        Raises as `PrefixTree.insert`.
        """
        if self.disable:
            return engine_types().InsertResult(prefix_len=0, last_device_node=self.root_node)
        tokens, namespace = _read_key(params.key)
        done = self._insert(tokens, params.value, namespace, params.priority or 0)
        return engine_types().InsertResult(prefix_len=done.num_shared, last_device_node=self._view(done))

    def evict(self, params: Any) -> Any:
        """Evict whole nodes, at least `params.num_tokens` tokens or all that is not locked: an `EvictResult`.

        Raises `OpenGroup` while the allocator has a free group open: nothing would become available.
        """
        num_pages = 0 if self.disable else -(-max(0, params.num_tokens) // self.page_size)
        gone = self.core.evict({"full": num_pages}).pages["full"] if num_pages else 0
        return engine_types().EvictResult(num_tokens_evicted=gone * self.page_size)

    def inc_lock_ref(self, node: TreeNode) -> Any:
        """Lock the path down to `node`. Raises `UseAfterFree` if it was evicted. The root needs no lock."""
        before = self.core.evictable_tokens
        if node != self.root_node:
            self.core.lock(node.core)
        return engine_types().IncLockRefResult(delta=self.core.evictable_tokens - before)

    def dec_lock_ref(self, node: TreeNode, params: Any = None) -> Any:
        """Undo one `inc_lock_ref`. Raises `LockUnderflow` without a lock, `UseAfterFree` for an evicted node."""
        before = self.core.evictable_tokens
        if node != self.root_node:
            self.core.unlock(node.core)
        return engine_types().DecLockRefResult(delta=self.core.evictable_tokens - before)

    def lock(self, node: TreeNode) -> Any:
        """As `inc_lock_ref`: a `TreeLock`, to be passed to `unlock`."""
        self.inc_lock_ref(node)
        return engine_types().TreeLock(node, None)

    def unlock(self, lock: Any) -> None:
        """Undo one `lock`. Does nothing for None."""
        if lock is not None:
            self.dec_lock_ref(lock.node)

    def checkpoint(self, req: Any, *, up_to: int) -> None:
        """Insert the whole pages of a request's first `up_to` tokens, and put the tree's slots for them into its row.

        Updates row, `cache_protected_len`, `lock` and `last_node` of the request. On a device the row is copied to the
        host, which waits for it.
        """
        if self.disable:
            return
        node = self._take_over(req, req.full_untruncated_fill_ids[:up_to], len(req.origin_input_ids))
        self.unlock(req.lock)
        req.lock = self.lock(node)
        req.last_node = node

    def path_device_indices(self, node: TreeNode) -> torch.Tensor:
        """The slots from the root to `node`, int64 on the device. Raises `UseAfterFree` for an evicted node."""
        return to_device(self.core.slots(node.core), self.device)

    def evictable_size(self) -> int:
        """Tokens that can be evicted."""
        return self.core.evictable_tokens

    def protected_size(self) -> int:
        """Tokens that are locked and cannot be evicted."""
        return self.core.protected_tokens

    def total_size(self) -> int:
        """All cached tokens, locked or not."""
        return self.core.evictable_tokens + self.core.protected_tokens

    def supports_prefix_sharing(self) -> bool:
        """Whether prefixes are cached at all: not with `disable`."""
        return not self.disable

    def all_values_flatten(self) -> torch.Tensor:
        """The slots of all cached tokens, int64, node by node."""
        pages = [node.pages for node in (self.core.root, *self.core.root.below())]
        return to_device(slots_of(np.concatenate(pages), self.page_size), self.device)

    def available_and_evictable_str(self) -> str:
        """Tokens that are free and evictable, for a log line."""
        available, evictable = self.token_to_kv_pool_allocator.available_size(), self.evictable_size()
        return f"{available + evictable} tokens can be used: {available} free, {evictable} cached and not locked\n"

    def take_events(self) -> list[Any]:
        """KV events since the last call; none unless they are enabled."""
        return [] if self.kv_events is None else self.kv_events.take()

    def sanity_check(self) -> None:
        """Audit the tree. Raises `AuditError` for the first fault."""
        self.core.audit()

    def pretty_print(self) -> None:
        """Print the tree: one node a line, below its parent, with its length, first tokens and locks."""
        stack = [(self.root_node, 0)]
        while stack:
            node, depth = stack.pop()
            tokens = node.key.raw_token_ids()
            print(f"{'  ' * depth}{len(tokens)} {list(tokens[:10])} r={node.lock_ref}")  # noqa: T201 - what it is for
            stack += [(child, depth + 1) for child in node.children.values()]
        print(f"#tokens: {self.total_size()}")  # noqa: T201 - as above

    def _new_tree(self, policy: str) -> tuple[SlotPool, PrefixTree]:
        pool = pool_of(self.token_to_kv_pool_allocator, self.page_size)
        return pool, PrefixTree(pool, policy=policy)

    def _recorder(self, params: Any) -> Any:
        """What records KV events, None without one. Raises `NotImplementedError` where they are asked for in vain."""
        if params.enable_kv_cache_events:
            raise NotImplementedError("KV events are SGLang's. Turn them off where SGLang is not loaded.")

    def _match(self, key: Any) -> Match:
        tokens, namespace = _read_key(key)
        return self.core.match(self._codes.encode(tokens, keep=False), namespace=namespace)

    def _insert(self, tokens: IntArray, values: Any, namespace: Namespace, priority: int) -> Insertion:
        """Insert a key; without an allocator, with slots that stand for nothing."""
        pool = self._pool
        if self._codes.is_crowded:
            self._codes.drop_unused(node.tokens for node in self.core.root.below())
        tokens = self._codes.encode(tokens, keep=True)
        if not isinstance(pool, UnboundPool):
            return self.core.insert(tokens, to_host(values)[: tokens.size], namespace=namespace, priority=priority)
        tokens = tokens[: tokens.size - tokens.size % self.page_size]
        slots = pool.take(tokens.size // self.page_size)
        done = self.core.insert(tokens, slots, namespace=namespace, priority=priority)
        pool.free_segment(slots[: done.num_shared], start_pos=0)
        return done

    def _take_over(self, req: Any, token_ids: Sequence[int], prompt_len: int) -> TreeNode:
        """Insert a request's tokens and put the tree's slots for them into its row: the node where they end.

        prompt_len: where to split, so that what follows can be evicted alone; the prompt gets a higher priority.
        """
        row, kv, namespace, priority = self._row(req, len(token_ids)), req.kv, _namespace(req), req.priority or 0
        # A model with windows alone has freed what lies before this, so that cannot be cached.
        limit = getattr(kv, "swa_evict_floor", 0)
        tokens = _tokens(token_ids)[: -(-limit // self.page_size) * self.page_size or None]
        done = self._insert(tokens, row, namespace, priority)
        if self._splits_prompts and self.page_size <= prompt_len < done.num_tokens:
            self._insert(tokens[:prompt_len], row, namespace, min(priority + 1, _HIGHEST_PRIORITY))
        start = kv.cache_protected_len
        self.token_to_kv_pool_allocator.free_segment(row[start : done.num_shared], start_pos=start)
        slots = self.path_device_indices(self._view(done))
        self.req_to_token_pool.write((kv.req_pool_idx, slice(start, done.num_tokens)), slots[start:])
        kv.cache_protected_len = done.num_tokens
        return self._view(done)

    def _row(self, req: Any, length: int) -> torch.Tensor:
        row: torch.Tensor = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx, :length]
        return row

    def _view(self, where: Match | Insertion) -> TreeNode:
        return TreeNode(where.node, self.page_size, self.device, self._codes)


def _tokens(token_ids: Sequence[int]) -> IntArray:
    return np.asarray(token_ids, dtype=np.int64)


def _read_key(key: Any) -> tuple[IntArray, Namespace]:
    """Tokens and namespace of a key, SGLang's or ours."""
    if key.is_bigram:
        raise NotImplementedError(_NO_PAIRS)
    return _tokens(key.raw_token_ids()), _namespace(key)


def _namespace(source: Any) -> Namespace:
    """The tree's namespace for the adapter and the tenant of a key or a request."""
    return Namespace(lora=source.extra_key or "", salt=source.cache_salt or "")
