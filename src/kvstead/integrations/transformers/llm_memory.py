"""The memory that an `LLM` computes on, and the longest request that it holds."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from kvstead.engine import KVCacheManager, Request, Scheduler
from kvstead.errors import InvalidSize
from kvstead.integrations.transformers.families import Way, rope_limit, way_of
from kvstead.integrations.transformers.layout import model_layout
from kvstead.model import ModelLayout

_LONG = 131_072  # tokens, where the model sets no limit


def make_scheduler(
    model: PreTrainedModel,
    num_bytes: int,
    *,
    pool_layout: str,
    page_size: int,
    max_requests: int,
    max_length: int | None,
    chunk_tokens: int,
    decode_headroom: int,
    prefix_cache: bool,
) -> Scheduler:
    """A scheduler on a manager for a model's layout. Its rows are as long as the longest request may be.

    Raises `LayoutError` for a model that does not run, `InvalidSize` for a `max_length` below 2 or beyond the model's
    own limit, and as `KVCacheManager` does.
    """
    is_whole = way_of(model.config) is Way.WHOLE
    layout = model_layout(model)
    manager = KVCacheManager(
        layout,
        num_bytes,
        pool_layout=pool_layout,
        page_size=page_size,
        max_requests=max_requests,
        max_length=_length_limit(model.config, layout, num_bytes, max_length),
        prefix_cache=prefix_cache and not is_whole,
        device=model.device,
    )
    if is_whole:  # a step takes all prompts that the memory holds together, and cuts none of them
        chunk_tokens = max(chunk_tokens, manager.num_slots)
    return Scheduler(manager, chunk_tokens=chunk_tokens, decode_headroom=decode_headroom)


def longest_request(scheduler: Scheduler) -> int:
    """Tokens of the longest request that the scheduler's memory holds by itself, with all kinds of cache."""

    def is_too_long(length: int) -> bool:
        return bool(scheduler.admission.why_never(Request(0, np.zeros(1, dtype=np.int64), length - 1)))

    manager = scheduler.manager
    most = min(manager.table.width, manager.num_slots)
    return bisect_left(range(2, most + 1), x=True, key=is_too_long) + 1


def _length_limit(config: Any, layout: ModelLayout, num_bytes: int, max_length: int | None) -> int:
    """Tokens of the longest request that the model's positions allow and the bytes could hold."""
    own = min(getattr(config, "max_position_embeddings", _LONG), rope_limit(config))
    if max_length is not None and not 1 < max_length <= own:
        raise InvalidSize(f"max_length is {max_length}, and the model's own {own}. Use 2 .. {own}, or leave it out.")
    token_bytes = layout.full_bytes_per_token
    fits = num_bytes // token_bytes if token_bytes else own
    return max(min(own if max_length is None else max_length, fits), 1)
