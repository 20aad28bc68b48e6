"""Small models of every kind, and managers of every memory layout for them."""

from kvstead.engine import KVCacheManager
from kvstead.replay.options import Layout
from tiny_model import tiny_layout, tiny_state_layout, tiny_window_layout

MODELS = {
    "whole sequences": tiny_layout(),
    "windows": tiny_window_layout(5),
    "chunks": tiny_window_layout(8, chunked=True),
    "windows alone": tiny_window_layout(6, pure=True),
    "states": tiny_state_layout(),
    "states and windows": tiny_state_layout(5, state_rows=7),
    "states and chunks": tiny_state_layout(8, chunked=True, state_rows=1),
}
POOL_LAYOUTS = [str(layout) for layout in Layout]
_PLENTY = 2**20


def manager_for(model, pool_layout, page_size, num_tokens, *, num_states=3, num_windows=1, **options):
    """A manager without tensors, with capacity for `num_tokens` tokens, so many states, and windows of requests.

    Sides of a static memory have just that; one that shares bytes has as many, and an arena a page of each kind more,
    which grids may cost.
    """
    options = {"max_requests": 16, "max_length": 4096, "storage": False, "state_interval": 8, **options}
    if pool_layout == "static" or not model.full_bytes_per_token:
        pages = -(-num_tokens // page_size)
        sizes = {"num_slots": pages * page_size}
        if model.window is not None:
            key = "num_window_slots" if model.full_bytes_per_token else "num_slots"
            sizes[key] = min(pages, num_windows * model.window_rule.pages(page_size)) * page_size
        if model.state_bytes:
            sizes["num_states"] = num_states
        return KVCacheManager(model, pool_layout=pool_layout, page_size=page_size, **sizes, **options)
    plan = KVCacheManager(model, _PLENTY, pool_layout=pool_layout, page_size=page_size, storage=False).plan
    pages = -(-num_tokens // plan.page_size)
    windows = min(pages, num_windows * model.window_rule.pages(plan.page_size)) if model.window else 0
    each = plan.page_bytes
    num_bytes = plan.sink_bytes + pages * each["full"] + windows * each["window"] + num_states * each["state"]
    num_bytes += sum(each.values()) if plan.has_arena else 0
    return KVCacheManager(model, num_bytes, pool_layout=pool_layout, page_size=page_size, **options)


def manager_of_bytes(model, num_bytes, pool_layout, **options):
    """A manager without tensors, of `num_bytes`, in pages of one token."""
    options = {"page_size": 1, "max_requests": 1, "max_length": 4096, "state_interval": 16, **options}
    return KVCacheManager(model, num_bytes, pool_layout=pool_layout, storage=False, **options)
