"""The entry point `kvstead`: the commands, and how errors reach the terminal.

Commands import torch, numba and matplotlib when they run, so that help is quick.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from kvstead.cli.chat import chat
from kvstead.cli.commands import EXIT_FAULT
from kvstead.cli.generate import generate
from kvstead.cli.models import gpus, models
from kvstead.cli.replay import replay
from kvstead.cli.sglang import sglang_app
from kvstead.cli.trace import trace_app
from kvstead.errors import KVSteadError

app = typer.Typer(
    name="kvstead",
    help="The KV-cache memory manager for LLM inference that belongs to no engine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(replay)
app.command()(models)
app.command()(gpus)
app.command()(generate)
app.command()(chat)
app.add_typer(trace_app, name="trace")
app.add_typer(sglang_app, name="sglang")


def _print_version(value: bool) -> None:  # noqa: FBT001 - the signature of an option's callback
    if value:
        typer.echo(f"kvstead {version('kvstead')}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The KV-cache memory manager for LLM inference that belongs to no engine."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 1 where no request was served, 2 for an error (one line), 130 after Ctrl-C.

    arguments: without the program's name; None takes the process's own.
    """
    if sys.stdin is None:  # closed by the caller
        sys.stdin = io.TextIOWrapper(io.BytesIO())
    if sys.stdout is None:
        _fail("standard output is closed. Send it to a file, or to /dev/null.")
    try:
        app(args=arguments, prog_name="kvstead")
    except KVSteadError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}. Check the path and its permissions.")
    except MemoryError as error:
        _fail(f"{error}: out of memory for page tables. Use a smaller pool, larger pages or fewer requests at once.")


def _fail(message: str) -> None:
    typer.echo(f"kvstead: {' '.join(message.split())}", err=True)
    sys.exit(EXIT_FAULT)
