"""How much a prefix tree holds, by what may become of it. Every count is kept, none is searched for."""

from __future__ import annotations

from kvstead.pages.amounts import Amounts
from kvstead.prefix.component import Component
from kvstead.prefix.full import FullComponent
from kvstead.prefix.state import StateComponent
from kvstead.prefix.window import WindowComponent


class TreeCounts:
    """What a `PrefixTree` counts, of its own parts."""

    page_size: int
    _components: list[Component]
    _full: FullComponent
    _window: WindowComponent | None
    _states: StateComponent | None

    def evictable(self) -> Amounts:
        """Pages of each side that eviction can free. O(sides)."""
        amounts = Amounts()
        for part in self._components:
            amounts[part.side] = part.evictable
        return amounts

    @property
    def evictable_tokens(self) -> int:
        """Tokens that eviction can free. O(1)."""
        return self._full.evictable * self.page_size

    @property
    def protected_tokens(self) -> int:
        """Tokens on paths that are locked or lead to held states. O(1)."""
        return self._full.protected * self.page_size

    @property
    def window_evictable_tokens(self) -> int:
        """Tokens whose window slots eviction can free. O(1)."""
        return self._window.evictable * self.page_size if self._window else 0

    @property
    def spare_window_pages(self) -> int:
        """Pages with such windows that no sequence needs to continue, since none ended near enough. O(1)."""
        return self._window.spare if self._window else 0

    @property
    def window_protected_tokens(self) -> int:
        """Tokens whose window slots locks keep. O(1)."""
        return self._window.protected * self.page_size if self._window else 0

    @property
    def num_tombstone_tokens(self) -> int:
        """Cached tokens that have no window slots any more. O(1)."""
        return self._window.dead * self.page_size if self._window else 0

    @property
    def num_states(self) -> int:
        """States that nodes have, each in a slot of its own. O(1)."""
        return self._states.num_states if self._states else 0

    @property
    def evictable_states(self) -> int:
        """Those of them that eviction can free. O(1)."""
        return self._states.evictable if self._states else 0

    @property
    def held_states(self) -> int:
        """Those of them that `hold_state` keeps. O(1)."""
        return self.num_states - self.evictable_states
