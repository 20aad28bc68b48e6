"""The prefix cache: one radix tree over token ids, built of components."""

from kvstead.prefix.component import Component, FullComponent, SlotPool
from kvstead.prefix.node import Evicted, Insertion, Match, Namespace, Node, StatePart, WindowPart
from kvstead.prefix.policies import POLICIES
from kvstead.prefix.state import StateComponent, StateSlots
from kvstead.prefix.tree import PrefixTree
from kvstead.prefix.window import WindowComponent, WindowPool

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
    "StateComponent",
    "StatePart",
    "StateSlots",
    "WindowComponent",
    "WindowPart",
    "WindowPool",
]
