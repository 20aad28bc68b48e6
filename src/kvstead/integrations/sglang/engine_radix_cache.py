"""`RadixCache` and its kin as SGLang's engine takes them: a `BasePrefixCache` of SGLang's.

Needs SGLang; `radix_cache` and `window_radix_cache` do not.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache

from kvstead.integrations.sglang import radix_cache, window_radix_cache


class RadixCache(radix_cache.RadixCache, BasePrefixCache):  # type: ignore[misc]  # SGLang is untyped here
    """As `radix_cache.RadixCache`, with SGLang's own answers to what only other kinds of cache answer otherwise.

    KV events are recorded by SGLang's recorder.
    """

    def _recorder(self, params: Any) -> Any:
        from sglang.srt.mem_cache.events import KVCacheEventRecorder

        return KVCacheEventRecorder(
            enabled=params.enable_kv_cache_events and not params.disable,
            page_size=params.page_size,
            dynamo_format=params.dynamo_kv_event_format,
            lora_names=params.kv_event_lora_names,
        )


class WindowRadixCache(window_radix_cache.WindowRadixCache, BasePrefixCache):  # type: ignore[misc]  # as above
    """As `window_radix_cache.WindowRadixCache`, with SGLang's own answers besides."""
