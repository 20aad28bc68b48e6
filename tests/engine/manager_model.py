"""What a `KVCacheManager` should say, kept in sets, dicts and lists of plain numbers."""

from dataclasses import dataclass, field


@dataclass
class ModelRow:
    """One request: its tokens, how many are computed and shared, the page of each stretch, where its window starts."""

    space: object
    tokens: list[int]
    protected: int
    computed: int
    length: int
    pages: list[int] = field(default_factory=list)
    window_start: int = 0


def keys_over(keys, position):
    """What one token depends on besides its id."""
    over = (key for key in keys if key.start <= position and (key.end is None or position < key.end))
    return frozenset((key.start, key.value) for key in over)


class ManagerModel:
    """The same memory by brute force; `cached` maps (namespace, pairs of a whole-page prefix) to its last page.

    A pair is a token and the keys over it.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.cached: dict[tuple, int] = {}
        self.rows: dict[int, ModelRow] = {}
        self.parked: set[int] | None = None  # None: no group is open

    def prefixes(self, space, tokens, end):
        """The keys of all whole-page prefixes up to `end`."""
        step = self.page_size
        namespace, keys = space
        pairs = tuple((token, keys_over(keys, position)) for position, token in enumerate(tokens[:end]))
        return [(namespace, pairs[:stop]) for stop in range(step, end // step * step + 1, step)]

    def longest(self, space, tokens):
        """Tokens at the start that are cached."""
        found = 0
        for key in self.prefixes(space, tokens, len(tokens)):
            if key not in self.cached:
                break
            found = len(key[1])
        return found

    def usable(self, space, tokens):
        """Tokens at the start that a row can be opened on."""
        return self.longest(space, tokens)

    def open(self, number, space, tokens):
        """A row on its cached prefix."""
        cached = self.usable(space, tokens[:-1])
        pages = [self.cached[key] for key in self.prefixes(space, tokens, cached)]
        self.rows[number] = ModelRow(space, list(tokens), cached, cached, cached, pages)

    def locked(self):
        """Keys that some row reads."""
        keys = set()
        for row in self.rows.values():
            keys.update(self.prefixes(row.space, row.tokens, row.protected))
        return keys

    def own_pages(self, row):
        """Pages of a row that are not the tree's."""
        return row.pages[row.protected // self.page_size :]

    def num_free(self):
        """Pages that no row and no prefix has."""
        own = sum(len(self.own_pages(row)) for row in self.rows.values())
        return self.num_pages - len(self.cached) - own - len(self.parked or ())

    def room(self, also=()):
        """Free pages and cached ones that no row (nor `also`) needs."""
        return self.num_free() + len(set(self.cached) - self.locked() - set(also))

    def most_pages(self, wanted):
        """How many of so many pages could be had."""
        return min(wanted, self.room())

    def pages_for(self, num_tokens):
        """Pages of so many tokens."""
        return -(-num_tokens // self.page_size)

    def give(self, pages):
        """Free pages: at once, or parked."""
        if self.parked is not None:
            self.parked.update(pages)

    def begin_group(self):
        """Frees are parked from now on."""
        self.parked = set()

    def end_group(self):
        """What was parked is free."""
        self.parked = None

    def commit(self, row, end, token):
        """More is computed, and the token behind all known ones is known."""
        row.computed = end
        if end == len(row.tokens):
            row.tokens.append(token)

    def clear(self):
        """Drop all prefixes."""
        self.cached.clear()

    def cache(self, row):
        """Share a row's computed whole pages."""
        end = row.computed // self.page_size * self.page_size
        for i, key in enumerate(self.prefixes(row.space, row.tokens, end)):
            if key not in self.cached:
                self.cached[key] = row.pages[i]
            elif row.pages[i] != self.cached[key]:
                self.give([row.pages[i]])
                row.pages[i] = self.cached[key]
        row.protected = max(row.protected, end)

    def end(self, number):
        """Drop a row."""
        row = self.rows.pop(number)
        self.give(self.own_pages(row))
