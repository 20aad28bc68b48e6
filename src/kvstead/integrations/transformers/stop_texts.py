"""Texts that end an answer: found across pieces, and never shown, not even in part."""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Passes on the text of one answer up to the first of `stops`, holding back what may be the beginning of one.

    The pieces returned and the `rest` joined are the answer's text before the stop that ends first.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.has_ended = False

    def take(self, text: str) -> str:
        """Add a piece; returns what is certain to be shown. `has_ended` says whether a stop was found."""
        if self.has_ended:
            return ""
        self._held += text
        places = [(place + len(stop), place) for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if places:
            self.has_ended = True
            shown, self._held = self._held[: min(places)[1]], ""
            return shown
        most = max(map(len, self._stops)) - 1
        kept = next((size for size in range(min(most, len(self._held)), 0, -1) if self._may_begin(size)), 0)
        shown, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return shown

    def rest(self) -> str:
        """What was held back, for an answer that ended otherwise."""
        held, self._held = self._held, ""
        return held

    def _may_begin(self, size: int) -> bool:
        return any(stop.startswith(self._held[-size:]) for stop in self._stops)
