"""When the pages of a unified buffer may move, and what has to be done by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Moving:
    """The fence and the gates of one chain.

    forward_done: the event of the last forward pass that was launched; None when nothing is in flight. forward_stream:
    where forward passes run; without an event the whole of it is waited for. gates: by the name of who installed them;
    pages move while all of them say yes.
    """

    def __init__(self, device: str | torch.device) -> None:
        self.forward_done: Any = None
        self.forward_stream: Any = None
        self.gates: dict[str, Callable[[], bool]] = {}
        self._device = torch.device(device)

    def fence(self) -> None:
        """Order what comes next on the current stream behind the last forward pass. The host does not wait."""
        if self.forward_done is not None:
            self.forward_done.wait()
        elif self.forward_stream is not None:
            torch.get_device_module(self._device).current_stream().wait_stream(self.forward_stream)

    def may_move(self) -> bool:
        """Whether pages that are in use may move now."""
        return all(gate() for gate in self.gates.values())
