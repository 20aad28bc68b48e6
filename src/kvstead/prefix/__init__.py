"""The prefix cache: one radix tree over token ids, built of components."""

from kvstead.pages.amounts import Evicted
from kvstead.prefix.component import Component
from kvstead.prefix.full import FullComponent
from kvstead.prefix.node import Insertion, Match, Node, StatePart, WindowPart
from kvstead.prefix.queue import POLICIES
from kvstead.prefix.slot_pools import SlotPool, StateSlots, WindowPool, window_pool
from kvstead.prefix.state import StateComponent
from kvstead.prefix.token_keys import PLAIN, Adapter, Keys, Namespace, TokenKey, key_spans
from kvstead.prefix.tree import PrefixTree
from kvstead.prefix.window import WindowComponent

__all__ = [
    "PLAIN",
    "POLICIES",
    "Adapter",
    "Component",
    "Evicted",
    "FullComponent",
    "Insertion",
    "Keys",
    "Match",
    "Namespace",
    "Node",
    "PrefixTree",
    "SlotPool",
    "StateComponent",
    "StatePart",
    "StateSlots",
    "TokenKey",
    "WindowComponent",
    "WindowPart",
    "WindowPool",
    "key_spans",
    "window_pool",
]
