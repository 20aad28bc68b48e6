"""What callers say of pools, by name: how many pages they want, and how many they would give back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvstead.errors import InvalidSize, LayoutError


class PoolIndex:
    """Names of pools in their order, and what callers say of them, checked."""

    __slots__ = ("_index",)

    def __init__(self, names: Sequence[str]) -> None:
        self._index = {name: index for index, name in enumerate(names)}

    def find(self, pool: str) -> int:
        """The place of a pool. Raises `LayoutError` for one that is not there."""
        index = self._index.get(pool)
        if index is None:
            raise LayoutError(f"the arena has no pool {pool!r}. Its pools are {', '.join(self._index)}.")
        return index

    def wanted(self, demand: Mapping[str, int]) -> list[tuple[int, int]]:
        """(place, pages) of each pool, in the order given. Raises `InvalidSize` for a negative number too."""
        pairs = []
        for name, num_pages in demand.items():
            if num_pages < 0:
                raise InvalidSize(f"{num_pages} pages of pool {name!r} are asked for. Ask for 0 or more.")
            pairs.append((self.find(name), num_pages))
        return pairs

    def released(self, without: Mapping[str, int] | None, num_live: Sequence[int]) -> list[int]:
        """Pages of every pool that are thought away. Raises `InvalidSize` for more than are live."""
        counts = [0] * len(num_live)
        for name, num_pages in (without or {}).items():
            index = self.find(name)
            if not 0 <= num_pages <= num_live[index]:
                raise InvalidSize(
                    f"{num_pages} pages of pool {name!r} are to be thought away, of which {num_live[index]} are live. "
                    "Name 0 or more, and no more than are live."
                )
            counts[index] = num_pages
        return counts
