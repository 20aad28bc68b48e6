"""What goes next, over all that a tree holds.

    side      what goes                     gives back                          of no use to anybody, so first
    full      a leaf                        its slots, its window, its state    in a tree with states: without one
    state     a state, the node stays       a state                             superseded, and never gone on from
    window    a window, the node stays      window slots                        never needed

Sides that share no bytes are asked one by one (`evict`). Where they share bytes, the next victim is the lowest rank
over all sides (`evict_bytes`): what is of no use first, then by the policy; on a tie in the order of this table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

from kvstead.errors import InvalidSize, KVSteadError, OpenGroup
from kvstead.prefix.component import FullComponent, SlotPool
from kvstead.prefix.node import Evicted, Node
from kvstead.prefix.state import StateComponent
from kvstead.prefix.window import WindowComponent


class Eviction:
    """The order in which one tree gives things back.

    pool: the allocator; its free group must not be open, since nothing would become available before its end. remove:
    takes nodes out of the tree with all they hold; raises before anything has changed. join: unites a node with its
    only child if nobody needs the boundary.
    """

    def __init__(
        self,
        pool: SlotPool,
        full: FullComponent,
        window: WindowComponent | None,
        states: StateComponent | None,
        *,
        remove: Callable[[Sequence[Node]], None],
        join: Callable[[Node], None],
    ) -> None:
        self._pool = pool
        self._full = full
        self._window = window
        self._states = states
        self._remove = remove
        self._join = join

    def evict(self, num_tokens: int, num_window_tokens: int, num_states: int) -> Evicted:
        """Nodes for `num_tokens`; what that leaves short on the other sides goes alone."""
        if min(num_tokens, num_window_tokens, num_states) < 0:
            raise InvalidSize(
                f"cannot evict {num_tokens} and {num_window_tokens} tokens, {num_states} states. Ask for 0 or more."
            )
        self._require_no_group()
        gone = self._evict_nodes(num_tokens)
        if self._window is not None and num_window_tokens > gone.num_window_tokens:
            gone += _tombstoned(self._window.evict(num_window_tokens - gone.num_window_tokens))
        if self._states is not None and num_states > gone.num_states:
            gone += self._evict_states(self._states, num_states - gone.num_states)
        return gone

    def evict_bytes(self, num_bytes: int, token_bytes: int, window_token_bytes: int, state_bytes: int) -> Evicted:
        """Victim after victim, until they make up `num_bytes`. A side of no bytes gives nothing alone."""
        if min(num_bytes, token_bytes - 1, window_token_bytes, state_bytes) < 0:
            raise InvalidSize(
                f"cannot evict {num_bytes} bytes where a token has {token_bytes} and {window_token_bytes}, a state "
                f"{state_bytes}. Ask for 0 or more, of tokens that have bytes."
            )
        self._require_no_group()
        window = self._window if window_token_bytes else None
        states = self._states if state_bytes else None
        steps: list[Evicted] = []
        while num_bytes > 0:
            leaf = self._full.first()
            state = states.first() if states is not None else None
            node = window.first() if window is not None else None
            if leaf is not None and (state is None or leaf <= state) and (node is None or leaf <= node):
                step = self._evict_nodes(1)
            elif states is not None and state is not None and (node is None or state <= node):
                step = self._evict_states(states, 1)
            elif window is not None and node is not None:
                step = _tombstoned(window.evict_next(-(-num_bytes // window_token_bytes)))
            else:
                break
            num_bytes -= step.num_tokens * token_bytes + step.num_window_tokens * window_token_bytes
            num_bytes -= step.num_states * state_bytes
            steps.append(step)
        return reduce(add, steps) if steps else Evicted(0, 0)

    def _require_no_group(self) -> None:
        if self._pool.free_group is not None:
            raise OpenGroup("evicting inside a free group would make nothing available. End the group first.")

    def _evict_nodes(self, num_tokens: int) -> Evicted:
        """Leaves, and parents whose last child has gone."""
        victims = self._full.choose(num_tokens)
        num_gone = num_window = num_states = 0
        for node in victims:
            num_gone += node.tokens.size
            num_window += node.tokens.size if node.window.is_live else 0
            num_states += node.state is not None
        try:
            self._remove(victims)
        except KVSteadError:
            self._full.put_back(victims)
            raise
        return Evicted(num_gone, len(victims), num_window, 0, num_states)

    def _evict_states(self, states: StateComponent, num_states: int) -> Evicted:
        """States alone. A leaf without its own waits in front of others; another node may not be needed any more."""
        losers = states.evict(num_states)
        for node in losers:
            self._full.use(node, 0)
            self._join(node)
        return Evicted(0, 0, num_states=len(losers), num_states_alone=len(losers))


def _tombstoned(num_tokens: int) -> Evicted:
    return Evicted(0, 0, num_tokens, num_tokens)
