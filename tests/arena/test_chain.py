"""What a chain does, in numbers worked out by hand, and what it refuses."""

import numpy as np
import pytest
from all_layouts import HIGH, LOW, MIDDLE
from chain_pair import ChainPair, ListedChainPair, ints, specs_of
from hypothesis import given
from hypothesis import strategies as st

from kvstead.arena import PoolChain
from kvstead.errors import AuditError, DoubleFree, ForeignPage, InvalidSize, LayoutError
from kvstead.kernels.host import PARKED
from kvstead.pages import FreeList
from kvstead.pools import ByteArena, EntrySpec, Place


class Scene(ListedChainPair):
    """A chain on which moves are listed as (pool, from, to)."""

    def __init__(self, sizes, total, **keywords):
        super().__init__(sizes, total, **keywords)
        self.moves = []

    def copied(self, spec, dst, src):
        """A copy, also written down."""
        super().copied(spec, dst, src)
        self.moves += [(spec.name, int(a), int(b)) for a, b in zip(src, dst, strict=True)]

    def taken(self, name, count):
        """The ids and the physical pages of a take."""
        v_pages = self.take(name, count)
        return v_pages, self.chain.pools[name].map.v2p[v_pages].tolist()

    def bytes_of(self, name):
        """Where a pool's span begins and ends."""
        extent = self.chain.pools[name].span.extent
        return extent.lo * extent.page_bytes, extent.hi * extent.page_bytes

    def release_pages(self, name, *pages):
        """Release the ids of these physical pages."""
        self.release(name, self.chain.pools[name].map.p2v[list(pages)].tolist())


def test_eager_ends_close_their_holes():
    """Entries of 16 and 32 bytes in 320: the frontier pages move into the holes, from either end."""
    scene = Scene([(16, LOW), (32, HIGH)], 320, eager=True)
    assert scene.taken("a", 6)[1] == [2, 3, 4, 5, 6, 7]
    assert scene.chain.capacity(["a"]) == 12
    scene.release_pages("a", 3, 5)
    assert scene.moves == [("a", 6, 3), ("a", 7, 5)]
    assert scene.bytes_of("a") == (32, 96)
    assert scene.chain.capacity(["a"]) == 14
    assert sorted(scene.taken("b", 4)[1]) == [6, 7, 8, 9]
    assert (scene.chain.capacity(["a"]), scene.chain.capacity(["b"])) == (6, 3)
    scene.moves.clear()
    scene.release_pages("b", 6, 8)
    assert scene.moves == [("b", 7, 8)]
    assert scene.bytes_of("b") == (256, 320)
    assert (scene.chain.capacity(["a"]), scene.chain.capacity(["b"])) == (10, 5)


def test_followers_hear_of_every_move():
    """What follows a pool's pages is called with the places of each move, after its bytes, and not without one."""
    scene = Scene([(16, LOW), (32, HIGH)], 320, eager=True)
    heard = []
    scene.chain.places("a").followers.append(
        lambda dst, src: heard.append((len(scene.moves), dst.tolist(), src.tolist()))
    )
    scene.taken("a", 6)
    scene.taken("b", 4)
    assert heard == []
    scene.release_pages("a", 3, 5)
    (moved,) = heard
    assert moved == (2, [3, 5], [6, 7])
    scene.release_pages("b", 6, 8)
    assert len(heard) == 1


def test_a_middle_pool_clears_only_the_band_that_its_neighbour_needs():
    """Four copies, three into holes and one beyond the far edge; no slack."""
    scene = Scene([(32, LOW), (8, MIDDLE), (16, HIGH)], 640)
    scene.take("a", 3)
    scene.take("c", 10)
    assert scene.taken("b", 12)[1] == list(range(32, 44))
    scene.release_pages("b", 34, 35, 39)
    assert (scene.bytes_of("a"), scene.bytes_of("c")) == ((32, 128), (480, 640))
    assert sorted(scene.taken("c", 10)[1]) == list(range(20, 30))
    assert scene.moves == [("b", 40, 34), ("b", 41, 35), ("b", 42, 39), ("b", 43, 31)]
    assert scene.bytes_of("b") == (31 * 8, 40 * 8)
    assert (scene.chain.num_moves, scene.chain.bytes_moved) == (4, 32)


def four_pools():
    """Two ends and two middle pools in 280 bytes, one hole in the first middle pool."""
    scene = Scene([(24, LOW), (8, MIDDLE), (12, MIDDLE), (20, HIGH)], 280)
    scene.take("a", 2)
    scene.take("d", 3)
    assert scene.taken("b", 4)[1] == [16, 17, 18, 19]
    assert scene.taken("c", 3)[1] == [14, 15, 16]
    scene.release_pages("b", 17)
    assert (scene.bytes_of("a"), scene.bytes_of("d")) == ((24, 72), (220, 280))
    return scene


def test_a_middle_pool_gives_way_to_a_growing_end():
    """One copy of 8 bytes; the middle pool further on is not touched."""
    scene = four_pools()
    assert scene.taken("a", 3)[1] == [3, 4, 5]
    assert scene.moves == [("b", 16, 20)]
    assert [scene.bytes_of(name) for name in "abcd"] == [(24, 144), (144, 168), (168, 204), (220, 280)]
    assert scene.chain.bytes_moved == 8


def test_pools_push_one_another():
    """A page of the high end needs both middle pools and the low end to move: 4 copies of 52 bytes, each the least."""
    scene = four_pools()
    scene.take("a", 3)
    scene.release_pages("a", 3)
    scene.moves.clear()
    before = scene.chain.bytes_moved
    assert scene.taken("d", 1)[1] == [10]
    assert scene.moves == [("a", 5, 3), ("b", 19, 16), ("b", 20, 17), ("c", 16, 13)]
    assert [scene.bytes_of(name) for name in "abcd"] == [(24, 120), (128, 152), (156, 192), (200, 280)]
    assert scene.chain.bytes_moved - before == 52


def test_an_empty_middle_pool_starts_where_both_neighbours_can_grow():
    """In the midst of its room; when that is too small, those above give way first, and only as far as they must."""
    scene = Scene([(8, LOW), (8, MIDDLE), (8, HIGH)], 8 * 21)
    scene.take("a", 2)
    scene.take("c", 4)
    assert scene.taken("b", 3)[1] == [8, 9, 10]
    scene.release("b", [1, 2, 3])
    for name in "ac":
        scene.take(name, 6)
        scene.release(name, [1, 2, 3])
    assert [scene.bytes_of(name) for name in "ac"] == [(8, 72), (88, 168)]
    assert scene.taken("b", 3)[1] == [9, 10, 11]
    assert scene.moves == [("c", 11, 19)]


@pytest.mark.parametrize("place", [LOW, HIGH])
def test_holes_next_to_the_own_end_are_handed_out_first(place):
    """Then little has to move later. Pages by which the span grows come after the holes."""
    scene = Scene([(8, place)], 8 * 12)
    _, pages = scene.taken("a", 7)
    assert sorted(pages) == (list(range(1, 8)) if place == LOW else list(range(5, 12)))
    outward = sorted(pages, reverse=place == HIGH)
    scene.release_pages("a", *outward[2:5])
    assert scene.taken("a", 2)[1] == outward[2:4]
    assert scene.taken("a", 3)[1][0] == outward[4]
    assert scene.moves == []


def test_edges_leave_and_holes_stay():
    """Pages released at the frontier are gap at once, pages inside are holes until they are taken or closed."""
    scene = Scene([(10, LOW), (7, HIGH)], 100)
    scene.take("a", 6)
    scene.release("a", [2, 5, 6])
    states = scene.chain.by_state()
    assert states.pools == {"a": (30, 10), "b": (0, 0)}
    assert (states.gap, states.sink, states.padding) == (50, 10, 0)
    scene.park("a", [3])
    assert scene.chain.by_state().pools["a"] == (30, 10)
    scene.take("b", 7)  # one page of pool a moves; b has bytes 49 to 98, where its last page ends
    assert scene.bytes_of("a") == (10, 40)
    states = scene.chain.by_state()
    assert states.pools == {"a": (30, 0), "b": (49, 0)}
    assert (states.gap, states.sink, states.padding) == (9, 10, 2)
    scene.take("b", 1)
    assert (scene.chain.by_state().gap, scene.chain.by_state().padding) == (0, 4)


def test_parked_pages_move_and_are_not_available():
    """Pages that wait in a free group keep their bytes wherever they move, and make no room until unparked."""
    scene = Scene([(8, LOW), (8, HIGH)], 8 * 10)
    scene.take("a", 5)
    scene.park("a", [2, 5])
    scene.take("b", 4)
    assert scene.take("b", 1) is None
    assert scene.chain.capacity(["a"]) == scene.ids["a"].capacity() == 0
    scene.release("a", [1])
    scene.take("b", 1)  # the parked page 5 goes to where 1 was
    assert scene.moves == [("a", 5, 1)]
    assert scene.chain.pools["a"].map.v2p[[2, 5]].tolist() == [2, 1]
    assert scene.ids["a"].translate(ints([2, 3, 4, 5]), 1).tolist() == [0, 3, 4, 0]
    assert scene.chain.by_state().pools["a"] == (32, 0)
    assert scene.chain.capacity(["a"]) == scene.chain.capacity(["b"]) == 0
    scene.unpark("a", [2])
    assert scene.chain.by_state().pools["a"] == (24, 8)
    assert scene.chain.capacity(["a"]) == scene.chain.capacity(["b"]) == 1
    scene.unpark("a", [5])
    assert scene.chain.by_state().pools["a"] == (16, 16)
    assert [scene.ids[name].capacity() for name in "ab"] == [2, 2]


def test_a_closed_gate_leaves_everything_in_its_place():
    """No page moves, eager or not; holes and gaps are still used, freed edges still handed over; then it opens."""
    scene = Scene([(8, LOW), (8, HIGH)], 8 * 12, eager=True)
    scene.take("a", 8)
    scene.is_open = False
    scene.release("a", [2, 4, 8])
    assert scene.moves == []
    assert (scene.chain.capacity(["a"]), scene.chain.capacity(["b"])) == (6, 4)
    assert scene.chain.fits({"b": 5}, moves=True)
    assert scene.chain.capacity(["b"], moves=True) == 6
    assert scene.take("b", 5) is None
    assert scene.taken("b", 4)[1] == [8, 9, 10, 11]
    assert scene.compact() == 0
    scene.is_open = True
    assert not scene.chain.fits({"b": 1}, moves=False)
    scene.take("b", 1)
    assert scene.moves == [("a", 7, 2)]
    scene.release("a", [1])
    assert scene.moves[1:] == [("a", 5, 1), ("a", 6, 4)]


def test_the_fence_comes_before_bytes_change_hands():
    """It is not called for holes or untouched bytes, but once before a span grows over freed bytes, a copy or zeros."""
    scene = Scene([(8, LOW), (8, HIGH)], 8 * 12)
    scene.take("a", 6)
    assert scene.events == []
    scene.release("a", [2])
    scene.take("a", 1)
    assert scene.events == []
    scene.release("a", [6])
    assert scene.events == []
    scene.take("b", 1)
    assert scene.events == ["fence"]
    scene.take("b", 1)
    assert scene.events == []
    zeroing = Scene([(8, LOW)], 8 * 4, zero_on_take=True)
    zeroing.take("a", 1)
    assert zeroing.events == ["fence", "zero"]
    zeroing.take("a", 0)
    assert zeroing.events == []


def test_compaction_keeps_to_its_budget():
    """A budget is bytes for the whole chain; below one page nothing moves, and by single pages it ends packed too."""
    scene = Scene([(8, LOW), (4, MIDDLE), (8, HIGH)], 8 * 24)
    for name, count in (("a", 8), ("c", 8), ("b", 8)):
        scene.take(name, count)
        scene.release(name, [2, 3, 5])
    assert scene.compact(3) == 0
    assert scene.compact(4) == 4
    assert scene.compact(11) == 8
    budgets = [scene.compact(8) for _ in range(8)]
    assert budgets[-1] == 0
    assert not any(pool.span.extent.num_holes for pool in scene.chain.pools.values())
    assert scene.compact() == 0


def test_joint_demands_are_counted_together():
    """Two pools that share ids can take as many pages as there is room for pairs, in turn, and no more."""
    scene = Scene([(8, LOW), (5, HIGH)], 8 + 13 * 7 + 4)
    assert scene.chain.capacity(["a", "b"]) == 7
    assert scene.chain.capacity(["a", "b", "a"]) == 7
    assert scene.chain.capacity([]) == 0
    assert scene.chain.fits({"a": 7, "b": 7})
    assert not scene.chain.fits({"a": 8, "b": 7})
    scene.take("a", 7)
    scene.take("b", 7)
    assert scene.chain.capacity(["a", "b"]) == 0
    assert scene.chain.fits({})


@given(st.data(), st.booleans())
def test_what_fits_jointly_can_be_taken_one_by_one(data, is_open):
    """With the gate open or closed, in the order of the demand; with it open, exactly when some layout has room."""
    sizes = data.draw(st.sampled_from([[(3, LOW), (2, HIGH)], [(3, LOW), (2, MIDDLE), (1, MIDDLE), (5, HIGH)]]))
    pair = ChainPair(sizes, 48, storage=False)
    for name in pair.names * 2:
        pair.take(name, data.draw(st.integers(0, 5)))
        pair.release(name, [v for v in pair.live[name] if data.draw(st.booleans())])
    pair.is_open = is_open
    demand = {name: data.draw(st.integers(0, 4)) for name in data.draw(st.permutations(pair.names))}
    fits = pair.chain.fits(demand)
    assert not is_open or fits == pair.fits(demand)
    names = list(demand)[: data.draw(st.integers(1, len(demand)))]
    room = pair.chain.capacity(names)
    assert pair.chain.fits(dict.fromkeys(names, room))
    assert not is_open or not pair.fits(dict.fromkeys(names, room + 1))
    if fits:
        for name, count in demand.items():
            assert pair.take(name, count) is not None


def test_pools_may_share_the_ids_of_one_free_list():
    """One id space for two pools: each id has a page in both, or in one when the other was released first."""
    chain = PoolChain(ByteArena(400), specs_of([(0, (8, LOW)), (1, (16, HIGH))]))
    ids = FreeList(chain.pools["a"].map.num_virtual, "fifo")
    assert chain.pools["b"].map.num_virtual == ids.num_pages == 48
    v_pages = ids.take(10)
    assert chain.fits({"a": 10, "b": 10})
    pages = [chain.take(name, v_pages) for name in "ab"]
    chain.release("b", v_pages[:4])
    chain.release("a", v_pages)
    chain.release("b", v_pages[4:])
    ids.leave(v_pages)
    assert all(page.size == 10 for page in pages)
    assert ids.take(48).tolist()[-10:] == v_pages.tolist()
    wide = PoolChain(ByteArena(400), specs_of([(0, (8, LOW)), (1, (16, HIGH))]), num_virtual={"b": 5})
    assert [pool.map.num_virtual for pool in wide.pools.values()] == [48, 5]


@pytest.mark.parametrize("how", ["chain", "pools", "ids"])
def test_a_cleared_chain_is_new(how):
    """Cleared as a whole, by pool or by free list, everything is free; the fence comes before bytes are used again."""
    scene = Scene([(8, LOW), (4, MIDDLE), (8, HIGH)], 8 * 12)
    room = [scene.chain.capacity([name]) for name in "abc"]
    for name in "abc":
        scene.take(name, 3)
        scene.park(name, [1])
    if how == "chain":
        scene.chain.clear()
    for name in "abc":
        if how == "pools":
            scene.chain.clear(name)
        scene.ids[name].clear()
    scene.live, scene.parked = {name: {} for name in "abc"}, {name: {} for name in "abc"}
    scene.check()
    assert [scene.chain.capacity([name]) for name in "abc"] == room
    scene.take("b", 1)
    assert scene.events == ["fence"]


BAD = [
    ("release", [1, 9, 2], DoubleFree, "virtual page 9 is already free"),
    ("release", [1, 2, 1], DoubleFree, "virtual page 1 is named twice"),
    ("release", [1, 4, 4], DoubleFree, "virtual page 4 is named twice"),
    ("release", [1, 0], ForeignPage, "virtual page 0 is the sink"),
    ("release", [1, 99], ForeignPage, "virtual page 99 does not belong to this pool"),
    ("release", [1, -1], ForeignPage, "virtual page -1 does not belong to this pool"),
    ("take", [9, 1], AssertionError, "virtual page 1 has a page already"),
    ("take", [9, 4], AssertionError, "virtual page 4 has a page already"),
    ("take", [9, 9], AssertionError, "virtual page 9 .*named twice"),
    ("take", [9, 0], ForeignPage, "virtual page 0"),
    ("take", [*range(9, 15), 99], ForeignPage, "virtual page 99"),
]
BAD_IDS = [
    ("leave", [1, 4], DoubleFree, "page 4 .*is already parked"),
    ("leave", [1, 3], DoubleFree, "page 3 .*is already free"),
    ("leave", [1, 99], ForeignPage, "page 99 does not belong to this pool"),
    ("park", [2, 4], DoubleFree, "page 4 .*is already parked"),
    ("park", [2, 2], DoubleFree, "page 2 .*named twice"),
    ("park", [-2], ForeignPage, "page -2 does not belong to this pool"),
    ("unpark", [4, 1], AssertionError, "page 1 left the parked state"),
    ("unpark", [4, 4], AssertionError, "page 4 left the parked state"),
]


def crowded_scene(*, eager):
    """Pool b has pages 1 to 7, of which 3 is free again and 4 is parked."""
    scene = Scene([(8, LOW), (4, MIDDLE), (8, HIGH)], 8 * 20, eager=eager)
    scene.take("b", 7)
    scene.park("b", [4])
    scene.release("b", [3])
    scene.take("a", 6)
    return scene


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(("call", "v_pages", "error", "words"), BAD)
def test_a_refused_call_changes_nothing(call, v_pages, error, words, eager):
    """With any page bad, the good ones before and after it stay as they are; nothing moves, nothing is fenced."""
    scene = crowded_scene(eager=eager)
    scene.refused(error, words, getattr(scene.chain, call), "b", ints(v_pages))
    assert scene.events == []


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(("call", "v_pages", "error", "words"), BAD_IDS)
def test_a_refused_call_of_a_free_list_changes_nothing_in_the_arena(call, v_pages, error, words, eager):
    """The free list refuses bad ids before the arena hears of the good ones; nothing moves, nothing is fenced."""
    scene = crowded_scene(eager=eager)
    ids = scene.ids["b"]
    calls = {
        "leave": lambda: ids.leave(ints(v_pages)),
        "park": lambda: ids.leave(ints(v_pages), PARKED),
        "unpark": lambda: ids.unpark([ints(v_pages)]),
    }
    scene.refused(error, words, calls[call])
    assert scene.events == []


@pytest.mark.parametrize("call", ["take", "release"])
def test_unknown_pools_are_named(call):
    """The message lists the pools that there are."""
    scene = Scene([(8, LOW), (8, HIGH)], 80)
    with pytest.raises(LayoutError, match=r"no pool 'x'.*a, b"):
        getattr(scene.chain, call)("x", ints([1]))
    chain = scene.chain
    asks = (lambda: chain.fits({"a": 1, "x": 1}), lambda: chain.capacity(["x"]), lambda: chain.clear("x"))
    for ask in asks:
        with pytest.raises(LayoutError, match="no pool 'x'"):
            ask()


def test_negative_sizes_are_refused():
    """A demand and a budget are 0 or more."""
    scene = Scene([(8, LOW)], 80)
    with pytest.raises(InvalidSize, match="-1 pages of pool 'a'"):
        scene.chain.fits({"a": -1})
    with pytest.raises(InvalidSize, match="budget_bytes is -8"):
        scene.chain.compact(-8)


@pytest.mark.parametrize(
    "places",
    [(Place.LOW, Place.LOW), (Place.HIGH, Place.HIGH), (Place.HIGH, Place.LOW), (Place.MIDDLE, Place.LOW),
     (Place.LOW, Place.HIGH, Place.MIDDLE)],
)  # fmt: skip
def test_ends_of_a_chain_are_at_its_ends(places):
    """There is one pool at each end at most, and any others lie between; a refused chain leaves the arena as it was."""
    arena = ByteArena(100)
    with pytest.raises(LayoutError, match="make no chain"):
        PoolChain(arena, [EntrySpec("abc"[at], 4, place=place, align=1) for at, place in enumerate(places)])
    assert PoolChain(arena, [EntrySpec("a", 4, align=1)]).capacity(["a"]) == 24


def change(path, value):
    def corrupt(scene):
        *names, last = path.split(".")
        at = scene.chain.pools["b"]
        for name in names:
            at = getattr(at, name)
        setattr(at, last, getattr(at, last) + value)

    return corrupt


def own_a_hole(scene):
    tables = scene.chain.pools["b"].map
    v = int(tables.p2v[tables.v2p[7]])
    tables.v2p[7], tables.v2p[3] = -1, tables.v2p[7]
    tables.p2v[tables.v2p[3]] = 3
    scene.chain.pools["b"].span.words[:] = 0
    assert v == 7


def swap_hole_and_page(scene):
    tables = scene.chain.pools["b"].map
    hole, page = int(scene.chain.pools["b"].span.holes()[0]), int(tables.v2p[7])
    tables.v2p[7], tables.p2v[hole], tables.p2v[page] = hole, 7, -1


def leave_the_span(scene):
    tables = scene.chain.pools["b"].map
    page = int(tables.v2p[7])
    tables.v2p[7], tables.p2v[page], tables.p2v[3] = 3, -1, 7


def overlap(scene):
    extent = scene.chain.pools["a"].span.extent
    extent.hi += 8
    scene.chain.pools["a"].bind(np.arange(20, 28), np.arange(extent.hi - 8, extent.hi))


DAMAGE = {
    "a hole not counted": (change("span.extent.num_holes", 1), "pool 'b': .*counts 2 holes"),
    "a table entry": (lambda scene: scene.chain.pools["b"].map.v2p.__setitem__(7, -1), "pool 'b': .*way back"),
    "a hole with an owner": (swap_hole_and_page, "pool 'b': .*holes and have owners"),
    "no hole in the bitmap": (own_a_hole, "pool 'b': .*counts 1 holes"),
    "a page outside the span": (leave_the_span, "pool 'b': .*inside the span"),
    "spans that overlap": (overlap, "pool 'b' begins at byte .*below byte"),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_audit_finds_a_damaged_chain(damage, words):
    """Counts, tables, holes and spans that other code wrote are found, and the pool is named."""
    scene = crowded_scene(eager=False)
    scene.chain.audit()
    damage(scene)
    with pytest.raises(AuditError, match=words):
        scene.chain.audit()


def park_in_the_table(scene):
    table = scene.ids["b"].table
    table.state[3], table.num_free, table.num_parked = PARKED, table.num_free - 1, table.num_parked + 1
    scene.ids["b"]._bitmap.take(np.empty(1, dtype=np.int64))


ID_DAMAGE = {
    "a free id with a page": (lambda scene: scene.chain.take("b", ints([3])), r"\[3\]"),
    "a live id without a page": (lambda scene: scene.chain.release("b", ints([5])), r"\[5\]"),
    "a parked id without a page": (lambda scene: scene.chain.release("b", ints([4])), r"\[4\]"),
    "a parked id that was free": (park_in_the_table, r"\[3\]"),
    "a page for an id past the end": (lambda scene: scene.chain.take("b", ints([42])), "placed in the arena"),
}


@pytest.mark.parametrize(("damage", "words"), ID_DAMAGE.values(), ids=ID_DAMAGE)
def test_the_audit_of_a_free_list_finds_pages_placed_without_it(damage, words):
    """Used ids have pages and free ones have none. The chain's audit cannot know; the free list's names the pool."""
    scene = crowded_scene(eager=False)
    assert scene.ids["b"].num_pages < 42
    scene.ids["b"].audit()
    damage(scene)
    scene.chain.audit()
    with pytest.raises(AuditError, match=rf"pool 'b': .*{words}"):
        scene.ids["b"].audit()
