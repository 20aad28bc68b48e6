"""Ctrl-C only where it does no harm.

Python raises `KeyboardInterrupt` between any two lines, so also in the middle of a change to the memory. Here it waits
for the end of the block, and gets through while a model computes:

    with DelayedInterrupts() as interrupts:    # plan
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
from typing import Any, Self


class DelayedInterrupts:
    """Delays Ctrl-C until the end of a `with` block. Blocks may be nested: only the outermost raises it.

    Only the main thread ever gets one; in others, and where no interrupt would be raised anyway, this does nothing.
    """

    def __init__(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        self._handler: Any = signal.getsignal(signal.SIGINT) if is_main else None
        self._noted: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> Self:
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._handler)
            noted, self._noted = self._noted, None
            if noted is not None:
                self._handler(*noted)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Handle Ctrl-C as before within this block, and at once one that was noted."""
        try:
            self.__exit__()
            yield
        finally:
            self.__enter__()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = number, frame
