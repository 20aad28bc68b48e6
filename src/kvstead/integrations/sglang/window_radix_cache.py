"""SGLang's prefix cache on kvstead's prefix tree, for models with windows in some of their layers.

    lock of a node     full side      root .. node
                       window side    the last window before the node's end, until `release_swa_prefix_lock`

The windows of a row that have moved on are freed by SGLang, and cached without; `evict` frees windows of the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvstead.integrations.sglang.base_prefix_cache import engine_types
from kvstead.integrations.sglang.radix_cache import RadixCache
from kvstead.integrations.sglang.tree_pools import WindowedPool
from kvstead.model.window import Window
from kvstead.pages.amounts import FULL, WINDOW, Amounts
from kvstead.prefix import PrefixTree, SlotPool


class WindowRadixCache(RadixCache):
    """A `RadixCache` over an allocator of ours with a full side and a window side.

    params: as for `RadixCache`, with `sliding_window_size` and `draft_swa_window`. A prefix is found up to where the
    larger of both is cached as well. Raises as `RadixCache`, and `LayoutError` for an allocator that keeps no windows
    on the host, `NotImplementedError` for KV events.
    """

    _splits_prompts = False  # the windows of what follows a prompt go first anyway

    def __init__(self, params: Any) -> None:
        self.sliding_window_size: int = params.sliding_window_size
        self.draft_swa_window: int = params.draft_swa_window
        self._window = Window(max(self.sliding_window_size, self.draft_swa_window))
        super().__init__(params)

    def supports_swa(self) -> bool:
        """Whether windows are cached and evicted: yes."""
        return True

    def evict(self, params: Any) -> Any:
        """Evict at least `params.num_tokens` tokens, and windows of `params.swa_num_tokens`: an `EvictResult`.

        Windows of tokens that go count for both. Raises `OpenGroup` as `RadixCache.evict`.
        """
        wanted = self._pages(params)
        return self._result(Amounts(self.core.evict(wanted).pages) if wanted else Amounts())

    def evict_for_alloc(self, params: Any, *, allocation_reclaim_satisfied: Callable[[], bool] | None = None) -> Any:
        """As `evict`; with `allocation_reclaim_satisfied`, where the sides share bytes, until that says yes.

        Then nodes go one by one, and windows alone only behind them: a prefix without its window cannot be used.
        """
        if allocation_reclaim_satisfied is None:
            return self.evict(params)
        gone = Amounts()
        for side, wanted in self._pages(params).items():
            while gone.get(side, 0) < wanted and not allocation_reclaim_satisfied():
                step = self.core.evict({side: 1})
                if not any(step.pages.values()):
                    break
                gone += step.pages
        return self._result(gone)

    def unlock(self, lock: Any) -> None:
        """Undo one `lock`, with or without its window part. Does nothing for None."""
        if lock is not None and lock.node != self.root_node:
            node = lock.node.core
            self.core.unlock(node, window_from=node.end if lock.swa_released else None)

    def release_swa(self, lock: Any) -> None:
        """Let go the windows that a lock keeps. Does nothing for None, and the second time."""
        if lock is None or lock.swa_released or lock.node == self.root_node:
            return
        node = lock.node.core
        self.core.loosen(node, self._window.needed_from(node.end), node.end)
        lock.swa_released = True

    def release_swa_prefix_lock(self, req: Any) -> None:
        """Let go the windows of a request's prefix, behind which its own window has moved."""
        self.release_swa(req.lock)

    full_evictable_size = RadixCache.evictable_size
    full_protected_size = RadixCache.protected_size

    def swa_evictable_size(self) -> int:
        """Cached tokens whose windows can be evicted."""
        return self.core.window_evictable_tokens

    def swa_protected_size(self) -> int:
        """Cached tokens whose windows locks keep."""
        return self.core.window_protected_tokens

    def available_and_evictable_str(self) -> str:
        """Tokens and windows that are free and evictable, for a log line."""
        allocator = self.token_to_kv_pool_allocator
        tokens = allocator.full_available_size(), self.full_evictable_size()
        windows = allocator.swa_available_size(), self.swa_evictable_size()
        return (
            f"{sum(tokens)} tokens can be used: {tokens[0]} free, {tokens[1]} cached and not locked; "
            f"{sum(windows)} windows: {windows[0]} free, {windows[1]} cached and not locked\n"
        )

    def _new_tree(self, policy: str) -> tuple[SlotPool, PrefixTree]:
        pool = WindowedPool(self.token_to_kv_pool_allocator)
        return pool, PrefixTree(pool, policy=policy, window=self._window)

    def _recorder(self, params: Any) -> None:
        if params.enable_kv_cache_events:
            raise NotImplementedError("KV events of a tree with windows are not supported. Leave the tree to SGLang.")

    def _pages(self, params: Any) -> dict[str, int]:
        """Pages to evict of each side; none of a side that does not ask for any."""
        tokens = {FULL: params.num_tokens, WINDOW: params.swa_num_tokens}
        return {side: -(-wanted // self.page_size) for side, wanted in tokens.items() if wanted > 0}

    def _result(self, gone: Amounts) -> Any:
        size = self.page_size
        return engine_types().EvictResult(
            num_tokens_evicted=gone.get(FULL, 0) * size, swa_num_tokens_evicted=gone.get(WINDOW, 0) * size
        )
