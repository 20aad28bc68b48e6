import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstead.errors import InvalidSize
from kvstead.prefix import POLICIES, Node
from kvstead.prefix.queue import EvictionQueue, policy_named

EMPTY = np.empty(0, dtype=np.int64)


def some_nodes(count):
    return [Node(None, b"", EMPTY.astype(np.int32), EMPTY, created, 0) for created in range(count)]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(POLICIES)), st.data())
def test_queue_pops_the_lowest_rank_whatever_happened_meanwhile(policy, data):
    """Adding, discarding, using and popping in any order, a pop gives the waiting node of the lowest current rank."""
    rank = policy_named(policy)
    queue, waiting, nodes = EvictionQueue(rank), set(), some_nodes(8)
    clock = len(nodes)
    for _ in range(data.draw(st.integers(0, 60))):
        node = data.draw(st.sampled_from(nodes))
        action = data.draw(st.sampled_from(["add", "discard", "use", "look", "pop"]))
        if action == "add" and node not in waiting:
            queue.add(node)
            waiting.add(node)
        elif action == "discard":
            queue.discard(node)
            waiting.discard(node)
        elif action == "use":
            clock += 1
            node.access = clock
            node.hits += 1
            node.priority += data.draw(st.integers(0, 1))
            queue.refresh(node)
        elif action == "look":
            assert queue.first() == min(map(rank, waiting), default=None)
        elif action == "pop":
            popped = queue.pop()
            assert popped is (min(waiting, key=rank) if waiting else None)
            waiting.discard(popped)
        assert set(queue) == waiting
        assert len(queue) == len(waiting)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_queue_stays_as_small_as_what_waits(policy):
    """However often nodes come, go and are used, the heap holds at most twice the nodes that wait, and some slack."""
    queue, nodes = EvictionQueue(policy_named(policy)), some_nodes(50)
    clock = len(nodes)
    for round_ in range(100):
        for node in nodes[: 50 if round_ % 2 else 3]:
            clock += 1
            queue.add(node)
            node.access = clock
            queue.refresh(node)
            assert len(queue._heap) <= 2 * len(queue) + 64
        for node in nodes[5:]:
            queue.discard(node)
            assert len(queue._heap) <= 2 * len(queue) + 64
    assert len(queue) == 5
    assert nodes[0] in queue


def test_unknown_policy_lists_the_known_ones():
    """A misspelt policy is answered with the list of names."""
    with pytest.raises(InvalidSize, match=r"'lur'.*lru, lfu, fifo, mru, filo, slru, priority"):
        policy_named("lur")
