import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.byte_sizes import parse_bytes
from kvstead.errors import InvalidSize
from kvstead.report.units import (
    format_bytes,
    format_clock,
    format_count,
    format_seconds,
    format_share,
    parse_seconds,
)


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
