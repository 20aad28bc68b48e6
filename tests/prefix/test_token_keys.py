import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefix_model import spaces
from tree_setup import TreeSetup

from kvstead.errors import RequestError
from kvstead.prefix import Adapter, Namespace, TokenKey
from kvstead.prefix.token_keys import child_key, first_difference, key_spans, spans_between

PLAIN = spaces([Namespace()])
TOKENS = np.zeros(200, dtype=np.int32)


@given(one=PLAIN, other=PLAIN, start=st.integers(0, 70), size=st.integers(0, 130))
def test_keys_differ_first_where_two_tokens_have_other_keys(one, other, start, size):
    """The first difference of two sets of keys is the first position whose keys by definition differ."""
    ours, theirs = one.pairs(TOKENS), other.pairs(TOKENS)
    expected = next((at for at in range(start, start + size) if ours[at] != theirs[at]), start + size)
    assert first_difference(key_spans(one.keys), key_spans(other.keys), start, start + size) == expected


@given(one=PLAIN, other=PLAIN, start=st.integers(0, 70), page_size=st.integers(1, 64))
def test_pages_have_one_child_key_exactly_when_their_keys_are_equal(one, other, start, page_size):
    """Two pages of equal tokens hang under one key if and only if every token has the same keys."""
    page, stop = TOKENS[:page_size], start + page_size
    keys = [child_key(page, start, Namespace(), key_spans(space.keys)) for space in (one, other)]
    assert (keys[0] == keys[1]) is (one.pairs(TOKENS)[start:stop] == other.pairs(TOKENS)[start:stop])


@given(space=PLAIN, start=st.integers(0, 70), size=st.integers(1, 130))
def test_keys_between_two_positions_say_the_same_of_the_tokens_there(space, start, size):
    """What is cut out of keys gives every token of the stretch the keys that it had, and is as it was if cut again."""
    spans = key_spans(space.keys)
    part = spans_between(spans, start, start + size)
    assert first_difference(part, spans, start, start + size) == start + size
    assert spans_between(part, start, start + size) == part


def test_an_image_separates_its_pages_and_those_behind_it_only():
    """Requests with different images share the pages in front of them, and with the same image all pages."""
    tree = TreeSetup(16, page_size=4).tree
    tokens = np.arange(16)
    tree.insert(tokens, 4 + np.arange(16), keys=[TokenKey(5, 9, "one")])
    assert tree.match(tokens, keys=[TokenKey(5, 9, "one")]).num_tokens == 16
    assert tree.match(tokens, keys=[TokenKey(5, 9, "two")]).num_tokens == 4
    assert tree.match(tokens).num_tokens == 4
    assert tree.match(tokens, keys=[TokenKey(9, 12, "one")]).num_tokens == 4
    tree.audit()


def test_the_place_of_a_token_in_its_image_counts():
    """A token of an image matches only one at the same distance from the image's start."""
    tree = TreeSetup(16, page_size=4).tree
    tree.insert(np.zeros(8, dtype=np.int64), 4 + np.arange(8), keys=[TokenKey(0, 8, "image")])
    halves = [TokenKey(0, 4, "image"), TokenKey(4, 8, "image")]
    assert tree.match(np.zeros(8, dtype=np.int64), keys=halves).num_tokens == 4


def test_a_key_without_an_end_binds_every_page_and_no_length():
    """A salt or an adapter over all tokens is shared by prompts of any length, and by nobody else."""
    tree = TreeSetup(16, page_size=4).tree
    tokens = np.arange(16)
    adapter = TokenKey(0, None, Adapter("sql", "1"))
    tree.insert(tokens[:8], 4 + np.arange(8), keys=[adapter])
    assert tree.match(tokens, keys=[adapter]).num_tokens == 8
    assert tree.match(tokens, keys=[TokenKey(0, None, Adapter("sql", "2"))]).num_tokens == 0
    assert tree.match(tokens).num_tokens == 0


def test_an_adapter_from_a_position_on_shares_what_lies_before():
    """Pages that the base model has computed serve an adapter that begins behind them."""
    tree = TreeSetup(16, page_size=4).tree
    tokens = np.arange(16)
    tree.insert(tokens, 4 + np.arange(16))
    assert tree.match(tokens, keys=[TokenKey(8, None, Adapter("sql", "1"))]).num_tokens == 8


@pytest.mark.parametrize("ends", [(3, 3), (-1, 4), (5, 2), (0, 1 << 70), (1.5, 2), (0, "8")])
def test_a_range_without_tokens_is_refused(ends):
    """A key must cover at least one position, in whole numbers."""
    with pytest.raises(RequestError, match="TokenKey"):
        TokenKey(*ends, "x")


def test_keys_that_cannot_be_compared_are_refused_before_anything_changes():
    """An unhashable value and a key that is none raise, and the tree is as it was."""
    with pytest.raises(RequestError, match="cannot be compared"):
        TokenKey(0, 4, ["x"])
    tree = TreeSetup(16, page_size=4).tree
    with pytest.raises(RequestError, match="no key of tokens"):
        tree.insert(np.arange(4), 4 + np.arange(4), keys=[(0, 4, "x")])
    assert tree.evictable_tokens == 0
