"""Evictions in tokens: what is wanted and what went, as the tests count."""

from __future__ import annotations

from dataclasses import dataclass

from kvstead.pages.amounts import FULL, STATE, WINDOW, Amounts


@dataclass(frozen=True)
class Gone:
    """What an eviction freed: tokens of the full side and nodes, tokens of windows and states, and those alone."""

    num_tokens: int = 0
    num_nodes: int = 0
    num_window_tokens: int = 0
    num_tombstoned: int = 0
    num_states: int = 0
    num_states_alone: int = 0

    def __add__(self, other):
        """Both together."""
        return Gone(*(a + b for a, b in zip(self.figures(), other.figures(), strict=True)))

    def figures(self):
        """All of them, in order."""
        return tuple(vars(self).values())


def in_tokens(evicted, page_size):
    """An `Evicted` with its pages counted as tokens."""
    pages, alone = evicted.pages, evicted.alone
    return Gone(
        pages[FULL] * page_size,
        evicted.num_nodes,
        pages[WINDOW] * page_size,
        alone[WINDOW] * page_size,
        pages[STATE],
        alone[STATE],
    )


def evict(tree, num_tokens=0, num_window_tokens=0, num_states=0):
    """Evict whole pages of at least so many tokens."""
    full, window = (-(-tokens // tree.page_size) for tokens in (num_tokens, num_window_tokens))
    return in_tokens(tree.evict(Amounts(full=full, window=window, state=num_states)), tree.page_size)


def evict_bytes(tree, num_bytes, token_bytes, window_token_bytes=0, state_bytes=0):
    """Evict at least so many bytes."""
    each = Amounts(full=token_bytes * tree.page_size, window=window_token_bytes * tree.page_size, state=state_bytes)
    return in_tokens(tree.evict_bytes(num_bytes, each), tree.page_size)
