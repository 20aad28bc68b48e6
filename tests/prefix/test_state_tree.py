import itertools

import numpy as np
import pytest
from tree_setup import TreeSetup

from eviction_in_tokens import Gone, evict, evict_bytes, in_tokens
from kvstead.errors import AuditError, DoubleFree, ForeignPage, InvalidSize, LockUnderflow, OpenGroup, UseAfterFree
from kvstead.model.window import Window

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 2, 3, 64])


@PAGE_SIZES
def test_match_ends_only_where_a_state_is(page_size):
    """Wherever states were put, a match of any key ends at the last one on its way, or at the root."""
    word = "abcdef"
    for ends in itertools.chain.from_iterable(itertools.combinations(range(1, 7), count) for count in range(7)):
        setup = TreeSetup(12, page_size, num_states=6)
        setup.cache(word)
        for end in ends:
            setup.keep(word[:end])
        for length in range(7):
            found = setup.match(word[:length] + "x")
            expected = max((end for end in ends if end <= length), default=0)
            assert (found.num_tokens, found.num_found) == (expected * page_size, length * page_size)
            assert found.node.end == expected * page_size
        setup.audit()


@PAGE_SIZES
def test_node_that_is_split_keeps_its_state_at_its_end(page_size):
    """A key that leaves a cached one in its midst gets no state there; the one at the end stays."""
    setup = TreeSetup(8, page_size, num_states=2)
    node = setup.keep("abcd")
    setup.cache("abxy")
    assert setup.word_of(node.parent) == "ab"
    assert setup.with_states("ab abcd abxy") == "abcd"
    assert setup.match("abcd").node is node
    assert setup.match("abxy").node is setup.tree.root


def test_second_state_at_one_end_stays_the_callers():
    """Of two sequences that end alike one gives its state; the other keeps its own, and the first counts as used."""
    setup = TreeSetup(4, num_states=3)
    node, other = setup.keep("ab"), setup.keep("x")
    slot = node.state.slot
    mine = setup.states.alloc()
    assert setup.tree.put_state(node, mine) is False
    assert (node.state.slot, setup.tree.num_states) == (slot, 2)
    assert mine not in setup.tree.state_slots()
    evict(setup.tree, 0, 0, 1)
    assert other.state is None
    assert node.state is not None


@PAGE_SIZES
def test_states_go_back_exactly_once(page_size):
    """With their nodes, alone or by a clear: every state comes back once."""
    for num_alone, num_pages in itertools.product(range(5), range(8)):
        setup = TreeSetup(12, page_size, num_states=4)
        for word in ("ab", "abcd", "abxy", "q"):
            setup.keep(word)
        assert setup.states.available == []
        gone = evict(setup.tree, 0, 0, num_alone) + evict(setup.tree, num_pages * page_size)
        assert gone.num_states_alone == num_alone
        assert sorted(setup.states.available + setup.tree.state_slots().tolist()) == [1, 2, 3, 4]
        assert len(setup.states.available) == gone.num_states
        setup.audit()
        assert setup.tree.clear() is True
        assert sorted(setup.states.available) == [1, 2, 3, 4]
        assert (setup.tree.num_states, setup.state_counts()) == (0, (0, 0))
        setup.audit()


def test_states_of_nodes_that_go_count_for_what_was_asked():
    """Nodes first; states go alone only for what their nodes did not make up."""
    setup = TreeSetup(10, num_states=4)
    for word in ("ab", "abcd", "xy", "xyz"):
        setup.keep(word)
    assert evict(setup.tree, 2, 0, 1) == Gone(2, 1, 0, 0, 1, 0)  # "cd" with its state
    assert evict(setup.tree, 1, 0, 3) == Gone(2, 1, 0, 0, 3, 2)  # "ab" with its state, and "xy", "xyz" alone
    assert evict(setup.tree, 0, 0, 1) == Gone()
    assert setup.cached("xyz") == "xyz"
    setup.audit()


def test_leaf_without_a_state_goes_first_whatever_its_age():
    """No request can continue from the tail behind the last state, so it goes before what is older."""
    setup = TreeSetup(10, num_states=3)
    setup.keep("ab")
    setup.keep("xy")
    setup.cache("xyz")
    setup.cache("q")
    assert evict(setup.tree, 1).num_tokens == 1
    assert setup.cached("ab xy xyz q") == "ab xy q"  # "xyz" is older than "q"
    assert evict(setup.tree, 1).num_tokens == 1
    assert evict(setup.tree, 1).num_tokens == 2
    assert setup.cached("ab xy") == "xy"


def test_parent_without_a_state_follows_its_last_child():
    """A way that leads nowhere any more goes next, before older leaves with states."""
    setup = TreeSetup(10, num_states=3)
    setup.keep("old")
    setup.keep("abc")
    setup.cache("abx")
    setup.match("old")
    assert evict(setup.tree, 3) == Gone(4, 3, 0, 0, 1, 0)  # "x", "c" with its state, then "ab"
    assert setup.cached("ab old") == "old"


@PAGE_SIZES
def test_state_evicted_alone_joins_its_node_with_what_follows(page_size):
    """Without a state between them, and no lock, two nodes become one; the state at the end stays."""
    setup = TreeSetup(8, page_size, num_states=3)
    setup.keep("ab")
    node = setup.keep("abcd")
    assert evict(setup.tree, 0, 0, 1) == Gone(0, 0, 0, 0, 1, 1)
    assert (node.start, setup.word_of(node), node.state is not None) == (0, "abcd", True)
    assert setup.match("abcx").num_tokens == 0
    assert setup.match("abcd").node is node
    setup.audit()
    setup.tree.lock(node)
    upper = setup.keep("ab")
    setup.tree.lock(upper)
    evict(setup.tree, 0, 0, 2)
    assert (node.parent, setup.tree.num_states) == (upper, 0)  # a lock ends between them
    setup.tree.unlock(upper)
    setup.tree.unlock(node)
    setup.audit()


@pytest.mark.parametrize("page_size", [1, 2, 3])
@pytest.mark.parametrize("loosens", [False, True])
def test_windows_that_go_leave_states_at_their_ends(page_size, loosens):
    """Tombstones become one, and so do windows that a lock lets go, but never across a state."""
    word = "abcdefgh"
    for ends in itertools.combinations(range(1, 8), 3):
        setup = TreeSetup(32, page_size, window=Window(2 * page_size), num_states=4)
        nodes = {word[:end]: setup.keep(word[:end]) for end in (*ends, 8)}
        slots = setup.tree.state_slots().tolist()
        if loosens:
            setup.tree.lock(nodes[word])
            for to in range(6 * page_size, 8 * page_size + 1):
                setup.tree.loosen(nodes[word], max(6 * page_size, to - 1), to)
                setup.audit()
        while evict(setup.tree, 0, 1).num_tombstoned:
            setup.audit()
        assert {key: setup.word_of(node) for key, node in nodes.items()} == {key: key for key in nodes}
        assert [node.state is not None for node in nodes.values()] == [True] * 4
        assert setup.tree.state_slots().tolist() == slots


def test_leaf_that_lost_its_state_goes_next():
    """A state that goes alone leaves a leaf of no use."""
    setup = TreeSetup(8, num_states=2)
    setup.keep("old")
    new = setup.keep("ab")
    setup.tree.supersede_state(new)
    evict(setup.tree, 0, 0, 1)
    assert new.state is None
    evict(setup.tree, 1)
    assert setup.cached("old ab") == "old"
    setup.audit()


@pytest.mark.parametrize("is_used_before", [False, True])
def test_superseded_state_goes_first_unless_it_was_used_since(is_used_before):
    """A state that one longer sequence extends goes first; a match that ends there protects it, one through it not."""
    for num_hits in range(3):
        setup = TreeSetup(10, num_states=3)
        if is_used_before:
            first = setup.keep("ab")
            setup.match("abx")
            setup.keep("old")
        else:
            setup.keep("old")
            first = setup.keep("ab")
        setup.keep("abcd")
        for _ in range(num_hits):
            setup.match("abx")
        setup.match("abcdx")
        evict(setup.tree, 0, 0, 1)
        assert setup.with_states("old ab abcd") == ("ab abcd" if num_hits else "old abcd")
        setup.tree.supersede_state(first)  # whether or not it is still there
        setup.audit()


def test_state_where_sequences_part_is_not_superseded():
    """Two longer sequences go on from one state, which waits as others do; when one has gone, it goes first."""
    setup = TreeSetup(16, num_states=4)
    setup.keep("ab")
    setup.keep("abcd")
    fork = setup.keep("abef")
    setup.keep("xy")
    assert [node.state.is_superseded for node in (fork.parent, fork)] == [False, False]
    setup.match("abcdx")
    setup.match("abefx")
    evict(setup.tree, 0, 0, 1)
    assert setup.with_states("ab abcd abef xy") == "abcd abef xy"
    setup.tree.put_state(fork.parent, setup.states.alloc())
    setup.match("xyz")
    evict(setup.tree, 2)  # "cd" with its state
    setup.match("xyz")
    evict(setup.tree, 0, 0, 1)
    assert setup.with_states("ab abef xy") == "abef xy"
    setup.audit()


def test_last_states_of_two_chats_outlive_all_earlier_ones():
    """Turn by turn, with room for two states: a state about to come takes the place of its own chat's last one."""
    setup = TreeSetup(40, num_states=2)
    chats = {"a": "abcdef", "x": "xyzuvw"}
    for turn in (2, 4, 6):
        for chat in chats.values():
            node = setup.cache(chat[:turn]).node
            if not setup.states.available:
                setup.tree.supersede_state(node)
                evict(setup.tree, 0, 0, 1)
            assert setup.tree.put_state(node, setup.states.alloc())
        assert (
            setup.with_states(" ".join(chat[:turn] for chat in chats.values()))
            == f"{chats['a'][:turn]} {chats['x'][:turn]}"
        )
    setup.audit()


@PAGE_SIZES
def test_held_state_is_evicted_neither_alone_nor_with_its_node(page_size):
    """While it is copied it stays with its whole path, whatever is asked for; then all of it can go."""
    setup = TreeSetup(8, page_size, num_states=3)
    setup.keep("ab")
    node = setup.keep("abcd")
    setup.keep("xy")
    for _ in range(2):
        setup.tree.hold_state(node)
    assert setup.state_counts() == (2, 1)
    assert (setup.tree.evictable_tokens, setup.tree.protected_tokens) == (2 * page_size, 4 * page_size)
    setup.audit()
    assert evict(setup.tree, 100, 0, 100) == Gone(2 * page_size, 1, 0, 0, 2, 1)
    assert evict_bytes(setup.tree, 10**9, token_bytes=1, state_bytes=1) == Gone()
    assert setup.tree.clear() is False
    setup.tree.let_state_go(node)
    assert evict(setup.tree, 100, 0, 100) == Gone()
    setup.tree.let_state_go(node)
    assert setup.state_counts() == (1, 0)
    with pytest.raises(LockUnderflow):
        setup.tree.let_state_go(node)
    assert evict(setup.tree, 1) == Gone(4 * page_size, 1, 0, 0, 1, 0)
    setup.audit()


def test_node_split_under_a_hold_keeps_it():
    """A key that leaves a held path splits it; the state and its hold stay at the end, the path stays protected."""
    setup = TreeSetup(8, num_states=2)
    node = setup.keep("abcd")
    setup.tree.hold_state(node)
    setup.cache("abx")
    assert (setup.tree.protected_tokens, setup.tree.evictable_tokens) == (4, 1)
    evict(setup.tree, 100, 0, 100)
    assert setup.with_states("abcd") == "abcd"
    setup.tree.let_state_go(node)
    setup.audit()
    assert evict(setup.tree, 100).num_tokens == 4


def test_lock_keeps_no_state():
    """The state of a locked node goes alone; its tokens stay."""
    setup = TreeSetup(8, num_states=2)
    node = setup.keep("abcd")
    setup.tree.lock(node)
    assert evict(setup.tree, 100, 0, 1) == Gone(0, 0, 0, 0, 1, 1)
    assert (setup.match("abcd").num_tokens, setup.match("abcd").num_found) == (0, 4)
    assert setup.tree.put_state(node, setup.states.alloc()) is True
    setup.tree.unlock(node)
    setup.audit()


def test_evict_bytes_takes_what_nobody_needs_then_the_oldest_of_all_sides():
    """Leaves without a state, windows never needed, superseded states; then node or state, whichever is older."""
    setup = TreeSetup(24, window=Window(2), num_states=4)
    early = setup.keep("abcd")
    setup.keep("pq")
    late = setup.keep("abcdefgh")
    setup.cache("pqz")
    setup.tree.supersede_state(early)
    costs = {"token_bytes": 10, "window_token_bytes": 5, "state_bytes": 100}
    gone = [evict_bytes(setup.tree, 1, **costs) for _ in range(6)]
    assert gone == [
        Gone(0, 0, 2, 2),  # the windows of "ab", never needed: the oldest of what is of no use
        Gone(0, 0, 0, 0, 1, 1),  # the state of "abcd"
        Gone(0, 0, 2, 2),  # the windows of "ef"
        Gone(1, 1, 1),  # the leaf "z", without a state
        Gone(0, 0, 2, 2),  # the windows of "cd", needed at the end of "abcd", but before all that is left
        Gone(0, 0, 1, 1),  # the window of "p", needed at the end of "pq" only
    ]
    assert late.state is not None
    setup.audit()


def test_state_is_never_put_at_the_root_or_a_node_that_is_gone():
    """Misuse is told apart, and changes nothing."""
    setup = TreeSetup(8, num_states=3)
    node = setup.keep("ab")
    slot = setup.states.alloc()
    with pytest.raises(InvalidSize, match="root"):
        setup.tree.put_state(setup.tree.root, slot)
    with pytest.raises(AuditError, match="already"):
        setup.tree.put_state(setup.cache("xy").node, node.state.slot)
    with pytest.raises(ForeignPage, match="padding"):
        setup.tree.put_state(node, 0)
    with pytest.raises(UseAfterFree, match="no state"):
        setup.tree.hold_state(setup.cache("xy").node)
    assert (setup.tree.num_states, node.state.hits) == (1, 0)
    evict(setup.tree, 100)
    for call in (lambda: setup.tree.put_state(node, slot), lambda: setup.tree.hold_state(node)):
        with pytest.raises(UseAfterFree):
            call()
    with pytest.raises(UseAfterFree):
        setup.tree.let_state_go(node)
    setup.audit()


def test_tree_without_states_says_so():
    """Asking for states where there are none is an error that names the way out; counters are 0."""
    setup = TreeSetup(4)
    node = setup.cache("ab").node
    calls = (
        lambda: setup.tree.put_state(node, 1),
        lambda: setup.tree.hold_state(node),
        lambda: setup.tree.let_state_go(node),
        lambda: setup.tree.supersede_state(node),
    )
    for call in calls:
        with pytest.raises(InvalidSize, match="states="):
            call()
    assert (setup.tree.num_states, setup.state_counts(), setup.tree.state_slots().size) == (0, (0, 0), 0)
    assert evict(setup.tree, 0, 0, 5) == Gone()


def test_eviction_with_a_group_open_or_of_less_than_nothing_changes_nothing():
    """Both ways of evicting refuse, and say why."""
    setup = TreeSetup(4, num_states=1)
    setup.keep("ab")
    with setup.allocator.defer_frees():
        with pytest.raises(OpenGroup):
            evict(setup.tree, 0, 0, 1)
        with pytest.raises(OpenGroup):
            evict_bytes(setup.tree, 1, token_bytes=1)
    for bad in ((-1, 1, 0, 0), (1, 0, 0, 0), (1, 1, -1, 0), (1, 1, 0, -1)):
        with pytest.raises(InvalidSize):
            evict_bytes(setup.tree, bad[0], token_bytes=bad[1], window_token_bytes=bad[2], state_bytes=bad[3])
    with pytest.raises(InvalidSize):
        evict(setup.tree, 0, 0, -1)
    assert (setup.tree.num_states, in_tokens(setup.tree.evicted, setup.page_size)) == (1, Gone())
    setup.audit()


def test_state_freed_behind_the_tree_is_reported_before_anything_changes():
    """Freeing a state that the tree owns is reported at the eviction, alone or with its node."""
    setup = TreeSetup(4, num_states=2)
    node = setup.keep("abc")
    setup.states.free(np.array([node.state.slot]))
    for num_tokens, num_states in ((1, 0), (0, 1)):
        with pytest.raises(DoubleFree):
            evict(setup.tree, num_tokens, 0, num_states)
        setup.tree.audit()
        assert (setup.tree.evictable_tokens, setup.tree.num_states) == (3, 1)
