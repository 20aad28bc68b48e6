"""Numbers of parameters: in total, and those that one token passes through."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weights:
    """`total` parameters, of which a token passes through `active`."""

    total: int = 0
    active: int = 0

    @staticmethod
    def dense(count: int) -> Weights:
        """`count` parameters, all of which every token passes through."""
        return Weights(count, count)

    def __add__(self, other: Weights) -> Weights:
        return Weights(self.total + other.total, self.active + other.active)

    def __mul__(self, factor: int) -> Weights:
        return Weights(self.total * factor, self.active * factor)
