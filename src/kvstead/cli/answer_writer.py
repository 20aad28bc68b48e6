"""Writes texts while they are generated."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rich.console import Console

from kvstead.report.table import print_text

_MOST_TITLE = 72  # characters of a prompt that are shown above its answer


class AnswerWriter:
    """Writes answers under their prompts, in the order of the prompts, in whatever order they arrive.

    titles: of the prompts; a single one is not shown. The first answer that has not ended is written as it comes. Those
    behind it wait, so that the text in the end is the same as if it had been written at the end.
    """

    def __init__(self, titles: Sequence[str], console: Console) -> None:
        self._titles = titles
        self._console = console
        self._parts: list[deque[str]] = [deque() for _ in titles]  # what is not written yet
        self._has_ended = [False] * len(titles)
        self._at = self._num_titled = 0  # the answer being written, and how many titles are written

    def add(self, index: int, text: str, *, is_last: bool) -> None:
        """Queue the next part of answer `index`; nothing is written yet."""
        self._parts[index].append(text)
        self._has_ended[index] = is_last

    def write(self) -> None:
        """Write the parts whose turn has come. After an interrupt the next call goes on where this one stopped."""
        while self._at < len(self._titles):
            if self._num_titled == self._at:
                self._num_titled += 1
                self._write_title()
            parts = self._parts[self._at]
            while parts:
                self._write(parts.popleft())
            if not self._has_ended[self._at]:
                return
            self._at += 1
            self._write("\n\n")

    def write_rest(self) -> None:
        """Write everything that was queued, and take all answers as ended."""
        self._has_ended = [True] * len(self._titles)
        self.write()

    def _write_title(self) -> None:
        if len(self._titles) > 1:
            line = " ".join(self._titles[self._at].split())
            shown = line if len(line) <= _MOST_TITLE else f"{line[: _MOST_TITLE - 3]}..."
            print_text(f"[{self._at + 1}] {shown}", self._console, style="bold")

    def _write(self, text: str) -> None:
        """Bypass the console, which would expand tabs and cut lines."""
        self._console.file.write(text)
        self._console.file.flush()
