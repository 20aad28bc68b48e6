"""`kvstead generate`: generate text with a model whose cache kvstead manages."""

from __future__ import annotations

import typer

from kvstead.cli.commands import EXIT_INTERRUPTED, takes
from kvstead.cli.model_arguments import require_transformers
from kvstead.cli.prompts import GenerateArguments


@takes(GenerateArguments)
def generate(arguments: GenerateArguments) -> None:
    """Generate text with a Hugging Face model whose cache is kvstead's, and say what it held and reused.

    Example: kvstead generate --prompt "Name three colours." --stream
    """
    keywords, requests = arguments.keywords(arguments.max_running), arguments.requests()
    require_transformers()

    # These imports take seconds, and neither help nor a faulty file needs them.
    from kvstead.cli.generate_run import generate_and_report  # noqa: PLC0415

    if generate_and_report(arguments, requests, keywords):
        raise typer.Exit(EXIT_INTERRUPTED)
