"""Allocators over a chain that somebody else has made."""

import pytest
from test_unified_equivalences import Trace

from kvstead.allocators import UnifiedMambaAllocator, UnifiedMambaSWAAllocator, UnifiedSWAAllocator
from kvstead.arena import PoolChain, SharedBytes, SharedPool
from kvstead.errors import AuditError, InvalidSize, LayoutError
from kvstead.pools import ByteArena, EntrySpec, Place

KINDS = {
    UnifiedSWAAllocator: {"window": 3, "full": 5},
    UnifiedMambaAllocator: {"state": 23, "full": 5},
    UnifiedMambaSWAAllocator: {"state": 23, "window": 3, "full": 5},
}
every_class = pytest.mark.parametrize("cls", KINDS)


def chain_of(kinds, page_sizes, total=400):
    """Pools of these entries and page sizes: the first LOW, the last HIGH."""
    places = [Place.LOW, *[Place.MIDDLE] * (len(kinds) - 2), Place.HIGH]
    specs = [
        EntrySpec(name, size, page_sizes[name], place, align=1)
        for (name, size), place in zip(kinds.items(), places, strict=True)
    ]
    return PoolChain(ByteArena(total), specs)


def counted(kinds, page_sizes, total=400):
    return SharedBytes(total, [SharedPool(name, size, size, page_sizes[name]) for name, size in kinds.items()])


@every_class
@pytest.mark.parametrize("order", ["lifo", "lowest"])
def test_an_allocator_over_a_chain_is_one_that_made_it(cls, order):
    """The same sizes, and the same answers to one trace, as from the constructor with the same entries."""
    page_sizes = {"state": 1, "window": 2, "full": 2}
    for seed in range(3):
        chain = chain_of(KINDS[cls], page_sizes)
        made, over = cls(400, page_size=2, **KINDS[cls], order=order), cls.over(chain, order=order)
        assert isinstance(made, type(over))
        assert over.chain is chain
        assert (over.size, over.page_size, over.device) == (made.size, made.page_size, made.device)
        assert Trace(over, seed).run(60) == Trace(made, seed).run(60)
        over.audit()


@every_class
@pytest.mark.parametrize("make", [chain_of, counted])
def test_a_chain_of_other_pools_is_refused(cls, make):
    """A pool that is missing, states in pages, two page sizes for tokens, an order that there is not."""
    kinds = KINDS[cls]
    even = {"state": 1, "window": 2, "full": 2}
    for name in kinds:
        others = {("odd" if kind == name else kind): size for kind, size in kinds.items()}
        with pytest.raises(LayoutError, match=f"no pool '{name}'"):
            cls.over(make(others, even | {"odd": even[name]}))
    if "window" in kinds:
        with pytest.raises(LayoutError, match="2 tokens, those of pool 'window' 4"):
            cls.over(make(kinds, even | {"window": 4}))
    if "state" in kinds:
        with pytest.raises(LayoutError, match="'state' have 2 entries"):
            cls.over(make(kinds, even | {"state": 2}))
    with pytest.raises(InvalidSize, match="order"):
        cls.over(make(kinds, even), order="random")


@every_class
def test_pages_taken_behind_the_back_of_counted_bytes_are_found(cls):
    """A page that the chain counts and the allocator has not handed out does not pass its audit."""
    allocator = cls.over(counted(KINDS[cls], {"state": 1, "window": 2, "full": 2}))
    row = allocator.alloc(4)
    allocator.audit()
    allocator.chain.take("full", row[:1].numpy())
    with pytest.raises(AuditError, match="2 ids are in use and 3 pages are counted"):
        allocator.audit()
