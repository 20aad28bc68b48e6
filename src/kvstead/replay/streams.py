"""Bytes of a trace as lines of text: plain, gzip or zstandard, recognised by its first bytes."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, Protocol, cast

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


def files_of(path: str | Path) -> list[str]:
    """The files in a folder, by name, hidden ones left out; a path of anything else alone.

    Raises `TraceError` for a folder without files.
    """
    if str(path) == STANDARD_INPUT or not Path(path).is_dir():
        return [str(path)]
    files = sorted(str(file) for file in Path(path).rglob("*") if file.is_file() and not file.name.startswith("."))
    if not files:
        raise TraceError(f"{path} is a folder without files. Name a folder with traces, or a trace.")
    return files


class ByteStream:
    """The bytes of a file, of an address that fsspec opens (`s3://...`), or of standard input for `-`; decompressed.

    advance: told the number of bytes that were read, before they are decompressed. Every method raises `TraceError`
    when the source cannot be read, is damaged or cut short.
    """

    def __init__(self, path: str | Path, advance: Callable[[int], None] = lambda _num_bytes: None) -> None:
        self._path = str(path)
        self._name = source_name(path)
        self._advance = advance
        self._chunks = self._guarded()
        self._kept = b""

    def __iter__(self) -> Iterator[bytes]:
        if self._kept:
            kept, self._kept = self._kept, b""
            yield kept
        yield from self._chunks

    def head(self) -> bytes:
        """The first bytes, with the first line if it is no longer than `LONGEST_LINE`; they are read again later."""
        parts, size, has_line = [self._kept], len(self._kept), b"\n" in self._kept
        while (size < _CHUNK_BYTES or not has_line) and size <= LONGEST_LINE and (chunk := next(self._chunks, b"")):
            parts.append(chunk)
            size += len(chunk)
            has_line = has_line or b"\n" in chunk
        self._kept = b"".join(parts)
        return self._kept

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, or as many as there are; all of them for a negative size."""
        parts, missing = [], size
        while missing and (part := self._kept or next(self._chunks, b"")):
            taken, self._kept = (part, b"") if missing < 0 else (part[:missing], part[missing:])
            parts.append(taken)
            missing -= len(taken) if missing > 0 else 0
        return b"".join(parts)

    def _guarded(self) -> Iterator[bytes]:
        try:
            with self._open() as stream:
                yield from _decompressed(stream, self._advance)
        except (zlib.error, zstandard.ZstdError, EOFError) as error:
            raise TraceError(f"{self._name}: compressed data is damaged ({error}). Fetch the file again.") from error
        except OSError as error:
            fault = error.strerror or error
            raise TraceError(f"{self._name} cannot be read ({fault}). Check the path and its permissions.") from error

    def _open(self) -> AbstractContextManager[BinaryIO]:
        if self._path == STANDARD_INPUT:
            return nullcontext(sys.stdin.buffer)
        if "://" not in self._path:
            return Path(self._path).open("rb")
        try:
            import fsspec  # noqa: PLC0415 - optional, and needed for addresses alone

            return cast("AbstractContextManager[BinaryIO]", fsspec.open(self._path, "rb"))
        except ImportError as error:
            raise TraceError(
                f"{self._name} is an address, which needs fsspec and its package ({error}). Install them."
            ) from None
        except ValueError as error:
            raise TraceError(f"{self._name} is no address that fsspec opens ({error}). Correct it.") from None


def read_lines(path: str | Path) -> Iterator[str]:
    """Lines of a file, or of standard input for `-`; raises as `lines_of` and `ByteStream`."""
    return lines_of(ByteStream(path), path)


def lines_of(stream: ByteStream, path: str | Path) -> Iterator[str]:
    """Lines of a stream, without their line ends; a byte order mark is dropped.

    Raises `TraceError` for bytes that are not UTF-8, and a line longer than `LONGEST_LINE`, which no trace has.
    """
    name = source_name(path)
    number = 0
    try:
        for number, line in enumerate(_split(iter(stream)), start=1):
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


def _decompressed(stream: BinaryIO, advance: Callable[[int], None]) -> Iterator[bytes]:
    def read() -> bytes:
        chunk = stream.read(_CHUNK_BYTES)  # a buffered read: shorter than asked for only at the end
        advance(len(chunk))
        return chunk

    chunk = read()
    for magic, decompressor in _BY_MAGIC:
        if chunk.startswith(magic):
            yield from _members(chunk, read, decompressor)
            return
    while chunk:
        yield chunk
        chunk = read()


def _members(chunk: bytes, read: Callable[[], bytes], decompressor: Callable[[], _Decompressor]) -> Iterator[bytes]:
    """Decompress one member after the other; `EOFError` when the last one is cut short."""
    member = decompressor()
    while chunk:
        if member.eof:
            member = decompressor()
        packed, chunk = chunk[:_PACKED_BYTES], chunk[_PACKED_BYTES:]
        if data := member.decompress(packed):
            yield data
        chunk = (member.unused_data if member.eof else b"") + chunk
        chunk = chunk or read()
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
