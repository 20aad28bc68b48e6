"""The allocator of a model with full and sliding layers whose two sides lie in one arena.

    | sink | window >>> .......... <<< full |       each side grows into what the other leaves

A call has its pages on both sides or on neither; the pages of a side move when the other needs the room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Self

import torch

from kvstead.allocators.arena_pages import ArenaPages
from kvstead.allocators.swa import SWAAllocator
from kvstead.arena import Chain, PoolChain
from kvstead.errors import InvalidSize, LayoutError
from kvstead.kernels.arrays import Integers, hand_out, to_host
from kvstead.pools.byte_arena import ByteArena
from kvstead.pools.entry_spec import EntrySpec, Place


def side(kind: EntrySpec | int, name: str, page_size: int, place: Place) -> EntrySpec:
    """What one pool keeps, at its place in the chain. Plain bytes promise no alignment."""
    spec = kind if isinstance(kind, EntrySpec) else EntrySpec(name, kind, align=1)
    return replace(spec, name=name, page_size=page_size, place=place)


def num_pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that so many new tokens take. Raises `InvalidSize` for a negative number."""
    if num_tokens < 0:
        raise InvalidSize(f"{num_tokens} tokens are asked for. Ask for 0 or more.")
    return -(-num_tokens // page_size)


class UnifiedSWAAllocator(SWAAllocator):
    """An `SWAAllocator` whose two sides share `arena_bytes`: neither has a size of its own.

    full, window: bytes of a token on each side, or `EntrySpec`s, whose name, place and page size are set here. eager,
    fence, may_move: see `PoolChain`. order: in which ids are reused, see `FreeList`. storage: False keeps the books and
    no bytes, for simulation.

    Slots of both sides are virtual; `physical_slots` and `physical_window_slots` say where they lie now. `size` and
    `swa_size` are what each side could hold alone, `available_size` what both have room for together. `chain` has the
    pools "full" and "window"; nobody else may take from them.

    Raises `InvalidSize` for a size below 1, `LayoutError` for an arena without room for a page of each pool.
    """

    chain: Chain
    _free_list: ArenaPages
    _windows: ArenaPages

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
        self._divide(PoolChain(arena, specs, eager=eager, fence=fence, may_move=may_move), order)

    @classmethod
    def over(cls, chain: Chain, *, order: str = "lifo") -> Self:
        """The same on a chain of the caller's, which has pools of these names and one page size for all tokens.

        Raises `LayoutError` for another chain, `InvalidSize` for an unknown order.
        """
        allocator = cls.__new__(cls)
        cls._divide(allocator, chain, order)
        return allocator

    def available_size(self) -> int:
        """Tokens that can be allocated now, each with its window slot: exactly what `alloc` has room for.

        What is parked in an open group does not count.
        """
        return self.chain.capacity(("full", "window")) * self.page_size

    def full_available_size(self) -> int:
        """Tokens that the full side has room for now, if the window side takes none."""
        return self._free_list.capacity() * self.page_size

    def swa_available_size(self) -> int:
        """Tokens that the window side has room for now, if the full side takes none."""
        return self._windows.capacity() * self.page_size

    def fits(self, num_tokens: int = 0, *, num_window_tokens: int | None = None) -> bool:
        """Whether so many tokens, in new pages, fit now, with window slots for all or for `num_window_tokens` of them.

        Raises `InvalidSize` for a negative number.
        """
        return self.chain.fits(self._demand_of(num_tokens, num_window_tokens))

    def physical_slots(self, slots: Integers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where the full side of slots lies now: as `MultiEndedAllocator.physical_slots`."""
        return hand_out(self._free_list.translate(to_host(slots), self.page_size), slots, out, self.device)

    def physical_window_slots(self, slots: Integers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Where the window side of full slots lies now, 0 for a slot without one: as `physical_slots`."""
        peers = self._peer_slots(to_host(slots))
        return hand_out(self._windows.translate(peers, self.page_size), slots, out, self.device)

    def _divide(self, chain: Chain, order: str) -> None:
        """Start on a chain that has the pools."""
        page_size, window_page_size = chain.page_size("full"), chain.page_size("window")
        if page_size != window_page_size:
            raise LayoutError(
                f"pages of pool 'full' have {page_size} tokens, those of pool 'window' {window_page_size}. Give both "
                "one page size: a page and its peer hold the same tokens."
            )
        self.chain = chain
        self._manage(ArenaPages(chain, "full", order), page_size, chain.device)
        self._pair(ArenaPages(chain, "window", order))

    def _demand_of(self, num_tokens: int, num_window_tokens: int | None) -> dict[str, int]:
        """Pages, in the order in which they are taken: it matters while nothing may move."""
        num_windows = num_tokens if num_window_tokens is None else num_window_tokens
        return {"full": num_pages_for(num_tokens, self.page_size), "window": num_pages_for(num_windows, self.page_size)}

    def _has_room(self, num_pages: int, num_windows: int) -> bool:
        return self.chain.fits({"full": num_pages, "window": num_windows})
