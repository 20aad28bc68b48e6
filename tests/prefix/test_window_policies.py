"""In which order windows go: each policy over the uses of the window side, which are fewer than those of the nodes."""

import pytest
from tree_setup import TreeSetup

from eviction_in_tokens import Gone, evict
from kvstead.model.window import Window
from kvstead.prefix import POLICIES

EVERY_POLICY = pytest.mark.parametrize("policy", sorted(POLICIES))


def order_of(setup, words):
    """The letters of `words` in the order in which their windows go; no node leaves for that."""
    live, gone = "".join(setup.live(word) for word in words), ""
    while setup.tree.window_evictable_tokens:
        assert evict(setup.tree, 0, 1).num_nodes == 0
        setup.audit()
        now = "".join(setup.live(word) for word in words)
        gone += "".join(letter for letter, left in zip(live, now, strict=True) if letter != left)
        live = now
    return gone


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", "abcd"),
        ("mru", "dcba"),
        ("fifo", "badc"),
        ("filo", "cdab"),
        ("lfu", "dbca"),
        ("slru", "dabc"),
        ("priority", "adbc"),
    ],
)
def test_policies_choose_windows_as_their_names_say(policy, order):
    """Four leaves: made b a d c, matched a a b c, last used a b c d (`d` by inserting it again), priorities 0 1 2 0."""
    setup = TreeSetup(8, policy=policy, window=Window(1))
    for word, priority in (("b", 1), ("a", 0), ("d", 0), ("c", 2)):
        setup.cache(word, priority=priority)
    for word in "aabc":
        setup.match(word)
    setup.cache("d")
    assert order_of(setup, ["a", "b", "c", "d"]) == order
    assert setup.tree.evictable_tokens == 4


@EVERY_POLICY
@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_window_next_to_the_root_goes_first_among_equals(policy, page_size, is_chunked):
    """Of a key inserted at once the windows go from the root on, whatever the policy, cut by a lock or not."""
    for num_locks in range(2):
        setup = TreeSetup(8, page_size, policy=policy, window=Window(page_size, is_chunked))
        node = setup.cache("abcdefgh").node
        for _ in range(num_locks):
            setup.tree.lock(node)
            setup.tree.unlock(node)
        assert order_of(setup, ["abcdefgh"]) == "abcdefgh"


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", "abghefcd"),
        ("mru", "cdefghab"),
        ("fifo", "abcdefgh"),
        ("filo", "ghefcdab"),
        ("lfu", "abghefcd"),
        ("slru", "abghefcd"),
        ("priority", "abghefcd"),
    ],
)
def test_use_refreshes_what_the_end_needs(policy, order):
    """Of a key in four nodes made one after another, matches of its third, second, second node use each one alone."""
    setup = TreeSetup(8, policy=policy, window=Window(2))
    tokens, row = setup.tokens("abcdefgh"), setup.compute(8)
    for end in (2, 4, 6, 8):
        setup.tree.insert(tokens[:end], row[:end])
    for word in ("abcdef", "abcd", "abcd"):
        assert setup.match(word).num_tokens == len(word)
    assert order_of(setup, ["abcdefgh"]) == order


def test_use_is_noted_for_what_the_end_needs():
    """A use is noted for what the end needs and no more: a node in which that begins is cut there."""
    setup = TreeSetup(10, window=Window(3))
    upper, lower = setup.cache("abcd").node, setup.cache("abcdef").node
    assert lower.parent is upper
    for num_uses in (1, 2):
        setup.match("abcdef")
        nodes = sorted(setup.tree.root.below(), key=lambda node: node.end)
        assert [node.end for node in nodes] == [1, 3, 4, 6]
        assert [node.window.hits for node in nodes] == [0, 0, num_uses, num_uses]
        assert [node.hits for node in nodes] == [num_uses] * 4


@EVERY_POLICY
def test_windows_in_the_midst_of_a_prompt_go_first(policy):
    """What no key has ended near goes before what some key has, however new it is."""
    setup = TreeSetup(12, policy=policy, window=Window(1))
    setup.cache("xy")
    setup.match("xy")
    setup.cache("abcdef")
    setup.match("abcdef")
    assert set(order_of(setup, ["abcdef", "xy"])[:6]) == set("abcdex")


def test_use_of_a_window_is_not_the_use_of_a_node():
    """Matches of a long key keep its whole path from leaving, but the windows near the root age all the same."""
    setup = TreeSetup(12, window=Window(2))
    setup.cache("ab")
    setup.cache("abcdefgh")
    setup.cache("xy")
    setup.match("abcdefgh")
    assert evict(setup.tree, 0, 2) == Gone(0, 0, 4, 4)
    assert (setup.live("abcdefgh"), setup.live("xy")) == ("ab....gh", "xy")
    assert evict(setup.tree, 0, 2) == Gone(0, 0, 2, 2)
    assert (setup.live("abcdefgh"), setup.live("xy")) == ("......gh", "xy")
    assert evict(setup.tree, 1).num_tokens == 2
    assert (setup.live("abcdefgh"), setup.live("xy")) == ("......gh", "")
    setup.audit()


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", "abcyxdz"),
        ("mru", "yabczdx"),
        ("fifo", "abcydxz"),
        ("filo", "yabczxd"),
        ("lfu", "abcyzxd"),
        ("slru", "abcyzxd"),
        ("priority", "yabczxd"),
    ],
)
def test_halves_of_a_split_node_remember(policy, order):
    """Both halves of a node that is split keep its age, its uses, its hits and its priority."""
    setup = TreeSetup(11, policy=policy, window=Window(1))
    setup.cache("abcd", priority=2)
    setup.cache("x", priority=1)
    for word in ("x", "abcd", "abcd"):
        setup.match(word)
    setup.cache("abyz")
    gone = order_of(setup, ["abcd", "x", "abyz"])  # "a" and "b" appear in two words
    assert "".join(dict.fromkeys(gone)) == order


def test_revived_window_is_as_old_as_its_node():
    """A window revived outside what the end needs was used when its node was, as if it had never been gone."""
    setup = TreeSetup(20, window=Window(2))
    setup.cache("ab", dead=range(2))
    setup.cache("abcd", dead=range(4))
    setup.cache("xy")
    setup.cache("abcdmn", dead=range(4))
    assert setup.live("abcdmn") == "....mn"
    setup.cache("abcd")
    assert order_of(setup, ["abcdmn", "xy"]) == "xyabmncd"


def test_leaf_that_was_joined_is_as_young_as_its_parent():
    """A leaf that takes in its parent is used when that was: under `mru` it overtakes what was used in between."""
    setup = TreeSetup(8, policy="mru", window=Window(1))
    setup.cache("abcd")
    setup.cache("x")
    setup.match("ab")
    assert evict(setup.tree, 0, 5) == Gone(0, 0, 5, 5)
    assert len(list(setup.tree.root.below())) == 2
    assert evict(setup.tree, 1) == Gone(4, 1)
    assert setup.live("x") == "."
    setup.audit()


def test_window_that_was_joined_is_as_young_as_the_one_above():
    """The same of a window that is let go and joined with what was used after it."""
    setup = TreeSetup(8, policy="mru", window=Window(2))
    node = setup.cache("abcdef").node
    setup.tree.lock(node)
    setup.cache("x")
    setup.match("abcd")
    setup.tree.loosen(node, 4, 6)
    assert len(list(setup.tree.root.below())) == 3
    evict(setup.tree, 0, 1)
    assert (setup.live("abcdef"), setup.live("x")) == ("..cdef", "x")
    evict(setup.tree, 0, 1)
    assert (setup.live("abcdef"), setup.live("x")) == ("......", "x")
    setup.tree.unlock(node, window_from=6)
    setup.audit()
