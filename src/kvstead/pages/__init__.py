"""Pages: their states, the lists of free ones, and the group in which frees wait."""

from kvstead.pages.free_group import FreeGroup, Release
from kvstead.pages.free_list import FreeList
from kvstead.pages.page_table import PageTable

__all__ = ["FreeGroup", "FreeList", "PageTable", "Release"]
