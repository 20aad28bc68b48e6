"""The pools of an arena, which make room for one another.

    | sink | state >>> ....... << window >> .......... <<< full |      the only free bytes that matter are the gaps;
             LOW end             MIDDLE               HIGH end        holes inside a span can be turned into gap

`take` succeeds if and only if some arrangement of the live pages has room (`fits`): what stands in the way is pushed
aside, neighbour by neighbour, with the fewest copies that clear the bytes wanted. Callers hold virtual pages, whose ids
stay the same while their data moves.

One rule guards the device: `fence()` is called before any copy, before any zero-fill, and before a span grows over
bytes that a span has given up since the last fence. It has to order the work to come behind the last forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvstead.arena.accounting import ArenaBytes, audit_chain, bytes_by_state
from kvstead.arena.arrangement import Arrangement, PoolIndex
from kvstead.arena.page_map import PageMap
from kvstead.arena.span import inward
from kvstead.arena.sub_pool import SubPool
from kvstead.errors import InvalidSize, LayoutError
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import whole
from kvstead.kernels.spans import HIGH, LOW
from kvstead.pools.byte_arena import ByteArena
from kvstead.pools.entry_spec import EntrySpec, Place


class PoolChain:
    """Pools of one arena, in the order of `specs`: at most one LOW end first, one HIGH end last, MIDDLE between.

    eager: an end pool closes its holes at every release, if it may; by default only what a `take` needs moves.
    fence: see above; by default nothing is called. may_move: asked before anything moves; while it says no, no page in
    use changes its place. num_virtual: virtual pages of each pool, by name; by default every pool has as many as the
    largest, so that pools may share ids.

    `pools` by name; `bytes_moved` and `num_moves` count copied bytes and pages since the start. A page that is live or
    parked is *used* here; which of the two, its free list knows.

    Raises `LayoutError` for another order, or as `ByteArena.register`.
    """

    def __init__(
        self,
        arena: ByteArena,
        specs: Sequence[EntrySpec],
        *,
        eager: bool = False,
        fence: Callable[[], None] | None = None,
        may_move: Callable[[], bool] | None = None,
        num_virtual: Mapping[str, int] | None = None,
    ) -> None:
        places = [spec.place for spec in specs]
        if places != sorted(places) or places.count(Place.LOW) > 1 or places.count(Place.HIGH) > 1:
            raise LayoutError(
                f"pools at {', '.join(place.name for place in places)} make no chain. Give one LOW pool at most, then "
                "the MIDDLE ones, then one HIGH at most."
            )
        arena.register(specs)
        most = max(arena.num_pages(spec) - arena.first_page(spec) for spec in specs)
        rows = {spec.name: most for spec in specs}
        rows |= {name: whole(count, f"num_virtual of {name!r}") for name, count in (num_virtual or {}).items()}
        self.arena = arena
        self.device = arena.device
        self.eager = eager
        self.pools = {spec.name: SubPool(self, at, arena, spec, rows[spec.name]) for at, spec in enumerate(specs)}
        self.bytes_moved = 0
        self.num_moves = 0
        self._members = list(self.pools.values())
        self._index = PoolIndex(list(self.pools))
        extents = [member.span.extent for member in self._members]
        self._arrangement = Arrangement(extents, arena.sink_bytes, arena.total_bytes)
        self._fence = fence
        self._may_move = may_move
        self._handed_over = False  # bytes left a span and nobody has waited for their last writer

    def __repr__(self) -> str:
        found = self.by_state()
        free = found.gap + sum(pool.hole for pool in found.pools.values())
        return f"<PoolChain of {', '.join(self.pools)}: {free:,} of {found.total:,} bytes free>"

    def page_size(self, pool: str) -> int:
        """Entries in a page of the pool."""
        return self._members[self._index.find(pool)].spec.page_size

    def num_ids(self, pool: str) -> int:
        """Pages that the pool could hold alone, or virtual pages that it has, if those are fewer: ids are 1 to this."""
        member = self._members[self._index.find(pool)]
        extent = member.span.extent
        return min(extent.limit - extent.first, member.map.num_virtual)

    def num_used(self, pool: str) -> int:
        """Pages of the pool that are live or parked."""
        return self._arrangement.extents[self._index.find(pool)].num_used

    def places(self, pool: str) -> SubPool:
        """The places of the pool's pages, for the free list of its ids."""
        return self._members[self._index.find(pool)]

    def page_map(self, pool: str) -> PageMap:
        """Where the pool's pages lie, for kernels."""
        return self._members[self._index.find(pool)].map

    def take(self, pool: str, v_pages: IntArray) -> IntArray | None:
        """Give free virtual pages physical ones: int64[k], in any order; None if and only if not `fits`.

        Holes first, then gaps, then neighbours move. With `zero_on_take` the pages are zeroed. Raises `ForeignPage`
        for an id out of range. O(k), and the moves.
        """
        member = self._members[self._index.find(pool)]
        member.map.require_free(v_pages)
        pages = member.place(v_pages.size)
        if pages is not None:
            member.bind(v_pages, pages)
        return pages

    def release(self, pool: str, v_pages: IntArray) -> None:
        """Make used pages free: int64[k].

        Raises `ForeignPage` or `DoubleFree` for the first bad one and changes nothing. O(k), and the moves if eager.
        """
        self._members[self._index.find(pool)].release(v_pages)

    def fits(
        self,
        demand: Mapping[str, int],
        moves: bool | None = None,  # noqa: FBT001 - a third answer
        *,
        without: Mapping[str, int] | None = None,
    ) -> bool:
        """Whether every pool can take its number of pages, one after the other in the order given.

        moves: whether pages may move for it; None asks `may_move`. With moves the answer is exact: if it is False, no
        arrangement has room. Without moves it is exact for one pool, and for several it says what their takes will do.

        without: used pages of each pool that are assumed to be released before. With moves it does not matter which,
        and the answer stays exact. Without moves they count as holes of their own pool; that is sound for one pool, and
        for several unless a middle one finds more room on another side by then.

        Raises `InvalidSize` for a negative number or more pages `without` than are used, `LayoutError` for an unknown
        pool. O(pools).
        """
        wanted = self._index.wanted(demand)
        extents = self._arrangement.extents
        released = self._index.released(without, [extent.num_used for extent in extents]) if without else ()
        if moves is None:
            moves = self._may_move is None or self._may_move()
        return self._arrangement.fits(wanted, released) if moves else self._arrangement.fits_unmoved(wanted, released)

    def holds(self, demand: Mapping[str, int]) -> bool:
        """Whether there would be room if the chain were empty. Raises as `fits`. O(pools)."""
        wanted = dict(self._index.wanted(demand))
        return self._arrangement.holds(wanted.get(index, 0) for index in range(len(self._members)))

    def shortfall(self, demand: Mapping[str, int]) -> int:
        """The least number of bytes to free before the demand can fit: 0 if it fits now, else 1 or more.

        With fewer bytes freed it does not fit. With that many it may, or needs another page, because of the grids and,
        while nothing may move, of where the pages lie. Raises as `fits`. O(pools).
        """
        if self.fits(demand):
            return 0
        num_bytes = sum(self.pools[name].spec.page_bytes * num_pages for name, num_pages in demand.items())
        return max(1, num_bytes - self._arrangement.free_bytes())

    def capacity(self, pools: Sequence[str], moves: bool | None = None) -> int:  # noqa: FBT001 - as above
        """The most pages that each of `pools` can take at once, over what they hold.

        By bisection between what free bytes allow and what rounding may cost: a few times `fits`.
        """
        may_move = self._moves() if moves is None else moves
        fits = self._arrangement.fits if may_move else self._arrangement.fits_unmoved
        indices = [self._index.find(name) for name in dict.fromkeys(pools)]
        low, high = self._arrangement.bounds(indices)
        low = low if may_move else 0
        while low < high:
            middle = (low + high + 1) // 2
            if fits([(index, middle) for index in indices]):
                low = middle
            else:
                high = middle - 1
        return low

    def compact(self, budget_bytes: int | None = None) -> int:
        """Turn holes into gaps, for idle moments. Returns the bytes that were copied, at most `budget_bytes`.

        Without a budget no hole is left. A budget below a page's bytes moves no page of that pool. While `may_move`
        says no, nothing happens. Raises `InvalidSize` for a negative budget.
        """
        if budget_bytes is not None and budget_bytes < 0:
            raise InvalidSize(f"budget_bytes is {budget_bytes}. Pass 0 or more, or None for no limit.")
        before = self.bytes_moved
        for index, member in enumerate(self._members):
            if member.span.extent.num_holes and self._moves():
                left = None if budget_bytes is None else budget_bytes - (self.bytes_moved - before)
                self._close(index, left)
        return self.bytes_moved - before

    def order(self) -> None:
        """Call the fence: what is written next is ordered behind the last forward pass.

        Bytes that have left a span then count as waited for.
        """
        if self._fence is not None:
            self._fence()
        self._handed_over = False

    def clear(self, pool: str | None = None) -> None:
        """Make every page, or every page of one pool, free, no matter who holds it. O(pages)."""
        for member in self._members if pool is None else [self._members[self._index.find(pool)]]:
            member.clear()

    def by_state(self) -> ArenaBytes:
        """Count every byte of the arena by its state. O(pools)."""
        return bytes_by_state(self._members, self._arrangement)

    def audit(self) -> None:
        """Check every table, count and span, and that spans lie in order and apart. Raises `AuditError`. O(pages)."""
        audit_chain(self._members, self._arrangement)

    def make_room(self, index: int, grown: int, num_pages: int) -> tuple[int, int] | None:
        """The edges that give pool `index` `grown` pages more, free now; None where `num_pages` have no room."""
        edges = self._arrangement.grown(index, grown)
        if edges is None:
            if not (self._moves() and self._arrangement.fits([(index, num_pages)])):
                return None
            edges = self._arrangement.target(index, grown)
            page_bytes = self._arrangement.extents[index].page_bytes
            self._push(index, HIGH, edges[1] * page_bytes)
            self._push(index, LOW, edges[0] * page_bytes)
        if self._handed_over:
            if self._fence is not None:
                self._fence()
            self._handed_over = False
        return edges

    def note_release(self, index: int, *, shrunk: bool) -> None:
        """Note that pages of pool `index` have become holes, and if its span gave up bytes; close them if eager."""
        if shrunk:
            self._handed_over = True
        extent = self._arrangement.extents[index]
        if self.eager and extent.place and extent.num_holes and self._moves():
            self._retreat(index, -extent.place, extent.num_holes)

    def _push(self, index: int, side: int, byte: int) -> None:
        """Make everything beyond the pool on `side` stay clear of `byte`, whatever that moves further on."""
        at = self._arrangement.neighbour(index, side)
        if not 0 <= at < len(self._members):
            return
        extent = self._arrangement.extents[at]
        num_pages = side * (inward(byte, -side, extent.page_bytes) - extent.edge(-side))
        if num_pages <= 0:
            return
        far = extent.edge(side) + side * self._members[at].span.fresh_for(-side, num_pages)
        if side * (self._arrangement.reach(at, side) - far) < 0:
            self._push(at, side, far * extent.page_bytes)
        self._retreat(at, -side, num_pages)

    def _close(self, index: int, budget_bytes: int | None) -> None:
        """Retreat a pool into its holes, as far as the budget goes, on the side where that gains most."""
        member = self._members[index]
        extent = member.span.extent
        copies = extent.num_used if budget_bytes is None else budget_bytes // extent.page_bytes
        sides = (-extent.place,) if extent.place else (LOW, HIGH)
        bands = [(side, *member.span.affordable(side, copies)) for side in sides]
        side, num_pages, _ = max(bands, key=lambda band: (band[1], -band[2]))
        if num_pages:
            self._retreat(index, side, num_pages)

    def _retreat(self, index: int, side: int, num_pages: int) -> None:
        self.order()
        member = self._members[index]
        copies = member.retreat(side, num_pages)
        self.num_moves += copies
        self.bytes_moved += copies * member.spec.page_bytes

    def _moves(self) -> bool:
        return self._may_move is None or self._may_move()
