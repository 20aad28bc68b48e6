"""Members of SGLang's classes that ours lack or inherit on purpose, each with the reason.

`coverage` counts every other difference as a fault. The reasons are the answer to "why is this not there".
"""

from __future__ import annotations

from collections.abc import Mapping

_GROUPS = "frees that wait are in `free_group`, one list for all kinds"
_STAGED = "free pages are in one list; none are staged"
_DRAFT = "a buffer with a fused draft is refused when it is made"
_HICACHE = "with HiCache the unified classes stay SGLang's"
_CHAIN = "the arena's chain knows the order of its pools and moves their pages itself"
_KVCACHE = "the base keeps the pool for all of them"

_WINDOW_GROUPS = {"swa_page_ids_group": _GROUPS}
_UNIFIED_GROUPS = dict.fromkeys(("free_page_reps_group", "full_free_group", "full_page_reps_group"), _GROUPS)
_PAGED = {
    "free_page_ids_group": _GROUPS,
    "num_staged_pages": _STAGED,
    "staged_pages": _STAGED,
    "use_triton_kernels": "there is one path for each device",
}

# Public members that ours do not have, by class.
ABSENT: Mapping[str, Mapping[str, str]] = {
    "PagedTokenToKVPoolAllocator": _PAGED,
    "NPUPagedTokenToKVPoolAllocator": _PAGED | {"roundup": "a number of its own kernels"},
    "SWATokenToKVPoolAllocator": _WINDOW_GROUPS,
    "PureSWATokenToKVPoolAllocator": _WINDOW_GROUPS,
    "DeepSeekV4HiSparseTokenToKVPoolAllocator": {"full_free_group": _GROUPS},
    "RadixCache": {
        "evictable_leaves": "the core orders what can be evicted",
        "eviction_strategy": "the core has the policy, by its name",
    },
    "MultiEndedAllocator": {
        "free_page_reps_group": _GROUPS,
        "alloc_physical": _HICACHE,
        "cancel_physical_reservation": _HICACHE,
        "free_physical": _HICACHE,
        "bind": "a page is bound when it is handed out; only a window view passes pages on",
        "low_peer": _CHAIN,
        "high_peer": _CHAIN,
        "forward_stream": "the buffer orders moves behind it, for all pools",
        "disagg_move_gate": "the buffer has the gate, for all pools",
        "host_transfer_move_gate": "the buffer has the gate, for all pools",
        "pool_page_size": "it is `page_size`: decode context parallelism is refused",
        "shards_under_dcp": "decode context parallelism is refused",
    },
    "UnifiedMambaTokenToKVPoolAllocator": {"free_page_reps_group": _GROUPS},
    "UnifiedSWAAllocatorBase": _UNIFIED_GROUPS | _WINDOW_GROUPS,
    "UnifiedSWATokenToKVPoolAllocator": _UNIFIED_GROUPS | _WINDOW_GROUPS,
    "UnifiedMambaSWATokenToKVPoolAllocator": _UNIFIED_GROUPS | _WINDOW_GROUPS,
    "UnifiedKVPool": {
        "build_dense_draft_views": _DRAFT,
        "build_draft_state_views": _DRAFT,
        "require_draft_host_spec": _DRAFT,
        "finalize_backing": "backing after capture is refused when the buffer is made",
        "memory_saver_adapter": "a memory saver is refused when the buffer is made",
    },
    "MHASubPoolSpec": {"draft_offset_in_entry": _DRAFT, "layout": "the buffer makes its tensors itself"},
    "MLASubPoolSpec": {"draft_offset_in_entry": _DRAFT, "layout": "the buffer makes its tensors itself"},
    "MambaSubPoolSpec": {"draft_offset_in_entry": _DRAFT},
}

_BASE_ANSWERS = {"get_kvcache": _KVCACHE}
_HOST_EVENTS = {"set_hicache_transfer_done_event": _HICACHE}

# Public members that SGLang's class defines itself and ours inherits from the class that stands for its base.
INHERITED: Mapping[str, Mapping[str, str]] = {
    "PagedTokenToKVPoolAllocator": {"get_all_free_pages": "it is read from `free_pages`, which are all there are"},
    "SWATokenToKVPoolAllocator": _BASE_ANSWERS,
    "PureSWATokenToKVPoolAllocator": {"new_pages_available": "both sides of its core are one"},
    "HiSparseTokenToKVPoolAllocator": _BASE_ANSWERS | {"size_full": "`size` is the logical side's, as in SGLang"},
    "DeepSeekV4HiSparseTokenToKVPoolAllocator": _BASE_ANSWERS,
    "MultiEndedAllocator": _HOST_EVENTS,
    "UnifiedMambaTokenToKVPoolAllocator": _BASE_ANSWERS | _HOST_EVENTS,
    "UnifiedSWAAllocatorBase": _BASE_ANSWERS | _HOST_EVENTS,
    "UnifiedSWATokenToKVPoolAllocator": {"swa_capacity_and_available": "the base prices both sides together"},
    "UnifiedMambaSWATokenToKVPoolAllocator": {"swa_capacity_and_available": "the base prices all sides together"},
}
