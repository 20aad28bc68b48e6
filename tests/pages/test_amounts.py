"""Amounts by side against a dictionary of every side."""

from hypothesis import given
from hypothesis import strategies as st

from kvstead.pages.amounts import Amounts

SIDES = ("full", "window", "state", "cross")
AMOUNTS = st.dictionaries(st.sampled_from(SIDES), st.integers(0, 9)).map(Amounts)


@given(AMOUNTS, AMOUNTS, st.integers(0, 5))
def test_amounts_count_every_side_for_itself(one, other, count):
    """Sums, multiples and what is missing are those of each side; a side that is not named has 0."""
    total, product, missing = one + other, one.times(count), one.beyond(other)
    for side in SIDES:
        assert total[side] == one.get(side, 0) + other.get(side, 0)
        assert product[side] == count * one[side]
        assert missing[side] == max(0, one[side] - other[side])
    assert bool(missing) == any(one[side] > other[side] for side in SIDES)
    assert one.weighed(other) == sum(one[side] * other[side] for side in SIDES)


@given(AMOUNTS, AMOUNTS)
def test_amounts_are_left_as_they_are(one, other):
    """An operation makes a new amount, and looking at a side that is not named adds none."""
    before = dict(one), dict(other)
    assert one["elsewhere"] == 0
    assert (one + other, one.times(2), one.beyond(other), one.weighed(other)) is not None
    assert (dict(one), dict(other)) == before
