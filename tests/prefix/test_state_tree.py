import itertools

import numpy as np
import pytest
from prefix_bench import Bench

from eviction_in_tokens import Gone, evict, evict_bytes, in_tokens
from kvstead.errors import AuditError, DoubleFree, ForeignPage, InvalidSize, LockUnderflow, OpenGroup, UseAfterFree
from kvstead.model.window import Window

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 2, 3, 64])


@PAGE_SIZES
def test_match_ends_only_where_a_state_is(page_size):
    """Wherever states were put, a match of any key ends at the last one on its way, or at the root."""
    word = "abcdef"
    for ends in itertools.chain.from_iterable(itertools.combinations(range(1, 7), count) for count in range(7)):
        bench = Bench(12, page_size, num_states=6)
        bench.cache(word)
        for end in ends:
            bench.keep(word[:end])
        for length in range(7):
            found = bench.match(word[:length] + "x")
            expected = max((end for end in ends if end <= length), default=0)
            assert (found.num_tokens, found.num_found) == (expected * page_size, length * page_size)
            assert found.node.end == expected * page_size
        bench.audit()


@PAGE_SIZES
def test_node_that_is_split_keeps_its_state_at_its_end(page_size):
    """A key that leaves a cached one in its midst gets no state there; the one at the end stays."""
    bench = Bench(8, page_size, num_states=2)
    node = bench.keep("abcd")
    bench.cache("abxy")
    assert bench.word_of(node.parent) == "ab"
    assert bench.with_states("ab abcd abxy") == "abcd"
    assert bench.match("abcd").node is node
    assert bench.match("abxy").node is bench.tree.root


def test_second_state_at_one_end_stays_the_callers():
    """Of two sequences that end alike one gives its state; the other keeps its own, and the first counts as used."""
    bench = Bench(4, num_states=3)
    node, other = bench.keep("ab"), bench.keep("x")
    slot = node.state.slot
    mine = bench.states.alloc()
    assert bench.tree.put_state(node, mine) is False
    assert (node.state.slot, bench.tree.num_states) == (slot, 2)
    assert mine not in bench.tree.state_slots()
    evict(bench.tree, 0, 0, 1)
    assert other.state is None
    assert node.state is not None


@PAGE_SIZES
def test_states_go_back_exactly_once(page_size):
    """With their nodes, alone or by a clear: every state comes back once."""
    for num_alone, num_pages in itertools.product(range(5), range(8)):
        bench = Bench(12, page_size, num_states=4)
        for word in ("ab", "abcd", "abxy", "q"):
            bench.keep(word)
        assert bench.states.available == []
        gone = evict(bench.tree, 0, 0, num_alone) + evict(bench.tree, num_pages * page_size)
        assert gone.num_states_alone == num_alone
        assert sorted(bench.states.available + bench.tree.state_slots().tolist()) == [1, 2, 3, 4]
        assert len(bench.states.available) == gone.num_states
        bench.audit()
        assert bench.tree.clear() is True
        assert sorted(bench.states.available) == [1, 2, 3, 4]
        assert (bench.tree.num_states, bench.state_counts()) == (0, (0, 0))
        bench.audit()


def test_states_of_nodes_that_go_count_for_what_was_asked():
    """Nodes first; states go alone only for what their nodes did not make up."""
    bench = Bench(10, num_states=4)
    for word in ("ab", "abcd", "xy", "xyz"):
        bench.keep(word)
    assert evict(bench.tree, 2, 0, 1) == Gone(2, 1, 0, 0, 1, 0)  # "cd" with its state
    assert evict(bench.tree, 1, 0, 3) == Gone(2, 1, 0, 0, 3, 2)  # "ab" with its state, and "xy", "xyz" alone
    assert evict(bench.tree, 0, 0, 1) == Gone()
    assert bench.cached("xyz") == "xyz"
    bench.audit()


def test_leaf_without_a_state_goes_first_whatever_its_age():
    """Nobody can go on from the tail behind the last state, so it goes before what is older."""
    bench = Bench(10, num_states=3)
    bench.keep("ab")
    bench.keep("xy")
    bench.cache("xyz")
    bench.cache("q")
    assert evict(bench.tree, 1).num_tokens == 1
    assert bench.cached("ab xy xyz q") == "ab xy q"  # "xyz" is older than "q"
    assert evict(bench.tree, 1).num_tokens == 1
    assert evict(bench.tree, 1).num_tokens == 2
    assert bench.cached("ab xy") == "xy"


def test_parent_without_a_state_follows_its_last_child():
    """A way that leads nowhere any more goes next, before older leaves with states."""
    bench = Bench(10, num_states=3)
    bench.keep("old")
    bench.keep("abc")
    bench.cache("abx")
    bench.match("old")
    assert evict(bench.tree, 3) == Gone(4, 3, 0, 0, 1, 0)  # "x", "c" with its state, then "ab"
    assert bench.cached("ab old") == "old"


@PAGE_SIZES
def test_state_evicted_alone_joins_its_node_with_what_follows(page_size):
    """Without a state between them, and no lock, two nodes become one; the state at the end stays."""
    bench = Bench(8, page_size, num_states=3)
    bench.keep("ab")
    node = bench.keep("abcd")
    assert evict(bench.tree, 0, 0, 1) == Gone(0, 0, 0, 0, 1, 1)
    assert (node.start, bench.word_of(node), node.state is not None) == (0, "abcd", True)
    assert bench.match("abcx").num_tokens == 0
    assert bench.match("abcd").node is node
    bench.audit()
    bench.tree.lock(node)
    upper = bench.keep("ab")
    bench.tree.lock(upper)
    evict(bench.tree, 0, 0, 2)
    assert (node.parent, bench.tree.num_states) == (upper, 0)  # a lock ends between them
    bench.tree.unlock(upper)
    bench.tree.unlock(node)
    bench.audit()


@pytest.mark.parametrize("page_size", [1, 2, 3])
@pytest.mark.parametrize("loosens", [False, True])
def test_windows_that_go_leave_states_at_their_ends(page_size, loosens):
    """Tombstones become one, and so do windows that a lock lets go, but never across a state."""
    word = "abcdefgh"
    for ends in itertools.combinations(range(1, 8), 3):
        bench = Bench(32, page_size, window=Window(2 * page_size), num_states=4)
        nodes = {word[:end]: bench.keep(word[:end]) for end in (*ends, 8)}
        slots = bench.tree.state_slots().tolist()
        if loosens:
            bench.tree.lock(nodes[word])
            for to in range(6 * page_size, 8 * page_size + 1):
                bench.tree.loosen(nodes[word], max(6 * page_size, to - 1), to)
                bench.audit()
        while evict(bench.tree, 0, 1).num_tombstoned:
            bench.audit()
        assert {key: bench.word_of(node) for key, node in nodes.items()} == {key: key for key in nodes}
        assert [node.state is not None for node in nodes.values()] == [True] * 4
        assert bench.tree.state_slots().tolist() == slots


def test_leaf_that_lost_its_state_goes_next():
    """A state that goes alone leaves a leaf of no use."""
    bench = Bench(8, num_states=2)
    bench.keep("old")
    new = bench.keep("ab")
    bench.tree.supersede_state(new)
    evict(bench.tree, 0, 0, 1)
    assert new.state is None
    evict(bench.tree, 1)
    assert bench.cached("old ab") == "old"
    bench.audit()


def test_superseded_state_goes_first_unless_it_was_used():
    """Of states that their own sequences have left, only those that a match came back to wait as the others do."""
    for num_hits in range(3):
        bench = Bench(10, num_states=3)
        bench.keep("old")
        first = bench.keep("ab")
        bench.keep("abcd")
        bench.tree.supersede_state(first)
        for _ in range(num_hits):
            bench.match("abx")
        evict(bench.tree, 0, 0, 1)
        assert bench.with_states("old ab abcd") == ("ab abcd" if num_hits else "old abcd")
        bench.tree.supersede_state(first)  # whether or not it is still there
        bench.audit()


@PAGE_SIZES
def test_held_state_is_evicted_neither_alone_nor_with_its_node(page_size):
    """While it is copied it stays with its whole path, whatever is asked for; then all of it can go."""
    bench = Bench(8, page_size, num_states=3)
    bench.keep("ab")
    node = bench.keep("abcd")
    bench.keep("xy")
    for _ in range(2):
        bench.tree.hold_state(node)
    assert bench.state_counts() == (2, 1)
    assert (bench.tree.evictable_tokens, bench.tree.protected_tokens) == (2 * page_size, 4 * page_size)
    bench.audit()
    assert evict(bench.tree, 100, 0, 100) == Gone(2 * page_size, 1, 0, 0, 2, 1)
    assert evict_bytes(bench.tree, 10**9, token_bytes=1, state_bytes=1) == Gone()
    assert bench.tree.clear() is False
    bench.tree.let_state_go(node)
    assert evict(bench.tree, 100, 0, 100) == Gone()
    bench.tree.let_state_go(node)
    assert bench.state_counts() == (1, 0)
    with pytest.raises(LockUnderflow):
        bench.tree.let_state_go(node)
    assert evict(bench.tree, 1) == Gone(4 * page_size, 1, 0, 0, 1, 0)
    bench.audit()


def test_node_split_under_a_hold_keeps_it():
    """A key that leaves a held path splits it; the state and its hold stay at the end, the path stays protected."""
    bench = Bench(8, num_states=2)
    node = bench.keep("abcd")
    bench.tree.hold_state(node)
    bench.cache("abx")
    assert (bench.tree.protected_tokens, bench.tree.evictable_tokens) == (4, 1)
    evict(bench.tree, 100, 0, 100)
    assert bench.with_states("abcd") == "abcd"
    bench.tree.let_state_go(node)
    bench.audit()
    assert evict(bench.tree, 100).num_tokens == 4


def test_lock_keeps_no_state():
    """The state of a locked node goes alone; its tokens stay."""
    bench = Bench(8, num_states=2)
    node = bench.keep("abcd")
    bench.tree.lock(node)
    assert evict(bench.tree, 100, 0, 1) == Gone(0, 0, 0, 0, 1, 1)
    assert (bench.match("abcd").num_tokens, bench.match("abcd").num_found) == (0, 4)
    assert bench.tree.put_state(node, bench.states.alloc()) is True
    bench.tree.unlock(node)
    bench.audit()


def test_evict_bytes_takes_what_nobody_needs_then_the_oldest_of_all_sides():
    """Leaves without a state, windows never needed, superseded states; then node or state, whichever is older."""
    bench = Bench(24, window=Window(2), num_states=4)
    early = bench.keep("abcd")
    bench.keep("pq")
    late = bench.keep("abcdefgh")
    bench.cache("pqz")
    bench.tree.supersede_state(early)
    costs = {"token_bytes": 10, "window_token_bytes": 5, "state_bytes": 100}
    gone = [evict_bytes(bench.tree, 1, **costs) for _ in range(6)]
    assert gone == [
        Gone(0, 0, 2, 2),  # the windows of "ab", never needed: the oldest of what is of no use
        Gone(0, 0, 0, 0, 1, 1),  # the state of "abcd"
        Gone(0, 0, 2, 2),  # the windows of "ef"
        Gone(1, 1, 1),  # the leaf "z", without a state
        Gone(0, 0, 2, 2),  # the windows of "cd", needed at the end of "abcd", but before all that is left
        Gone(0, 0, 1, 1),  # the window of "p", needed at the end of "pq" only
    ]
    assert late.state is not None
    bench.audit()


def test_state_is_never_put_at_the_root_or_a_node_that_is_gone():
    """Misuse is told apart, and changes nothing."""
    bench = Bench(8, num_states=3)
    node = bench.keep("ab")
    slot = bench.states.alloc()
    with pytest.raises(InvalidSize, match="root"):
        bench.tree.put_state(bench.tree.root, slot)
    with pytest.raises(AuditError, match="already"):
        bench.tree.put_state(bench.cache("xy").node, node.state.slot)
    with pytest.raises(ForeignPage, match="padding"):
        bench.tree.put_state(node, 0)
    with pytest.raises(UseAfterFree, match="no state"):
        bench.tree.hold_state(bench.cache("xy").node)
    assert (bench.tree.num_states, node.state.hits) == (1, 0)
    evict(bench.tree, 100)
    for call in (lambda: bench.tree.put_state(node, slot), lambda: bench.tree.hold_state(node)):
        with pytest.raises(UseAfterFree):
            call()
    with pytest.raises(UseAfterFree):
        bench.tree.let_state_go(node)
    bench.audit()


def test_tree_without_states_says_so():
    """Asking for states where there are none is an error that names the way out; counters are 0."""
    bench = Bench(4)
    node = bench.cache("ab").node
    calls = (
        lambda: bench.tree.put_state(node, 1),
        lambda: bench.tree.hold_state(node),
        lambda: bench.tree.let_state_go(node),
        lambda: bench.tree.supersede_state(node),
    )
    for call in calls:
        with pytest.raises(InvalidSize, match="states="):
            call()
    assert (bench.tree.num_states, bench.state_counts(), bench.tree.state_slots().size) == (0, (0, 0), 0)
    assert evict(bench.tree, 0, 0, 5) == Gone()


def test_eviction_with_a_group_open_or_of_less_than_nothing_changes_nothing():
    """Both ways of evicting refuse, and say why."""
    bench = Bench(4, num_states=1)
    bench.keep("ab")
    with bench.allocator.defer_frees():
        with pytest.raises(OpenGroup):
            evict(bench.tree, 0, 0, 1)
        with pytest.raises(OpenGroup):
            evict_bytes(bench.tree, 1, token_bytes=1)
    for bad in ((-1, 1, 0, 0), (1, 0, 0, 0), (1, 1, -1, 0), (1, 1, 0, -1)):
        with pytest.raises(InvalidSize):
            evict_bytes(bench.tree, bad[0], token_bytes=bad[1], window_token_bytes=bad[2], state_bytes=bad[3])
    with pytest.raises(InvalidSize):
        evict(bench.tree, 0, 0, -1)
    assert (bench.tree.num_states, in_tokens(bench.tree.evicted, bench.page_size)) == (1, Gone())
    bench.audit()


def test_state_freed_behind_the_tree_is_reported_before_anything_changes():
    """Whoever frees a state that the tree owns hears of it at the eviction, alone or with its node."""
    bench = Bench(4, num_states=2)
    node = bench.keep("abc")
    bench.states.free(np.array([node.state.slot]))
    for num_tokens, num_states in ((1, 0), (0, 1)):
        with pytest.raises(DoubleFree):
            evict(bench.tree, num_tokens, 0, num_states)
        bench.tree.audit()
        assert (bench.tree.evictable_tokens, bench.tree.num_states) == (3, 1)
