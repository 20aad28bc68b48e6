"""Pages: their states, the lists of free ones, pools that are linked, and the group in which frees wait."""

from kvstead.pages.free_group import FreeGroup, Release
from kvstead.pages.free_list import FreeList
from kvstead.pages.linked_pool import LinkedPool
from kvstead.pages.page_table import PageTable
from kvstead.pages.places import Places

__all__ = ["FreeGroup", "FreeList", "LinkedPool", "PageTable", "Places", "Release"]
