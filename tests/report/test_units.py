import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import InvalidSize
from kvstead.report.units import (
    format_bytes,
    format_clock,
    format_count,
    format_seconds,
    format_share,
    parse_bytes,
    parse_seconds,
)


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


@pytest.mark.parametrize(
    ("text", "seconds"), [("2s", 2.0), ("50ms", 0.05), ("1.5 min", 90.0), ("1H", 3600.0), ("7us", 7e-6)]
)
def test_durations_are_read(text, seconds):
    """A number with a unit of time."""
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "2", "s", "-1s", "0s", "2 days", "1e3s"])
def test_text_that_is_no_duration_is_refused(text):
    """Anything else is refused with an example."""
    with pytest.raises(InvalidSize, match="is no duration"):
        parse_seconds(text)


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


@given(st.integers(1, 2**60))
def test_formatted_bytes_read_back(num_bytes):
    """What is written reads back as the same size to four digits."""
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=1e-3)


def test_bytes_never_read_1024_of_a_unit():
    """Just below a unit's end is written in the next unit, not as 1024 of this one or as 1.024e+03."""
    texts = [format_bytes(size) for size in (0, 12, 1023, 1024, 1024**2 - 1, 40 * 1024**3, 1536, 2**70)]
    assert texts == ["0 B", "12 B", "1,023 B", "1 KiB", "1 MiB", "40 GiB", "1.5 KiB", "1,048,576 PiB"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (0.0000123, "12.3 us"),
        (0.01234, "12.3 ms"),
        (0.99996, "1 s"),
        (1.234, "1.23 s"),
        (123.4, "123 s"),
        (1234.5, "1,234 s"),
        (98765.0, "98,765 s"),
    ],
)
def test_seconds_have_three_digits_and_a_fitting_unit(seconds, text):
    """Durations from microseconds to days stay readable; nothing measured is a dash."""
    assert format_seconds(seconds) == text


def test_clocks_counts_and_shares():
    """A clock reads hours, minutes and seconds; counts have separators; a share of nothing is a dash."""
    assert [format_clock(seconds) for seconds in (0, 59.9, 3723, 360_000)] == [
        "0:00:00",
        "0:00:59",
        "1:02:03",
        "100:00:00",
    ]
    assert format_count(1234567) == "1,234,567"
    assert format_share(1, 8) == "12.50 %"
    assert format_share(0, 0) == "-"
