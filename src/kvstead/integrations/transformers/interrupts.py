"""Ctrl-C where it does no harm.

Python raises `KeyboardInterrupt` between any two lines, so also between two that keep books. Here it waits for their
end, and is let through while a model computes:

    with held() as interrupts:      # plan
        with interrupts.let_in():   # compute
            ...
        ...                         # process
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Held:
    """Ctrl-C while it is held back: noted, and raised when it is let in. Only the main thread ever gets it."""

    def __init__(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        self._handler: Any = signal.getsignal(signal.SIGINT) if is_main else None
        self._noted: tuple[int, FrameType | None] | None = None

    def hold(self) -> None:
        """From now on only note it. Nothing happens where it would not be raised anyway."""
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._note)

    def release(self) -> None:
        """Have it handled as before, also one that was noted."""
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._handler)
            noted, self._noted = self._noted, None
            if noted is not None:
                self._handler(*noted)

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """Within this block it is handled as before."""
        try:
            self.release()
            yield
        finally:
            self.hold()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = number, frame


@contextmanager
def held() -> Iterator[Held]:
    """Hold Ctrl-C back within this block. Blocks may lie in each other: only the outermost raises it."""
    interrupts = Held()
    interrupts.hold()
    try:
        yield interrupts
    finally:
        interrupts.release()
