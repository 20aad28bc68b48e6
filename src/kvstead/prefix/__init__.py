"""The prefix cache: one radix tree over token ids, built of components."""

from kvstead.prefix.component import Component, FullComponent, SlotPool
from kvstead.prefix.node import Evicted, Insertion, Match, Namespace, Node
from kvstead.prefix.policies import POLICIES
from kvstead.prefix.tree import PrefixTree

__all__ = [
    "POLICIES",
    "Component",
    "Evicted",
    "FullComponent",
    "Insertion",
    "Match",
    "Namespace",
    "Node",
    "PrefixTree",
    "SlotPool",
]
