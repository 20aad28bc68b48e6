"""What computes a step: the part that an engine supplies."""

from __future__ import annotations

from typing import Protocol

from kvstead.engine.step import Step
from kvstead.kernels.arrays import Integers


class Pending(Protocol):
    """A step that was launched and whose tokens may not be known yet."""

    def tokens(self) -> Integers:
        """Wait for the step; one token id for each decoding row, then one for each chunk."""


class Runner(Protocol):
    """Computes steps in the order in which they are launched, on the rows as they are at the launch.

    What a row reads may be handed to another request while a step is under way; that one writes in a later step.
    """

    def launch(self, step: Step) -> Pending:
        """Start to compute a step; its slots may be written from now on."""
