"""Allocators whose pools lie in an arena: slots that stay the same while their bytes move.

    MultiEndedAllocator         one pool of a chain of the caller's
    UnifiedSWAAllocator         | sink | window >>> ............................. <<< full |
    UnifiedMambaAllocator       | sink | state >>> .............................. <<< full |
    UnifiedMambaSWAAllocator    | sink | state >>> ....... << window >> ......... <<< full |

Each pool grows into what the others leave, and the pages of a pool move when another needs the room. States are large
and tokens many, so these have the ends, where nothing slides. Windows are small, and the holes that they leave are soon
used again, so they move. Tokens and states are taken by separate calls; `fits` answers for all sides together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from kvstead.allocators.allocator import Allocator
from kvstead.allocators.swa import WindowSide
from kvstead.arena import Chain, PoolChain
from kvstead.errors import InvalidSize, LayoutError
from kvstead.kernels.arrays import Integers, hand_out, to_host, whole
from kvstead.pages import FreeList, LinkedPool, Release
from kvstead.pages.free_group import DefersFrees
from kvstead.pools.byte_arena import ByteArena
from kvstead.pools.entry_spec import EntrySpec, Place


def arena_pages(chain: Chain, pool: str, order: str) -> FreeList:
    """Ids for the pages of a pool of a chain. Raises `LayoutError` for an unknown pool, `InvalidSize` for the order."""
    return FreeList(chain.num_ids(pool), order, chain.places(pool))


def side(kind: EntrySpec | int, name: str, page_size: int, place: Place) -> EntrySpec:
    """The spec of one pool at its place in the chain. An entry given in bytes has no alignment."""
    spec = kind if isinstance(kind, EntrySpec) else EntrySpec(name, kind, align=1)
    return replace(spec, name=name, page_size=page_size, place=place)


class ArenaAllocator(DefersFrees[Release], Allocator):
    """A `PagedAllocator` whose pages lie in `pool` of `chain`, beside other pools that use the same bytes.

    Slots are virtual: they are handed out, freed and checked as ever, and `physical_slots` says where they lie now.
    `available_size` is what the other pools leave room for; `size` is what the pool could hold alone. The page size is
    the pool's, the device the chain's. order: in which ids are reused, see `FreeList`. has_states: whether `states`
    come from the pool "state" of the chain.

    Nobody else may take pages of these pools. Raises `LayoutError` for a pool that the chain does not have or pages of
    several states, `InvalidSize` for an unknown order.
    """

    chain: Chain

    def __init__(self, chain: Chain, pool: str, *, order: str = "lifo", has_states: bool = False) -> None:
        pages = arena_pages(chain, pool, order)
        states = _state_pages(chain, order) if has_states else None
        super().__init__(pages, chain.page_size(pool), chain.device, states=states, chain=chain)
        self._pool_name = pool

    def fits(self, num_tokens: int = 0, *, num_states: int = 0) -> bool:
        """Whether so many tokens, in new pages, and then so many states fit now, together.

        Raises `InvalidSize` for a negative number.
        """
        demand = {self._pool_name: num_pages_for(num_tokens, self.page_size)}
        return self.chain.fits(demand | {"state": num_states} if num_states else demand)

    def physical_slots(self, slots: Integers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where slots lie now: int64 on the device, in the shape of `slots`; good until the next call that takes pages.

        0, in the padding, for slots that nobody holds, for padding and for -1. out: an int64 tensor of that shape to
        write to, which may be `slots`. Raises `ForeignPage` for any other id outside the pool, `InvalidSize` for an
        `out` that does not fit. O(slots); slots on another device are copied to the host, which waits for it.
        """
        return hand_out(self._pool.translate(to_host(slots), self.page_size), slots, out, self.device)


class MultiEndedAllocator(ArenaAllocator):
    """An `ArenaAllocator` of one pool of a chain; arguments and errors as there."""


class UnifiedMambaAllocator(ArenaAllocator):
    """Slots for tokens in the pool "full" of an arena, and in `states`, from the pool "state", one a request.

    full, state: bytes of a token and of a state, or `EntrySpec`s, whose name, place and page size are set here. The
    other keywords as for `UnifiedSWAAllocator`. Both sides have one free group; `clear` and `audit` cover both.

    Raises `InvalidSize` for a size below 1, `LayoutError` for an arena without room for a page of each pool.
    """

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
        super().__init__(chain, "full", order=order, has_states=True)

    @staticmethod
    def over(chain: Chain, *, order: str = "lifo") -> ArenaAllocator:
        """The same on a chain of the caller's, which has pools "full" and "state".

        Raises `LayoutError` for another chain, `InvalidSize` for an unknown order.
        """
        return ArenaAllocator(chain, "full", order=order, has_states=True)


class ArenaSWAAllocator(WindowSide, DefersFrees[Release], Allocator):
    """An `SWAAllocator` on the pools "full" and "window" of a chain: neither side has a size of its own.

    Slots of both sides are virtual; `physical_slots` and `physical_window_slots` say where they lie now. `size` and
    `swa_size` are what each side could hold alone, `available_size` what both have room for together. order,
    has_states, errors: as for `ArenaAllocator`, and `LayoutError` if the two page sizes differ. Nobody else may take
    pages of these pools.
    """

    chain: Chain

    def __init__(self, chain: Chain, *, order: str = "lifo", has_states: bool = False) -> None:
        page_size, window_page_size = chain.page_size("full"), chain.page_size("window")
        if page_size != window_page_size:
            raise LayoutError(
                f"pages of pool 'full' have {page_size} tokens, those of pool 'window' {window_page_size}. Give both "
                "one page size: a page and its window page hold the same tokens."
            )
        full = arena_pages(chain, "full", order)
        window = LinkedPool("window", arena_pages(chain, "window", order), full.table)
        states = _state_pages(chain, order) if has_states else None
        Allocator.__init__(self, full, page_size, chain.device, windows=window, states=states, chain=chain)
        WindowSide.__init__(self, window, page_size)

    def fits(self, num_tokens: int = 0, *, num_window_tokens: int | None = None, num_states: int = 0) -> bool:
        """As `ArenaAllocator.fits`. num_window_tokens: how many of the tokens get window slots, by default all."""
        num_windows = num_tokens if num_window_tokens is None else num_window_tokens
        demand = {"full": num_pages_for(num_tokens, self.page_size)}  # in the order in which pages are taken: it
        demand["window"] = num_pages_for(num_windows, self.page_size)  # matters while nothing may move
        return self.chain.fits(demand | {"state": num_states} if num_states else demand)

    def physical_slots(self, slots: Integers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where the full side of slots lies now: as `MultiEndedAllocator.physical_slots`."""
        return hand_out(self._pool.translate(to_host(slots), self.page_size), slots, out, self.device)

    def physical_window_slots(self, slots: Integers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where the window side of full slots lies now, 0 for a slot without one: as `physical_slots`."""
        linked = self._window.slots(to_host(slots), self.page_size)
        return hand_out(self._window.pool.translate(linked, self.page_size), slots, out, self.device)


class UnifiedSWAAllocator(ArenaSWAAllocator):
    """An `SWAAllocator` whose two sides share `arena_bytes`: neither has a size of its own.

    full, window: bytes of a token on each side, or `EntrySpec`s, whose name, place and page size are set here. eager,
    fence, may_move: see `PoolChain`. order: in which ids are reused, see `FreeList`. storage: False keeps the
    bookkeeping and no bytes, for simulation. `chain` has the pools "full" and "window".

    Raises `InvalidSize` for a size below 1, `LayoutError` for an arena without room for a page of each pool.
    """

    def __init__(
        self,
        arena_bytes: int,
        *,
        page_size: int,
        full: EntrySpec | int,
        window: EntrySpec | int,
        eager: bool = False,
        fence: Callable[[], None] | None = None,
        may_move: Callable[[], bool] | None = None,
        device: str | torch.device = "cpu",
        order: str = "lifo",
        storage: bool = True,
    ) -> None:
        specs = side(window, "window", page_size, Place.LOW), side(full, "full", page_size, Place.HIGH)
        arena = ByteArena(arena_bytes, device, storage=storage)
        chain = PoolChain(arena, specs, eager=eager, fence=fence, may_move=may_move)
        super().__init__(chain, order=order)

    @staticmethod
    def over(chain: Chain, *, order: str = "lifo") -> ArenaSWAAllocator:
        """The same on a chain of the caller's, which has pools of these names and one page size for all tokens.

        Raises `LayoutError` for another chain, `InvalidSize` for an unknown order.
        """
        return ArenaSWAAllocator(chain, order=order)


class UnifiedMambaSWAAllocator(ArenaSWAAllocator):
    """A `UnifiedSWAAllocator` with a third pool, "state", in its arena, for `states`, one a request.

    full, window, state: bytes of a token on each side and of a state, or `EntrySpec`s; the other keywords and errors as
    for `UnifiedSWAAllocator`. Frees on all sides wait for the end of one group; `clear` and `audit` cover all.
    """

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
        chain = PoolChain(arena, specs, eager=eager, fence=fence, may_move=may_move)
        super().__init__(chain, order=order, has_states=True)

    @staticmethod
    def over(chain: Chain, *, order: str = "lifo") -> ArenaSWAAllocator:
        """The same on a chain of the caller's, which has a pool "state" too. Raises as `UnifiedSWAAllocator.over`."""
        return ArenaSWAAllocator(chain, order=order, has_states=True)


def num_pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that so many new tokens take. Raises `InvalidSize` for a negative number."""
    num_tokens = whole(num_tokens, "the number of tokens")
    if num_tokens < 0:
        raise InvalidSize(f"{num_tokens} tokens are asked for. Ask for 0 or more.")
    return -(-num_tokens // page_size)


def _state_pages(chain: Chain, order: str) -> FreeList:
    """The pool "state" of a chain. Raises `LayoutError` for pages of several states."""
    if chain.page_size("state") != 1:
        raise LayoutError(
            f"pages of pool 'state' have {chain.page_size('state')} entries. A state is a page of its own."
        )
    return arena_pages(chain, "state", order)
