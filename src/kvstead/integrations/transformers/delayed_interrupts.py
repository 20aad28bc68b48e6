"""Ctrl-C only where it does no harm.

Python raises `KeyboardInterrupt` between any two lines, so also in the middle of a change to the memory. Here it waits
for the end of the block, and gets through while a model computes:

    with delayed_interrupts() as interrupts:    # plan
        with interrupts.allowed():              # compute
            ...
        ...                                     # process
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class DelayedInterrupts:
    """Notes a Ctrl-C, and raises it when interrupts are allowed. Only the main thread ever gets one."""

    def __init__(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        self._handler: Any = signal.getsignal(signal.SIGINT) if is_main else None
        self._noted: tuple[int, FrameType | None] | None = None

    def delay(self) -> None:
        """Only note it from now on. Does nothing where no interrupt would be raised anyway."""
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._note)

    def allow(self) -> None:
        """Handle it as before from now on, and one that was noted at once."""
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._handler)
            noted, self._noted = self._noted, None
            if noted is not None:
                self._handler(*noted)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Handle it as before within this block."""
        try:
            self.allow()
            yield
        finally:
            self.delay()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = number, frame


@contextmanager
def delayed_interrupts() -> Iterator[DelayedInterrupts]:
    """Delay Ctrl-C until the end of this block. Blocks may be nested: only the outermost raises it."""
    interrupts = DelayedInterrupts()
    interrupts.delay()
    try:
        yield interrupts
    finally:
        interrupts.allow()
