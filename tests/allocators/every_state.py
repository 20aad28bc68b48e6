"""Walks through all states of a small pool: what can be reached, and what every call does there.

A state is known by the path of operations, (name, arguments), that leads to it. `reach(path)` makes a pair of an
allocator and its model there; `key(pair)` tells states apart.
"""


def reachable(reach, operations, key, depth=None):
    """The shortest path to every state, or to those within `depth` operations, by state.

    operations: those that lead from a pair's state to all others.
    """
    paths = {key(reach([])): []}
    frontier = [[]]
    length = 0
    while frontier and length != depth:
        found = []
        for path in frontier:
            for step in list(operations(reach(path))):
                pair = reach(path)
                perform(pair, step)
                if key(pair) not in paths:
                    paths[key(pair)] = [*path, step]
                    found.append(paths[key(pair)])
        frontier, length = found, length + 1
    return paths


def perform_everywhere(reach, paths, everything):
    """In the states that `paths` lead to, perform all that `everything(pair)` lists; pairs hold the calls to models."""
    for path in paths:
        pair = reach(path)
        for step in list(everything(pair)):
            before = pair.books
            perform(pair, step)
            if pair.books != before or step[0] == "clear":
                pair = reach(path)


def perform(pair, step):
    """One operation."""
    name, *args = step
    getattr(pair, name)(*args)
