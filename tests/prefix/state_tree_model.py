"""The slow, obviously right prefix cache with states, and a window or none: brute force for every question."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from window_tree_model import Usage, WindowTreeModel, first_needed

from eviction_in_tokens import Gone

FULL, STATE, WINDOW = range(3)


@dataclass
class State:
    """A state at the end of a key."""

    slot: int
    usage: Usage
    holds: int = 0
    is_followed: bool = False
    has_branched: bool = False


@dataclass
class StateTreeModel(WindowTreeModel):
    """As the model with a window, and the states by the key that they stand for.

    span: infinite without a window; then no page ever has one.
    """

    states: dict[tuple, State] = field(default_factory=dict)

    def needed_from(self, length):
        """The first position that a sequence of `length` tokens needs the window side of."""
        return length if self.span == inf else first_needed(length, self.span, is_chunked=self.is_chunked)

    def restorable(self, chain):
        """The longest length that ends at a state and that every needed position is live for."""
        live = [self.pages[key].is_live for key in chain for _ in range(self.page_size)]
        lengths = [(i + 1) * self.page_size for i, key in enumerate(chain) if key in self.states]
        return max((n for n in lengths if all(live[self.needed_from(n) : n])), default=0)

    def match(self, namespace, tokens):
        """(usable, cached) tokens; the one state that it ends at is used."""
        length, num_found = super().match(namespace, tokens)
        if length:
            key = self.prefixes(namespace, tokens)[length // self.page_size - 1]
            self.states[key].has_branched |= self.states[key].is_followed or self.num_next(key) > 0
            self.states[key].usage.use(self.clock, 1, self.pages[key].full.priority)
        return length, num_found

    def put_state(self, key, slot):
        """Whether there was none; else that is used."""
        self.clock += 1
        priority = self.pages[key].full.priority
        if key in self.states:
            self.states[key].usage.use(self.clock, 1, priority)
            return False
        self.states[key] = State(slot, Usage(self.clock, self.clock, priority))
        return True

    def num_next(self, key):
        """States that longer sequences have, with none in between."""
        longer = [other for other in self.states if len(other) > len(key) and other[: len(key)] == key]
        return sum(not any(other[: len(end)] == end for end in longer if end != other) for other in longer)

    def is_superseded(self, key):
        """Whether one longer sequence, and no request since, went on from this state."""
        state = self.states[key]
        return max(self.num_next(key), state.is_followed) == 1 and not state.has_branched

    def supersede(self, key):
        """A later state is to come below: the last one up to there may go for it."""
        ends = [end for end in self.states if key[: len(end)] == end]
        if ends:
            self.states[max(ends, key=len)].is_followed = True

    def is_locked(self, key):
        """Whether a locked prefix goes through `key`, or one with a held state."""
        held = [end for end, state in self.states.items() if state.holds]
        return super().is_locked(key) or any(end[: len(key)] == key for end in held)

    def join(self, key):
        """Not where a state is."""
        if key not in self.states:
            super().join(key)

    def drop(self, node):
        """A node leaves with its state."""
        super().drop(node)
        self.states.pop(node[-1], None)

    def leaf_rank(self, node):
        """A leaf without a state goes first."""
        return (node[-1] in self.states, *super().leaf_rank(node))

    def state_rank(self, key):
        """Lower goes first."""
        state = self.states[key]
        return (not self.is_superseded(key), *state.usage.rank(self.policy))

    def free_states(self):
        """The keys of states that no lock holds."""
        return [key for key, state in self.states.items() if not state.holds]

    def evict(self, num_tokens, num_window_tokens, num_states=0):
        """What goes: leaves, then windows alone, then states alone."""
        before = len(self.states)
        gone = super().evict(num_tokens, num_window_tokens if self.span < inf else 0)
        with_nodes = before - len(self.states)
        alone = sorted(self.free_states(), key=self.state_rank)[: max(0, num_states - with_nodes)]
        self.take_states(alone)
        return gone + Gone(0, 0, num_states=with_nodes + len(alone), num_states_alone=len(alone))

    def take_states(self, keys):
        """States go alone; what they kept apart becomes one."""
        for key in keys:
            del self.states[key]
        for key in keys:
            self.join(key)

    def evict_bytes(self, num_bytes, token_bytes, window_token_bytes, state_bytes):
        """Victim after victim, each the lowest of all that could go, until there are bytes enough."""
        gone, freed, dead, lost = Gone(), 0, [], []
        while freed < num_bytes and (victims := self.victims(window_token_bytes, state_bytes)):
            _, side, what = min(victims, key=lambda victim: victim[:2])
            if side == FULL:
                one = self.evict(1, 0)
                assert one.num_nodes == 1
            elif side == STATE:
                self.take_states([what])
                lost.append(what)
                one = Gone(0, 0, num_states=1)
            else:
                died = self.bury(what, -(-(num_bytes - freed) // window_token_bytes))
                self.join_tombstones(died)
                dead += died
                one = Gone(0, 0, len(died) * self.page_size)
            gone += one
            freed = gone.num_tokens * token_bytes
            freed += gone.num_window_tokens * window_token_bytes + gone.num_states * state_bytes
        stay = [sum(key in self.pages for key in keys) for keys in (dead, lost)]
        return replace(gone, num_tombstoned=stay[0] * self.page_size, num_states_alone=stay[1])

    def victims(self, window_token_bytes, state_bytes):
        """All that could go next: (rank, side, what), ranks of a node's end last."""
        found = [((*self.leaf_rank(node), 0), FULL, node) for node in self.leaves()]
        if state_bytes:
            found += [((*self.state_rank(key), 0), STATE, key) for key in self.free_states()]
        if window_token_bytes and self.span < inf:
            # The rank of a window ends with the length of its node's key, which is more than 0.
            found += [(self.window_rank(node), WINDOW, node) for node in self.waiting_windows()]
        return found
