"""`kvstead generate`: generate text with a model whose cache kvstead manages."""

from __future__ import annotations

from importlib.util import find_spec

import typer

from kvstead.cli.commands import EXIT_INTERRUPTED, takes
from kvstead.cli.prompts import GenerateArguments
from kvstead.errors import CheckpointError


@takes(GenerateArguments)
def generate(arguments: GenerateArguments) -> None:
    """Generate text with a Hugging Face model whose cache is kvstead's, and say what it held and reused.

    Example: kvstead generate --prompt "Name three colours." --stream
    """
    memory, requests = arguments.memory_keywords(), arguments.requests()
    if find_spec("transformers") is None:
        raise CheckpointError("transformers, which loads models, is not installed. Run: pip install 'kvstead[hf]'")

    # These imports take seconds, and neither help nor a faulty file needs them.
    from kvstead.cli.generate_run import generate_and_report  # noqa: PLC0415

    if generate_and_report(arguments, requests, memory):
        raise typer.Exit(EXIT_INTERRUPTED)
