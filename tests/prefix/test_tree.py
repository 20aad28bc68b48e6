import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_setup import TreeSetup

from eviction_in_tokens import Gone, evict
from kvstead.allocators import TokenAllocator
from kvstead.errors import (
    DoubleFree,
    ForeignPage,
    InvalidSize,
    MisalignedSegment,
    OpenGroup,
    RequestError,
    UseAfterFree,
)
from kvstead.prefix import Insertion, Match, Namespace, PrefixTree

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 2, 3, 4, 64])

TEXT = st.text(alphabet="ab,|\x00", max_size=3)


@PAGE_SIZES
def test_match_returns_the_slots_that_were_inserted(page_size):
    """What one request cached the next one finds, page by page, also through a split."""
    setup = TreeSetup(8, page_size)
    row = setup.compute(4 * page_size)
    assert setup.tree.insert(setup.tokens("abcd"), row).num_shared == 0
    for word, shared in (("", 0), ("x", 0), ("ax", 1), ("abc", 3), ("abcd", 4), ("abcdx", 4)):
        found = setup.match(word)
        assert found.num_tokens == shared * page_size
        assert setup.tree.slots(found).tolist() == row[: shared * page_size].tolist()
        assert setup.tree.slots(found.node).dtype == np.int64
    setup.audit()


@given(st.tuples(TEXT, TEXT, st.lists(TEXT, max_size=2)), st.tuples(TEXT, TEXT, st.lists(TEXT, max_size=2)))
def test_namespaces_never_meet(one, other):
    """Two namespaces share a prefix exactly when they are equal field by field, whatever their strings join to."""
    first, second = (Namespace(lora, salt, tuple(images)) for lora, salt, images in (one, other))
    setup = TreeSetup(4, 2)
    setup.cache("ab", namespace=first)
    assert setup.match("ab", namespace=second).num_tokens == (4 if first == second else 0)
    assert setup.match("ab", namespace=Namespace(*one[:2], tuple(one[2]))).num_tokens == 4


@settings(deadline=None)
@given(st.sampled_from([1, 2, 3, 4, 64]), st.sampled_from([np.int32, np.int64]), st.booleans(), st.integers(0, 2**31))
def test_tokens_and_slots_of_any_layout(page_size, dtype, strided, seed):
    """Tokens of either width, strided or not, and rows of any integer type, strided or torch, are the same key."""
    setup = TreeSetup(6, page_size)
    ids = np.random.default_rng(seed).integers(-(2**31), 2**31, 3 * page_size)
    tokens = (np.repeat(ids, 2)[::2] if strided else ids).astype(dtype)
    row = setup.compute(tokens.size)
    spread = np.repeat(row, 2)[::2] if strided else torch.from_numpy(row).to(torch.int32)
    assert setup.tree.insert(tokens, spread).num_tokens == tokens.size
    assert setup.tree.slots(setup.tree.match(ids)).tolist() == row.tolist()


def test_tree_keeps_nothing_of_its_arguments():
    """The caller may overwrite tokens and row right after the call, and what `slots` returned as well."""
    setup = TreeSetup(4, 2)
    tokens, row = setup.tokens("ab"), setup.compute(4)
    kept = row.tolist()
    done = setup.tree.insert(tokens, row)
    tokens[:] = 0
    row[:] = 0
    setup.tree.slots(done.node)[:] = 0
    assert setup.tree.slots(setup.match("ab")).tolist() == kept
    setup.audit()


def test_results_are_plain_values():
    """Results compare by value and cannot be changed."""
    setup = TreeSetup(4, 2)
    done = setup.cache("ab")
    assert done == Insertion(done.node, 4, 0)
    assert setup.match("ab") == Match(done.node, 4, 4)
    assert evict(setup.tree, 0) == Gone()
    with pytest.raises(AttributeError):
        done.num_tokens = 5


def test_inserting_again_is_free_of_charge():
    """A running request that inserts a longer and longer row makes one node a chunk and takes only the new pages."""
    setup = TreeSetup(8, 4)
    tokens, row = setup.tokens("abcdefgh"), setup.compute(32)
    ends = []
    for end in (8, 8, 11, 20, 32):
        done = setup.tree.insert(tokens[:end], row[:end])
        ends.append((done.num_shared, done.num_tokens))
        setup.audit()
    assert ends == [(0, 8), (8, 8), (8, 8), (8, 20), (20, 32)]
    assert setup.tree.evictable_tokens == 32


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", "a b c d"),
        ("mru", "d c b a"),
        ("fifo", "b a d c"),
        ("filo", "c d a b"),
        ("lfu", "d b c a"),
        ("slru", "d a b c"),
        ("priority", "a d b c"),
    ],
)
def test_policies_choose_as_their_names_say(policy, order):
    """Four leaves: made b a d c, matched a a b c, last used a b c d (`d` by inserting it again), priorities 0 1 2 0."""
    setup = TreeSetup(8, policy=policy)
    for word, priority in (("b", 1), ("a", 0), ("d", 0), ("c", 2)):
        setup.cache(word, priority=priority)
    for word in "aabc":
        setup.match(word)
    setup.cache("d")
    gone = []
    while setup.tree.evictable_tokens:
        before = setup.cached("a b c d").split()
        assert evict(setup.tree, 1) == Gone(1, 1)
        gone += set(before) - set(setup.cached("a b c d").split())
    assert " ".join(gone) == order


def test_priority_protects_the_whole_path_and_may_be_negative():
    """The priority of a key holds for all of its prefixes; it only rises; below 0 is below the others."""
    setup = TreeSetup(8, policy="priority")
    setup.cache("ab")
    setup.cache("xyz", priority=3)
    setup.cache("xy")
    setup.cache("m", priority=-1)
    order = []
    for _ in range(3):
        evict(setup.tree, 1)
        order.append(setup.cached("ab xy xyz m"))
    assert order == ["ab xy xyz", "xy xyz", "xy"]


@pytest.mark.parametrize(
    "tokens",
    [
        [1, 2],
        np.array([1.0, 2.0]),
        np.array([1, 2], dtype=np.uint32),
        np.array([[1, 2]]),
        np.array(1),
        torch.tensor([1, 2]),
        np.array([1, 2**31]),
        np.array([-(2**31) - 1, 2]),
    ],
)
def test_tokens_that_are_no_key(tokens):
    """Anything but a flat array of ids that fit int32 is refused."""
    setup = TreeSetup(4)
    with pytest.raises(RequestError, match=r"tokens? .*Pass"):
        setup.tree.match(tokens)
    with pytest.raises(RequestError):
        setup.tree.insert(tokens, setup.compute(2))
    setup.tree.audit()


@pytest.mark.parametrize("page_size", [2, 3, 4, 64])
def test_slots_that_are_no_row(page_size):
    """Too few slots, torn or shifted pages, padding and pages outside the pool are refused before anything changes."""
    setup = TreeSetup(6, page_size)
    setup.cache("ab")
    own = setup.compute(2 * page_size)
    torn, padding, outside = own.copy(), own.copy(), own.copy()
    torn[-1] = own[-2]
    padding[page_size:] = np.arange(page_size)
    outside[page_size:] = 7 * page_size + np.arange(page_size)
    faults = [
        (own[:-1], InvalidSize),
        (own - 1, MisalignedSegment),
        (torn, MisalignedSegment),
        (own[::-1], MisalignedSegment),
        (padding, ForeignPage),
        (-padding, MisalignedSegment),
        (outside, ForeignPage),
    ]
    before = repr(list(setup.tree.root.below()))
    for (row, error), word in itertools.product(faults, ("xy", "ay")):
        with pytest.raises(error):
            setup.tree.insert(setup.tokens(word), row)
        assert repr(list(setup.tree.root.below())) == before
        setup.audit()
    assert setup.tree.insert(setup.tokens("ay"), own).num_shared == page_size


def test_evicted_or_foreign_nodes_are_refused():
    """A handle that outlived its node, or belongs to another tree, can be neither locked nor read."""
    setup = TreeSetup(4)
    setup.cache("ab")
    found = setup.match("a")
    lower = setup.match("ab")
    evict(setup.tree, 1)
    stranger = TreeSetup(4).cache("a").node
    for node in (lower.node, stranger):
        for operation in (setup.tree.lock, setup.tree.unlock, setup.tree.slots):
            with pytest.raises(UseAfterFree, match="not in this tree"):
                operation(node)
    assert setup.tree.slots(found).size == 1
    setup.tree.clear()
    with pytest.raises(UseAfterFree):
        setup.tree.lock(found.node)
    setup.audit()


def test_evict_refuses_what_cannot_work():
    """A negative wish and a wish inside an open free group are errors that change nothing."""
    setup = TreeSetup(4)
    setup.cache("ab")
    with pytest.raises(InvalidSize, match="-1"):
        evict(setup.tree, -1)
    with setup.allocator.defer_frees(), pytest.raises(OpenGroup, match="End the group first"):
        evict(setup.tree, 1)
    assert setup.tree.evictable_tokens == 2
    setup.audit()


@PAGE_SIZES
def test_failed_free_leaves_the_tree_as_it_was(page_size):
    """When the allocator refuses a victim, freed behind the tree's back, no node is gone and all still wait."""
    setup = TreeSetup(8, page_size)
    setup.cache("abc")
    node = setup.cache("abd").node
    setup.cache("x")
    stolen = setup.tree.slots(node)[-page_size:]
    setup.allocator.free(stolen)
    for operation in (lambda: evict(setup.tree, 100 * page_size), setup.tree.clear):
        with pytest.raises(DoubleFree):
            operation()
        assert setup.cached("abc abd x") == "abc abd x"
        assert setup.tree.evictable_tokens == 5 * page_size
        setup.audit()


def test_long_keys_and_deep_trees():
    """A hundred thousand tokens in one node, and a chain of a thousand nodes: walked, locked and evicted."""
    allocator = TokenAllocator(100_000)
    tree = PrefixTree(allocator)
    long = np.arange(100_000, dtype=np.int64)
    row = allocator.alloc(100_000)
    tree.insert(long, row)
    for end in range(100, 100_000, 100):
        assert tree.match(long[:end]).num_tokens == end
    found = tree.match(long)
    tree.lock(found.node)
    assert tree.protected_tokens == 100_000
    tree.unlock(found.node)
    assert tree.slots(found).tolist() == row.tolist()
    tree.audit()
    assert evict(tree, 50_050) == Gone(50_100, 501)
    tree.audit()
