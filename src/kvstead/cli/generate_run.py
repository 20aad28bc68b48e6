"""The part of `kvstead generate` that loads torch and transformers: load the model, generate, report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import chain
from typing import Any

import typer

from kvstead.cli.answer_writer import AnswerWriter
from kvstead.cli.prompts import PromptRequest
from kvstead.errors import RequestError
from kvstead.integrations.transformers import LLM, Completion, FinishReason, Piece, SamplingParams
from kvstead.report.console import error_console, output_console
from kvstead.report.files import to_json
from kvstead.report.generation import print_generation
from kvstead.report.progress import loading_bar


def generate_and_report(
    model: str | None,
    requests: Sequence[PromptRequest],
    *,
    memory: Mapping[str, Any],
    sampling: Mapping[str, Any],
    system: str | None,
    is_raw: bool,
    is_streamed: bool,
    as_json: bool,
) -> bool:
    """Load, generate, print texts and summary; returns whether it was interrupted.

    memory: keywords of `LLM`. sampling: those of `SamplingParams`, for what a request does not say itself. system:
    begins every chat. is_raw: texts are taken as they are, not as chats. is_streamed: texts are written as they come.
    """
    params = [_params(request, sampling) for request in requests]  # refuse a faulty one before anything is loaded
    with loading_bar() as show:
        llm = LLM(model, **memory, report=show)
    prompts = [each.prompt if is_raw and isinstance(each.prompt, str) else each.as_chat(system) for each in requests]
    # With a JSON object on standard output, everything for the eye goes to standard error.
    console = error_console() if as_json else output_console()
    writer = AnswerWriter([request.title for request in requests], console)
    with closing(llm.stream(prompts, params)) as stream:
        completions, is_interrupted = _follow(stream, writer, len(requests), is_streamed=is_streamed)
    summary = llm.summary() | {"interrupted": is_interrupted}
    print_generation(summary, console)
    if as_json:
        typer.echo(to_json({"completions": [asdict(completion) for completion in completions], "summary": summary}))
    return is_interrupted


def _follow(
    stream: Iterable[Piece], writer: AnswerWriter, num_prompts: int, *, is_streamed: bool
) -> tuple[list[Completion], bool]:
    """Write answers as they come, or at the end; returns completions by prompt, and whether it was interrupted."""
    pieces: list[list[Piece]] = [[] for _ in range(num_prompts)]
    is_interrupted = False
    try:
        for piece in stream:
            pieces[piece.index].append(piece)
            writer.add(piece.index, _shown(piece), is_last=piece.completion is not None)
            if is_streamed:
                writer.write()
    except KeyboardInterrupt:
        is_interrupted = True
    writer.write_rest()
    return [_completion(parts) for parts in pieces], is_interrupted


def _shown(piece: Piece) -> str:
    """The text of a piece, or why its prompt was rejected."""
    ended = piece.completion
    if ended is not None and ended.finish_reason is FinishReason.REJECTED:
        return f"(rejected: {ended.reason})"
    return piece.text


def _completion(pieces: Sequence[Piece]) -> Completion:
    """The completion of a prompt; after an interrupt, of the text that had come until then."""
    if pieces and pieces[-1].completion is not None:
        return pieces[-1].completion
    tokens = tuple(chain.from_iterable(piece.tokens for piece in pieces))
    return Completion((), tokens, "".join(piece.text for piece in pieces), FinishReason.ABORTED)


def _params(request: PromptRequest, sampling: Mapping[str, Any]) -> SamplingParams:
    try:
        return SamplingParams(**{**sampling, **request.sampling})
    except (RequestError, OverflowError) as error:  # also a whole number too large for a float
        raise RequestError(f"{request.place}: {error}" if request.place else str(error)) from error
