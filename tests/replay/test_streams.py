import gzip
import io
import sys
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstead.errors import TraceError
from kvstead.replay.streams import LONGEST_LINE, read_lines, source_name

TEXT = "first\nsecond\n\nlast"
LINES = ["first", "second", "", "last"]


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


PACKERS = {"plain": bytes, "gzip": gzip.compress, "zstd": zstd}


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
@pytest.mark.parametrize("name", ["trace.txt", "trace.gz", "trace"])
def test_compression_is_recognised_by_content(tmp_path, pack, name):
    """Plain, gzip and zstandard files give the same lines, whatever they are called."""
    path = tmp_path / name
    path.write_bytes(pack(TEXT.encode()))
    assert list(read_lines(path)) == LINES


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_standard_input_is_read(monkeypatch, pack):
    """A dash reads standard input, compressed or not."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pack(TEXT.encode()))))
    assert list(read_lines("-")) == LINES
    assert source_name("-") == "standard input"


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_members_follow_each_other(tmp_path, pack):
    """Compressed files that were put one behind the other are read to the end, however large they are."""
    path = tmp_path / "trace"
    large = "\n".join(str(number) * 7 for number in range(60_000)) + "\n"
    path.write_bytes(pack(b"begin\n") + pack(large.encode()) + pack(b"end"))
    assert list(read_lines(path)) == ["begin", *large.splitlines(), "end"]


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
@settings(deadline=None)
@given(data=st.data())
def test_a_file_cut_short_is_refused(tmp_path_factory, pack, data):
    """A compressed file that ends too early is an error, not fewer lines."""
    packed = pack(TEXT.encode() * 9)
    path = tmp_path_factory.mktemp("cut") / "trace"
    path.write_bytes(packed[: data.draw(st.integers(5, len(packed) - 1))])
    with pytest.raises(TraceError, match="is damaged"):
        list(read_lines(path))


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_damaged_data_is_refused(tmp_path, pack):
    """Garbage behind a compressed file's magic bytes is an error that names the file."""
    path = tmp_path / "broken"
    path.write_bytes(pack(TEXT.encode())[:6] + b"\xff" * 40)
    with pytest.raises(TraceError, match="broken: compressed data is damaged"):
        list(read_lines(path))


def test_line_ends_and_marks_of_windows_are_dropped(tmp_path):
    """A byte order mark and carriage returns before line feeds are not part of the lines."""
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xef\xbb\xbfhead\r\nrow\r\n")
    assert list(read_lines(path)) == ["head", "row"]


def test_other_encodings_are_refused(tmp_path):
    """Bytes that are no UTF-8 are an error with file and line."""
    path = tmp_path / "trace.csv"
    path.write_bytes(b"good\nbad \xff\n")
    with pytest.raises(TraceError, match=r"trace.csv, line 2: expected UTF-8 text, found byte 0xff"):
        list(read_lines(path))


def test_files_that_cannot_be_opened_are_named(tmp_path):
    """A missing file and a folder are errors that name them."""
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(TraceError, match=f"{path} cannot be read"):
            list(read_lines(path))


@settings(deadline=None)
@given(chunks=st.lists(st.sampled_from(["a", "\n", "bc", "\n\n"]), max_size=12))
def test_lines_are_those_of_the_text(tmp_path_factory, chunks):
    """Lines are what stands between line feeds, with or without a last one."""
    text = "".join(chunks)
    path = tmp_path_factory.mktemp("lines") / "trace"
    path.write_text(text)
    assert list(read_lines(path)) == text.splitlines()


class Endless(io.RawIOBase):
    """Bytes without a line feed and without an end."""

    def readinto(self, buffer):
        """Fill the buffer."""
        buffer[:] = b"x" * len(buffer)
        return len(buffer)

    def readable(self):
        """Yes."""
        return True


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_line_without_an_end_is_refused(tmp_path, pack):
    """A line of more than 16 MiB is no line of a trace, packed or not; those before it are read."""
    path = tmp_path / "file"
    path.write_bytes(pack(b"one\n" + b"\0" * (40 << 20)))
    lines = read_lines(path)
    assert next(lines) == "one"
    with pytest.raises(TraceError, match=r"file, line 2 has more than 16 MiB without a line feed\. A trace has"):
        next(lines)


def test_endless_input_is_refused(monkeypatch):
    """What never ends is read as far as the longest line."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(Endless())))
    with pytest.raises(TraceError, match="standard input, line 1 has more than"):
        next(read_lines("-"))


def test_longest_line_is_read(tmp_path):
    """Lines up to the limit are read whole, whatever blocks they come in."""
    long = "y" * LONGEST_LINE
    (tmp_path / "file").write_text(f"a\n{long}\n\n{long}")
    assert list(read_lines(tmp_path / "file")) == ["a", long, "", long]
