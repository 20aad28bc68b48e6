"""Consoles for tables, on the standard streams of this moment."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import TextIO

from rich.console import Console

_FILE_WIDTH = 140


def output_console() -> Console:
    """A console on `sys.stdout` as it is now; 140 columns wide where that is not a terminal."""
    return _console(sys.stdout)


def error_console() -> Console:
    """A console on `sys.stderr` as it is now; 140 columns wide where that is not a terminal."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack a character of the text
    # A file or pipe has no width; rich would take 80 columns and break long names.
    return Console(file=stream, width=None if stream.isatty() else _FILE_WIDTH)
