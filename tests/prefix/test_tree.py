import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prefix_bench import Bench

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
    bench = Bench(8, page_size)
    row = bench.compute(4 * page_size)
    assert bench.tree.insert(bench.tokens("abcd"), row).num_shared == 0
    for word, shared in (("", 0), ("x", 0), ("ax", 1), ("abc", 3), ("abcd", 4), ("abcdx", 4)):
        found = bench.match(word)
        assert found.num_tokens == shared * page_size
        assert bench.tree.slots(found).tolist() == row[: shared * page_size].tolist()
        assert bench.tree.slots(found.node).dtype == np.int64
    bench.audit()


@given(st.tuples(TEXT, TEXT, st.lists(TEXT, max_size=2)), st.tuples(TEXT, TEXT, st.lists(TEXT, max_size=2)))
def test_namespaces_never_meet(one, other):
    """Two namespaces share a prefix exactly when they are equal field by field, whatever their strings join to."""
    first, second = (Namespace(lora, salt, tuple(images)) for lora, salt, images in (one, other))
    bench = Bench(4, 2)
    bench.cache("ab", namespace=first)
    assert bench.match("ab", namespace=second).num_tokens == (4 if first == second else 0)
    assert bench.match("ab", namespace=Namespace(*one[:2], tuple(one[2]))).num_tokens == 4


@settings(deadline=None)
@given(st.sampled_from([1, 2, 3, 4, 64]), st.sampled_from([np.int32, np.int64]), st.booleans(), st.integers(0, 2**31))
def test_tokens_and_slots_of_any_layout(page_size, dtype, strided, seed):
    """Tokens of either width, strided or not, and rows of any integer type, strided or torch, are the same key."""
    bench = Bench(6, page_size)
    ids = np.random.default_rng(seed).integers(-(2**31), 2**31, 3 * page_size)
    tokens = (np.repeat(ids, 2)[::2] if strided else ids).astype(dtype)
    row = bench.compute(tokens.size)
    spread = np.repeat(row, 2)[::2] if strided else torch.from_numpy(row).to(torch.int32)
    assert bench.tree.insert(tokens, spread).num_tokens == tokens.size
    assert bench.tree.slots(bench.tree.match(ids)).tolist() == row.tolist()


def test_tree_keeps_nothing_of_its_arguments():
    """The caller may overwrite tokens and row right after the call, and what `slots` returned as well."""
    bench = Bench(4, 2)
    tokens, row = bench.tokens("ab"), bench.compute(4)
    kept = row.tolist()
    done = bench.tree.insert(tokens, row)
    tokens[:] = 0
    row[:] = 0
    bench.tree.slots(done.node)[:] = 0
    assert bench.tree.slots(bench.match("ab")).tolist() == kept
    bench.audit()


def test_results_are_plain_values():
    """Results compare by value and cannot be changed."""
    bench = Bench(4, 2)
    done = bench.cache("ab")
    assert done == Insertion(done.node, 4, 0)
    assert bench.match("ab") == Match(done.node, 4, 4)
    assert evict(bench.tree, 0) == Gone()
    with pytest.raises(AttributeError):
        done.num_tokens = 5


def test_inserting_again_is_free_of_charge():
    """A running request that inserts a longer and longer row makes one node a chunk and takes only the new pages."""
    bench = Bench(8, 4)
    tokens, row = bench.tokens("abcdefgh"), bench.compute(32)
    ends = []
    for end in (8, 8, 11, 20, 32):
        done = bench.tree.insert(tokens[:end], row[:end])
        ends.append((done.num_shared, done.num_tokens))
        bench.audit()
    assert ends == [(0, 8), (8, 8), (8, 8), (8, 20), (20, 32)]
    assert bench.tree.evictable_tokens == 32


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
    bench = Bench(8, policy=policy)
    for word, priority in (("b", 1), ("a", 0), ("d", 0), ("c", 2)):
        bench.cache(word, priority=priority)
    for word in "aabc":
        bench.match(word)
    bench.cache("d")
    gone = []
    while bench.tree.evictable_tokens:
        before = bench.cached("a b c d").split()
        assert evict(bench.tree, 1) == Gone(1, 1)
        gone += set(before) - set(bench.cached("a b c d").split())
    assert " ".join(gone) == order


def test_priority_protects_the_whole_path_and_may_be_negative():
    """The priority of a key holds for all of its prefixes; it only rises; below 0 is below the others."""
    bench = Bench(8, policy="priority")
    bench.cache("ab")
    bench.cache("xyz", priority=3)
    bench.cache("xy")
    bench.cache("m", priority=-1)
    order = []
    for _ in range(3):
        evict(bench.tree, 1)
        order.append(bench.cached("ab xy xyz m"))
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
    bench = Bench(4)
    with pytest.raises(RequestError, match=r"tokens? .*Pass"):
        bench.tree.match(tokens)
    with pytest.raises(RequestError):
        bench.tree.insert(tokens, bench.compute(2))
    bench.tree.audit()


@pytest.mark.parametrize("page_size", [2, 3, 4, 64])
def test_slots_that_are_no_row(page_size):
    """Too few slots, torn or shifted pages, padding and pages outside the pool are refused before anything changes."""
    bench = Bench(6, page_size)
    bench.cache("ab")
    own = bench.compute(2 * page_size)
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
    before = repr(list(bench.tree.root.below()))
    for (row, error), word in itertools.product(faults, ("xy", "ay")):
        with pytest.raises(error):
            bench.tree.insert(bench.tokens(word), row)
        assert repr(list(bench.tree.root.below())) == before
        bench.audit()
    assert bench.tree.insert(bench.tokens("ay"), own).num_shared == page_size


def test_evicted_or_foreign_nodes_are_refused():
    """A handle that outlived its node, or belongs to another tree, can be neither locked nor read."""
    bench = Bench(4)
    bench.cache("ab")
    found = bench.match("a")
    lower = bench.match("ab")
    evict(bench.tree, 1)
    stranger = Bench(4).cache("a").node
    for node in (lower.node, stranger):
        for operation in (bench.tree.lock, bench.tree.unlock, bench.tree.slots):
            with pytest.raises(UseAfterFree, match="not in this tree"):
                operation(node)
    assert bench.tree.slots(found).size == 1
    bench.tree.clear()
    with pytest.raises(UseAfterFree):
        bench.tree.lock(found.node)
    bench.audit()


def test_evict_refuses_what_cannot_work():
    """A negative wish and a wish inside an open free group are errors that change nothing."""
    bench = Bench(4)
    bench.cache("ab")
    with pytest.raises(InvalidSize, match="-1"):
        evict(bench.tree, -1)
    with bench.allocator.defer_frees(), pytest.raises(OpenGroup, match="End the group first"):
        evict(bench.tree, 1)
    assert bench.tree.evictable_tokens == 2
    bench.audit()


@PAGE_SIZES
def test_failed_free_leaves_the_tree_as_it_was(page_size):
    """When the allocator refuses a victim, freed behind the tree's back, no node is gone and all still wait."""
    bench = Bench(8, page_size)
    bench.cache("abc")
    node = bench.cache("abd").node
    bench.cache("x")
    stolen = bench.tree.slots(node)[-page_size:]
    bench.allocator.free(stolen)
    for operation in (lambda: evict(bench.tree, 100 * page_size), bench.tree.clear):
        with pytest.raises(DoubleFree):
            operation()
        assert bench.cached("abc abd x") == "abc abd x"
        assert bench.tree.evictable_tokens == 5 * page_size
        bench.audit()


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
