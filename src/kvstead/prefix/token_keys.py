"""What tokens depend on besides their ids: the image behind placeholders, the adapter that computes them.

    tokens  | t t t t | i i i i | i i t t | t t t t |        keys=[TokenKey(4, 10, "image 1f3a")]
    page         0         1         2         3             pages 1 and 2 need that image; 3 follows them in the tree

A page matches only if its tokens are equal and the same keys lie over each of them. Keys are compared as they are, like
tokens; nothing is hashed into an id.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kvstead.errors import RequestError
from kvstead.kernels.arrays import whole
from kvstead.kernels.tokens import TokenArray


@dataclass(frozen=True, slots=True)
class Namespace:
    """What must be equal, besides the tokens, for two requests to share a prefix.

    lora: the adapter's name. salt: a tenant's secret. images: hashes of the images behind placeholder tokens, in
    order. Compared field by field, so no choice of strings can make two namespaces meet.
    """

    lora: str = ""
    salt: str = ""
    images: tuple[str, ...] = ()


# Keys of some tokens: where each ends, by its start and value. The start tells apart two tokens of one image.
KeySpans: TypeAlias = Mapping[tuple[int, Hashable], int]

NO_KEYS: KeySpans = {}

PLAIN = Namespace()

# A child is found by the bytes of its first page. Below the root the namespace stands in front of them; the keys of the
# page, if it has any, stand behind them.
PageKeys: TypeAlias = frozenset[tuple[tuple[int, Hashable], int]]
ChildKey: TypeAlias = bytes | tuple[Namespace, bytes] | tuple[Namespace, bytes, PageKeys]


@dataclass(frozen=True, slots=True)
class Adapter:
    """A value for a `TokenKey`: the adapter that computes the tokens. A new version shares nothing with an old one."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class TokenKey:
    """Binds the tokens from position `start` to before `end` to `value`, as placeholders to the image behind them.

    end: None binds all tokens from `start` on, generated ones too. value: a text such as an image's hash, an `Adapter`,
    or anything hashable; two are the same if they are equal. Keys may overlap. Two tokens match only if the keys over
    both have the same starts and values. Raises `RequestError` for a range without tokens and for an unhashable value.
    """

    start: int
    end: int | None
    value: Hashable

    def __post_init__(self) -> None:
        try:
            ends = whole(self.start, "start"), sys.maxsize if self.end is None else whole(self.end, "end")
            hash(self.value)
        except TypeError as error:
            raise RequestError(f"{self} cannot be compared: {error}") from None
        if not 0 <= ends[0] < ends[1] <= sys.maxsize:
            raise RequestError(f"{self} covers no tokens. Use 0 <= start < end, or None as the end.")


Keys: TypeAlias = Sequence[TokenKey]


def key_spans(keys: Iterable[TokenKey]) -> KeySpans:
    """Keys in the form in which they are compared. Raises `RequestError` for anything but `TokenKey`s."""
    spans: dict[tuple[int, Hashable], int] = {}
    for key in keys:
        if not isinstance(key, TokenKey):
            raise RequestError(f"{key!r} is no key of tokens. Use kvstead.TokenKey(start, end, value).")
        name = int(key.start), key.value
        spans[name] = max(spans.get(name, 0), sys.maxsize if key.end is None else int(key.end))
    return spans or NO_KEYS


def spans_between(spans: KeySpans, start: int, end: int) -> KeySpans:
    """The keys over the tokens from `start` to before `end`, ending there at the latest. O(keys)."""
    return {name: min(stop, end) for name, stop in spans.items() if name[0] < end and stop > start} or NO_KEYS


def first_difference(ours: KeySpans, theirs: KeySpans, start: int, end: int) -> int:
    """The first position of `start` .. `end` at which the keys differ, or `end`. O(keys)."""
    for name in ours.keys() | theirs.keys():
        low = max(name[0], start)
        one, other = (min(max(spans.get(name, low), low), end) for spans in (ours, theirs))
        if one != other:
            end = min(one, other)
    return end


def child_key(page: TokenArray, start: int, namespace: Namespace, spans: KeySpans) -> ChildKey:
    """The key of the node whose first page has these tokens, from position `start` on; the namespace counts at 0."""
    if spans and (over := spans_between(spans, start, start + page.size)):
        return PLAIN if start else namespace, page.tobytes(), frozenset(over.items())
    return page.tobytes() if start else (namespace, page.tobytes())
