"""The seam: another kind of cache is another component in the same loops."""

import numpy as np
from tree_setup import TreeSetup

from eviction_in_tokens import evict


class States:
    """A kind of cache that has something at the end of each inserted key only, as a recurrent state would."""

    side = "end"

    def __init__(self):
        self.ends, self.locked, self.released = set(), [], []

    def adopt(self, leaf):
        """Every new leaf has a state."""
        self.ends.add(leaf)

    def pages_of(self, node):
        """A state at the end of a key, else nothing."""
        return int(node in self.ends)

    def split(self, upper, lower):
        """The state stays where the key ended."""
        assert lower.parent is upper
        assert list(upper.children.values()) == [lower]
        assert upper not in self.ends

    def cuts(self, _pages):
        """A state does not care where its leaf begins."""
        return []

    def mend(self, path, num_shared, row):
        """The caller has no states to give."""

    def is_joinable(self, upper, lower):
        """Never; nothing here is loosened."""
        raise AssertionError((upper, lower))

    join = is_joinable

    def usable(self, path, length):
        """A match may only end at a state."""
        return max((node.end for node in path if node in self.ends and node.end <= length), default=0)

    def use(self, node, num_hits):
        """Times do not matter here."""

    def lock(self, node):
        """A lock holds the one state."""
        self.locked.append(node)

    def unlock(self, node, since):
        """The same one is let go."""
        assert since is None
        self.locked.remove(node)

    def release(self, nodes):
        """States go with their nodes."""
        self.released += [node for node in nodes if node in self.ends]
        self.ends -= set(nodes)

    def audit(self, root):
        """States are at nodes of the tree."""
        assert self.ends <= set(root.below())


def test_another_component_has_its_say_in_every_operation():
    """A component with states at ends draws matches back, follows locks and splits, and releases with the tree."""
    setup, states = TreeSetup(20, 2), States()
    setup.tree._components.append(states)
    short = setup.cache("ab").node
    long = setup.cache("abcd").node
    assert setup.match("abcx").node is short  # the tokens of "abc" are cached, a state only behind "ab"
    assert long.parent is short  # no match ended there, so nothing was split
    other = setup.cache("abcx").node
    assert long.parent is other.parent is not short
    assert long.parent not in states.ends
    assert setup.match("abcd").node is long
    assert setup.match("abcy").node is short
    assert setup.match("x").node is setup.tree.root
    setup.tree.lock(long)
    assert states.locked == [long]
    assert (setup.tree.protected_tokens, setup.tree.evictable_tokens) == (8, 2)
    setup.tree.unlock(long)
    assert states.locked == []
    assert evict(setup.tree, 3).num_tokens == 4  # "x" and "d" with their states
    assert states.released == [other, long]
    assert np.array_equal(setup.tree.slots(setup.match("abcd")), setup.tree.slots(short))
    assert setup.tree.clear() is True
    assert states.released == [other, long, short]
    setup.audit()
