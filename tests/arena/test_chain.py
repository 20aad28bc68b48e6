"""What a chain does, in numbers worked out by hand, and what it refuses."""

import numpy as np
import pytest
from all_layouts import HIGH, LOW, MIDDLE
from chain_pair import ChainPair, ints, specs_of
from hypothesis import given
from hypothesis import strategies as st

from kvstead.arena import PoolChain
from kvstead.errors import AuditError, DoubleFree, ForeignPage, InvalidSize, LayoutError
from kvstead.pages import FreeList
from kvstead.pools import ByteArena, EntrySpec, Place


class Scene(ChainPair):
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
        """Give back whoever has these physical pages."""
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


def test_a_float_clears_just_the_band_that_its_neighbour_needs():
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
    """Two ends and two floats in 280 bytes, one hole in the first float."""
    scene = Scene([(24, LOW), (8, MIDDLE), (12, MIDDLE), (20, HIGH)], 280)
    scene.take("a", 2)
    scene.take("d", 3)
    assert scene.taken("b", 4)[1] == [16, 17, 18, 19]
    assert scene.taken("c", 3)[1] == [14, 15, 16]
    scene.release_pages("b", 17)
    assert (scene.bytes_of("a"), scene.bytes_of("d")) == ((24, 72), (220, 280))
    return scene


def test_a_float_gives_way_to_a_growing_end():
    """One copy of 8 bytes; the float further on is not touched."""
    scene = four_pools()
    assert scene.taken("a", 3)[1] == [3, 4, 5]
    assert scene.moves == [("b", 16, 20)]
    assert [scene.bytes_of(name) for name in "abcd"] == [(24, 144), (144, 168), (168, 204), (220, 280)]
    assert scene.chain.bytes_moved == 8


def test_pools_push_one_another():
    """A page of the high end needs both floats and the low end to move: 4 copies of 52 bytes, each the least."""
    scene = four_pools()
    scene.take("a", 3)
    scene.release_pages("a", 3)
    scene.moves.clear()
    before = scene.chain.bytes_moved
    assert scene.taken("d", 1)[1] == [10]
    assert scene.moves == [("a", 5, 3), ("b", 19, 16), ("b", 20, 17), ("c", 16, 13)]
    assert [scene.bytes_of(name) for name in "abcd"] == [(24, 120), (128, 152), (156, 192), (200, 280)]
    assert scene.chain.bytes_moved - before == 52


def test_an_empty_float_starts_where_both_neighbours_can_grow():
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
    """So that what will have to move later is little. What grows comes after the holes."""
    scene = Scene([(8, place)], 8 * 12)
    _, pages = scene.taken("a", 7)
    assert sorted(pages) == (list(range(1, 8)) if place == LOW else list(range(5, 12)))
    outward = sorted(pages, reverse=place == HIGH)
    scene.release_pages("a", *outward[2:5])
    assert scene.taken("a", 2)[1] == outward[2:4]
    assert scene.taken("a", 3)[1][0] == outward[4]
    assert scene.moves == []


def test_edges_leave_and_holes_stay():
    """Pages given up at the frontier are gap at once, pages inside are holes until they are taken or closed."""
    scene = Scene([(10, LOW), (7, HIGH)], 100)
    scene.take("a", 6)
    scene.release("a", [2, 5, 6])
    states = scene.chain.by_state()
    assert states.pools == {"a": (30, 0, 10), "b": (0, 0, 0)}
    assert (states.gap, states.sink, states.padding) == (50, 10, 0)
    scene.park("a", [3])
    assert scene.chain.by_state().pools["a"] == (20, 10, 10)
    scene.take("b", 7)  # one page of pool a moves; b has bytes 49 to 98, where its last page ends
    assert scene.bytes_of("a") == (10, 40)
    states = scene.chain.by_state()
    assert states.pools == {"a": (20, 10, 0), "b": (49, 0, 0)}
    assert (states.gap, states.sink, states.padding) == (9, 10, 2)
    scene.take("b", 1)
    assert (scene.chain.by_state().gap, scene.chain.by_state().padding) == (0, 4)


def test_parked_pages_move_and_are_not_available():
    """What waits in a free group keeps its bytes wherever it goes, and makes no room until it is unparked."""
    scene = Scene([(8, LOW), (8, HIGH)], 8 * 10)
    scene.take("a", 5)
    scene.park("a", [2, 5])
    scene.take("b", 4)
    assert scene.take("b", 1) is None
    assert scene.chain.capacity(["a"]) == 0
    scene.release("a", [1])
    scene.take("b", 1)  # the parked page 5 goes to where 1 was
    assert scene.moves == [("a", 5, 1)]
    assert scene.chain.pools["a"].map.v2p[[2, 5]].tolist() == [~2, ~1]
    scene.restore("a", [5])
    scene.unpark("a", [2])
    assert scene.chain.by_state().pools["a"] == (24, 0, 8)
    assert scene.chain.capacity(["a"]) == scene.chain.capacity(["b"]) == 1


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
    """Not for holes or untouched bytes; once before a span grows over bytes given up; before copies and zeros."""
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


def test_ids_come_from_a_free_list():
    """One id space for two pools: each id has a page in both, or in one when the other was given up first."""
    chain = PoolChain(ByteArena(400), specs_of([(0, (8, LOW)), (1, (16, HIGH))]))
    ids = FreeList(chain.pools["a"].map.num_virtual, "fifo")
    assert chain.pools["b"].map.num_virtual == ids.num_pages == 48
    v_pages = ids.take(10)
    assert chain.fits({"a": 10, "b": 10})
    pages = [chain.take(name, v_pages) for name in "ab"]
    chain.release("b", v_pages[:4])
    chain.release("a", v_pages)
    chain.release("b", v_pages[4:])
    ids.give(v_pages)
    assert all(page.size == 10 for page in pages)
    assert ids.take(48).tolist()[-10:] == v_pages.tolist()
    wide = PoolChain(ByteArena(400), specs_of([(0, (8, LOW)), (1, (16, HIGH))]), num_virtual={"b": 5})
    assert [pool.map.num_virtual for pool in wide.pools.values()] == [48, 5]


def test_a_cleared_chain_is_new():
    """Everything is free; the fence is asked for before the bytes are used again."""
    scene = Scene([(8, LOW), (4, MIDDLE), (8, HIGH)], 8 * 12)
    room = [scene.chain.capacity([name]) for name in "abc"]
    for name in "abc":
        scene.take(name, 3)
        scene.park(name, [1])
    scene.chain.clear()
    scene.live, scene.parked = {name: {} for name in "abc"}, {name: {} for name in "abc"}
    scene.check()
    assert [scene.chain.capacity([name]) for name in "abc"] == room
    scene.take("b", 1)
    assert scene.events == ["fence"]


BAD = [
    ("release", [1, 9, 2], DoubleFree, "virtual page 9 is free already"),
    ("release", [1, 2, 1], DoubleFree, "virtual page 1 is named twice"),
    ("release", [1, 4], DoubleFree, "virtual page 4 is parked"),
    ("release", [1, 0], ForeignPage, "virtual page 0 is the sink"),
    ("release", [1, 99], ForeignPage, "virtual page 99 is no page of this pool"),
    ("release", [1, -1], ForeignPage, "virtual page -1 is no page"),
    ("park", [2, 4], DoubleFree, "virtual page 4 is parked"),
    ("park", [2, 2], DoubleFree, "named twice"),
    ("park", [-2], ForeignPage, "virtual page -2"),
    ("unpark", [4, 1], AssertionError, "virtual page 1 left the parked state"),
    ("restore", [4, 4], AssertionError, "virtual page 4 left the parked state"),
    ("take", [9, 1], AssertionError, "virtual page 1 has a page already"),
    ("take", [9, 4], AssertionError, "virtual page 4 has a page already"),
    ("take", [9, 9], AssertionError, "virtual page 9 .*named twice"),
    ("take", [9, 0], ForeignPage, "virtual page 0"),
    ("take", [*range(9, 15), 99], ForeignPage, "virtual page 99"),
]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(("call", "v_pages", "error", "words"), BAD)
def test_a_refused_call_changes_nothing(call, v_pages, error, words, eager):
    """Whichever page is bad, the good ones before and after it stay as they are; nothing moves, nothing is fenced."""
    scene = Scene([(8, LOW), (4, MIDDLE), (8, HIGH)], 8 * 20, eager=eager)
    scene.take("b", 7)
    scene.park("b", [4])
    scene.release("b", [3])
    scene.take("a", 6)
    scene.refused(error, words, getattr(scene.chain, call), "b", ints(v_pages))
    assert scene.events == []


@pytest.mark.parametrize("call", ["take", "release", "park", "unpark", "restore"])
def test_unknown_pools_are_named(call):
    """The message lists the pools that there are."""
    scene = Scene([(8, LOW), (8, HIGH)], 80)
    with pytest.raises(LayoutError, match=r"no pool 'x'.*a, b"):
        getattr(scene.chain, call)("x", ints([1]))
    for ask in (lambda: scene.chain.fits({"a": 1, "x": 1}), lambda: scene.chain.capacity(["x"])):
        with pytest.raises(LayoutError, match="no pool 'x'"):
            ask()


def test_negative_sizes_are_refused():
    """No negative demand and no negative budget."""
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
def test_pools_that_make_no_chain(places):
    """Ends are at the ends and there is one of each at most; the arena can be used for a better chain."""
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
    scene.chain.pools["b"].span._words[:] = 0
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
    tables = scene.chain.pools["a"].map
    tables.bind(np.arange(20, 28), np.arange(extent.hi - 8, extent.hi))


DAMAGE = {
    "one parked too many": (change("num_parked", 1), "pool 'b': .*counts say"),
    "a hole not counted": (change("span.extent.num_holes", 1), "pool 'b': .*counts 2 holes"),
    "a table entry": (lambda scene: scene.chain.pools["b"].map.v2p.__setitem__(7, -1), "pool 'b': .*way back"),
    "a hole with an owner": (swap_hole_and_page, "pool 'b': .*holes and have owners"),
    "no hole in the bitmap": (own_a_hole, "pool 'b': .*counts 1 holes"),
    "a page outside the span": (leave_the_span, "pool 'b': .*inside the span"),
    "spans that overlap": (overlap, "pool 'b' begins at byte .*below byte"),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_audit_finds_a_damaged_chain(damage, words):
    """Counts, tables, holes and spans that somebody else wrote are found, and the pool is named."""
    scene = Scene([(8, LOW), (4, MIDDLE), (8, HIGH)], 8 * 20)
    scene.take("a", 6)
    scene.take("b", 7)
    scene.park("b", [4])
    scene.release("b", [3])
    scene.chain.audit()
    damage(scene)
    with pytest.raises(AuditError, match=words):
        scene.chain.audit()
