"""Bytes of a trace as lines of text: plain, gzip or zstandard, recognised by its first bytes."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

from kvstead.errors import TraceError

STANDARD_INPUT = "-"
_CHUNK_BYTES = 1 << 16
_PACKED_BYTES = 1 << 10  # compressed bytes taken at once: however well they are packed, they make some 32 MiB at most
LONGEST_LINE = 16 << 20  # bytes


class _Decompressor(Protocol):
    """The common methods of zlib's and zstandard's decompressors. One object reads one member or frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


_BY_MAGIC: tuple[tuple[bytes, Callable[[], _Decompressor]], ...] = (
    (b"\x1f\x8b", lambda: zlib.decompressobj(wbits=31)),  # RFC 1952
    (b"\x28\xb5\x2f\xfd", lambda: zstandard.ZstdDecompressor().decompressobj()),  # RFC 8878
)


def source_name(path: str | Path) -> str:
    """The source's name in messages: the path as given, or `standard input`."""
    return "standard input" if str(path) == STANDARD_INPUT else str(path)


def read_lines(path: str | Path) -> Iterator[str]:
    """Lines of a file, or of standard input for `-`, without their line ends; a byte order mark is dropped.

    Raises `TraceError` when the source cannot be read, is damaged or cut short, is not UTF-8, or has a line longer than
    `LONGEST_LINE`, which no trace has.
    """
    name = source_name(path)
    number = 0
    try:
        with nullcontext(sys.stdin.buffer) if str(path) == STANDARD_INPUT else Path(path).open("rb") as stream:
            for number, line in enumerate(_split(_decompressed(stream)), start=1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r")
    except _LineTooLong:
        raise TraceError(
            f"{name}, line {number + 1} has more than {LONGEST_LINE >> 20} MiB without a line feed. A trace has one "
            "request a line: is this another kind of file?"
        ) from None
    except UnicodeDecodeError as error:
        raise TraceError(
            f"{name}, line {number}: expected UTF-8 text, found byte {error.object[error.start]:#04x}. "
            "Convert the file to UTF-8; of compressed files gzip and zstandard are read."
        ) from error
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise TraceError(f"{name}: compressed data is damaged ({error}). Fetch the file again.") from error
    except OSError as error:
        raise TraceError(f"{name} cannot be read ({error.strerror}). Check the path and its permissions.") from error


def _decompressed(stream: BinaryIO) -> Iterator[bytes]:
    chunk = stream.read(_CHUNK_BYTES)  # a buffered read: shorter than asked for only at the end
    for magic, decompressor in _BY_MAGIC:
        if chunk.startswith(magic):
            yield from _members(chunk, stream, decompressor)
            return
    while chunk:
        yield chunk
        chunk = stream.read(_CHUNK_BYTES)


def _members(chunk: bytes, stream: BinaryIO, decompressor: Callable[[], _Decompressor]) -> Iterator[bytes]:
    """Decompress one member after the other; `EOFError` when the last one is cut short."""
    member = decompressor()
    while chunk:
        if member.eof:
            member = decompressor()
        packed, chunk = chunk[:_PACKED_BYTES], chunk[_PACKED_BYTES:]
        yield member.decompress(packed)
        chunk = (member.unused_data if member.eof else b"") + chunk
        chunk = chunk or stream.read(_CHUNK_BYTES)
    if not member.eof:
        raise EOFError("it ends too early")


class _LineTooLong(Exception):
    """A line has more than `LONGEST_LINE` bytes."""


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Bytes cut at line feeds. The last line needs none."""
    parts: list[bytes] = []  # of the line that is not at its end
    length = 0
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        parts.append(first)
        length += len(first)
        if length > LONGEST_LINE:
            raise _LineTooLong
        if others:
            yield b"".join(parts)
            yield from others[:-1]
            parts, length = [others[-1]], len(others[-1])
    if length:
        yield b"".join(parts)
