"""One byte buffer for pools of different entry sizes: their spans, and virtual pages that stay when data moves."""

from kvstead.arena.page_map import PageMap
from kvstead.arena.span import Extent, Span

__all__ = ["Extent", "PageMap", "Span"]
