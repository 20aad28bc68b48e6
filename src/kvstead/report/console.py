"""Where tables go: standard output or standard error, as they are now."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import TextIO

from rich.console import Console

_FILE_WIDTH = 140


def output_console() -> Console:
    """Standard output."""
    return _console(sys.stdout)


def error_console() -> Console:
    """Standard error."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")  # what a model says may be beyond the terminal's encoding
    # In a file or pipe there is no width to keep to; the usual 80 columns would break long names.
    return Console(file=stream, width=None if stream.isatty() else _FILE_WIDTH)
