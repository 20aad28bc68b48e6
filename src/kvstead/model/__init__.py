"""What a model needs: the kinds and sizes of its caches, read from its configuration; bytes to slots and back."""

from kvstead.model.catalog import preset_names, preset_source
from kvstead.model.compute import ComputeProfile, load_profile
from kvstead.model.kinds import WHOLE_SEQUENCE, CacheKind, LayerCache, StatePart, TokenCache
from kvstead.model.layout import ModelLayout, load_layout
from kvstead.model.options import LayoutOptions
from kvstead.model.sizing import EqualPage, concurrent_requests, equal_page, split_slots

__all__ = [
    "WHOLE_SEQUENCE",
    "CacheKind",
    "ComputeProfile",
    "EqualPage",
    "LayerCache",
    "LayoutOptions",
    "ModelLayout",
    "StatePart",
    "TokenCache",
    "concurrent_requests",
    "equal_page",
    "load_layout",
    "load_profile",
    "preset_names",
    "preset_source",
    "split_slots",
]
