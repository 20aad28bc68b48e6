"""What a model caches, read from its configuration: kinds and sizes, and from bytes to slots and back."""

from kvstead.model.catalog import preset_names, preset_source
from kvstead.model.compute import ComputeProfile, load_profile
from kvstead.model.kinds import BOUNDED, WHOLE_SEQUENCE, CacheKind, LayerCache, LayoutOptions, StatePart, TokenCache
from kvstead.model.layout import ModelLayout, load_layout
from kvstead.model.padding import EqualPage, PaddedPages, equal_page, padded_pages
from kvstead.model.sizing import (
    MemorySplit,
    concurrent_requests,
    split_bytes,
    split_for_slots,
    split_memory,
    split_slots,
)
from kvstead.model.window import Window

__all__ = [
    "BOUNDED",
    "WHOLE_SEQUENCE",
    "CacheKind",
    "ComputeProfile",
    "EqualPage",
    "LayerCache",
    "LayoutOptions",
    "MemorySplit",
    "ModelLayout",
    "PaddedPages",
    "StatePart",
    "TokenCache",
    "Window",
    "concurrent_requests",
    "equal_page",
    "load_layout",
    "load_profile",
    "padded_pages",
    "preset_names",
    "preset_source",
    "split_bytes",
    "split_for_slots",
    "split_memory",
    "split_slots",
]
