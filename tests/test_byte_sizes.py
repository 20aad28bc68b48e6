"""Sizes in bytes are read as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.byte_sizes import parse_bytes
from kvstead.errors import InvalidSize


@given(st.integers(1, 2**60))
def test_plain_numbers_are_bytes(num_bytes):
    """A number without a unit is itself, also with separators."""
    assert parse_bytes(str(num_bytes)) == num_bytes
    assert parse_bytes(f"{num_bytes:,}") == parse_bytes(f"{num_bytes:_}B") == num_bytes


@given(st.integers(1, 999), st.sampled_from(["K", "M", "G", "T"]), st.sampled_from(["lower", "upper", "title"]))
def test_units_are_powers_of_1024_or_1000(count, letter, case):
    """`KiB` counts in 1024s and `KB` in 1000s, in any case and with or without a space."""
    power = "KMGT".index(letter) + 1
    assert parse_bytes(getattr(f"{count}{letter}iB", case)()) == count * 1024**power
    assert parse_bytes(getattr(f"{count} {letter}B", case)()) == count * 1000**power


def test_fractions_are_exact():
    """A decimal fraction is not rounded through a float, and a fraction of a byte is dropped."""
    assert parse_bytes("0.1GB") == 100_000_000
    assert parse_bytes("1.5KiB") == 1536
    assert parse_bytes("1.0001KiB") == 1024


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("40G", 40 * 10**9), ("40Gi", 40 * 2**30), ("4e9", 4 * 10**9), ("1.5e3", 1500), ("2k", 2000)],
)
def test_common_spellings_are_understood(text, num_bytes):
    """A unit without its B, and a number with an exponent."""
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "40X", "40 Gibs", "-1GiB", "4e999", "1.GiB", "nan", "٤GiB", "4GiB 2"])
def test_text_that_is_not_a_size_is_refused_with_an_example(text):
    """Anything else is refused; the message quotes it and shows how to write a size."""
    with pytest.raises(InvalidSize) as refused:
        parse_bytes(text)
    assert repr(text) in str(refused.value)
    assert "40GiB" in str(refused.value)


@pytest.mark.parametrize("text", ["0", "0GiB", "0.4B", "1025PiB"])
def test_sizes_out_of_range_are_refused(text):
    """Nothing below a byte and nothing above 1024 PiB is a memory."""
    with pytest.raises(InvalidSize, match="1 byte to 1024 PiB"):
        parse_bytes(text)
