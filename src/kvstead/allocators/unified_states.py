"""Allocators whose arena keeps a recurrent state for each request as well.

    UnifiedMambaAllocator       | sink | state >>> .............................. <<< full |
    UnifiedMambaSWAAllocator    | sink | state >>> ....... << window >> ......... <<< full |

States are large and tokens many, so they have the ends, where nothing slides. Windows are small, and the holes that
they leave behind are soon used again: they give way. Tokens and states are asked for apart; `fits` answers for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch

from kvstead.allocators.arena_pages import ArenaPages
from kvstead.allocators.multi_ended import MultiEndedAllocator
from kvstead.allocators.states import StateAllocator
from kvstead.allocators.unified import UnifiedSWAAllocator, num_pages_for, side
from kvstead.arena import Chain, PoolChain
from kvstead.errors import LayoutError
from kvstead.pools.byte_arena import ByteArena
from kvstead.pools.entry_spec import EntrySpec, Place


def state_pages(chain: Chain, order: str) -> ArenaPages:
    """The pool "state" of a chain. Raises `LayoutError` for pages of several states."""
    if chain.page_size("state") != 1:
        raise LayoutError(
            f"pages of pool 'state' have {chain.page_size('state')} entries. A state is a page of its own."
        )
    return ArenaPages(chain, "state", order)


class UnifiedMambaAllocator(MultiEndedAllocator):
    """Slots for tokens in the pool "full" of `chain`, and in `states`, from the pool "state", one a request.

    full, state: bytes of a token and of a state, or `EntrySpec`s, whose name, place and page size are set here. The
    other keywords as for `UnifiedSWAAllocator`. Frees on both sides wait for the end of one group; `clear` and `audit`
    are about both.

    Raises `InvalidSize` for a size below 1, `LayoutError` for an arena without room for a page of each pool.
    """

    states: StateAllocator

    def __init__(
        self,
        arena_bytes: int,
        *,
        page_size: int,
        full: EntrySpec | int,
        state: EntrySpec | int,
        eager: bool = False,
        fence: Callable[[], None] | None = None,
        may_move: Callable[[], bool] | None = None,
        device: str | torch.device = "cpu",
        order: str = "lifo",
        storage: bool = True,
    ) -> None:
        specs = side(state, "state", 1, Place.LOW), side(full, "full", page_size, Place.HIGH)
        arena = ByteArena(arena_bytes, device, storage=storage)
        chain = PoolChain(arena, specs, eager=eager, fence=fence, may_move=may_move)
        self._divide(chain, order)

    @classmethod
    def over(cls, chain: Chain, *, order: str = "lifo") -> Self:
        """The same on a chain of the caller's, which has pools "full" and "state".

        Raises `LayoutError` for another chain, `InvalidSize` for an unknown order.
        """
        allocator = cls.__new__(cls)
        cls._divide(allocator, chain, order)
        return allocator

    def fits(self, num_tokens: int = 0, *, num_states: int = 0) -> bool:
        """Whether so many tokens, in new pages, and then so many states fit now, together.

        Raises `InvalidSize` for a negative number.
        """
        return self.chain.fits({"full": num_pages_for(num_tokens, self.page_size), "state": num_states})

    def _divide(self, chain: Chain, order: str) -> None:
        super().__init__(chain, "full", order=order)
        self._keep_states(state_pages(chain, order))


class UnifiedMambaSWAAllocator(UnifiedSWAAllocator):
    """A `UnifiedSWAAllocator` with a third pool, "state", in its arena, for `states`, one a request.

    full, window, state: bytes of a token on each side and of a state, or `EntrySpec`s; the other keywords and errors as
    for `UnifiedSWAAllocator`. Frees on all sides wait for the end of one group; `clear` and `audit` are about all.
    """

    states: StateAllocator

    def __init__(
        self,
        arena_bytes: int,
        *,
        page_size: int,
        full: EntrySpec | int,
        window: EntrySpec | int,
        state: EntrySpec | int,
        eager: bool = False,
        fence: Callable[[], None] | None = None,
        may_move: Callable[[], bool] | None = None,
        device: str | torch.device = "cpu",
        order: str = "lifo",
        storage: bool = True,
    ) -> None:
        specs = (
            side(state, "state", 1, Place.LOW),
            side(window, "window", page_size, Place.MIDDLE),
            side(full, "full", page_size, Place.HIGH),
        )
        arena = ByteArena(arena_bytes, device, storage=storage)
        self._divide(PoolChain(arena, specs, eager=eager, fence=fence, may_move=may_move), order)

    def fits(self, num_tokens: int = 0, *, num_window_tokens: int | None = None, num_states: int = 0) -> bool:
        """As for two sides, and then so many states: whether all of it fits now, together."""
        return self.chain.fits(self._demand_of(num_tokens, num_window_tokens) | {"state": num_states})

    def _divide(self, chain: Chain, order: str) -> None:
        super()._divide(chain, order)
        self._keep_states(state_pages(chain, order))
