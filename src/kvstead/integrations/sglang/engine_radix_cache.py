"""`RadixCache` as SGLang's engine takes it: a `BasePrefixCache` of SGLang's. Needs SGLang; `radix_cache` does not."""

from __future__ import annotations

from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache

from kvstead.integrations.sglang import radix_cache


class RadixCache(radix_cache.RadixCache, BasePrefixCache):  # type: ignore[misc]  # SGLang is untyped here
    """As `radix_cache.RadixCache`, with SGLang's own answers to what only other kinds of cache answer otherwise."""
