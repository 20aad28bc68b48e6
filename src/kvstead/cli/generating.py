"""The part of `kvstead generate` that needs the whole house: load, generate, then tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import chain
from typing import Any

import typer

from kvstead.cli.answers import Answers
from kvstead.cli.prompts import Asked
from kvstead.errors import RequestError
from kvstead.integrations.transformers import LLM, Completion, FinishReason, Piece, SamplingParams
from kvstead.report.console import error_console, output_console
from kvstead.report.files import to_json
from kvstead.report.generation import print_generation
from kvstead.report.progress import loading_bar


def generate_and_report(
    model: str | None,
    asked: Sequence[Asked],
    *,
    memory: Mapping[str, Any],
    sampling: Mapping[str, Any],
    system: str | None,
    is_raw: bool,
    is_streamed: bool,
    as_json: bool,
) -> bool:
    """Load, generate, print texts and summary; returns whether it was interrupted.

    memory: keywords of `LLM`. sampling: of `SamplingParams`, for prompts that say nothing else. system: begins every
    chat. is_raw: texts are taken as they are, not as chats. is_streamed: texts are written as they come.
    """
    params = [_params(one, sampling) for one in asked]  # a faulty one is refused before anything is loaded
    with loading_bar() as show:
        llm = LLM(model, **memory, report=show)
    prompts = [one.prompt if is_raw and isinstance(one.prompt, str) else one.as_chat(system) for one in asked]
    # With a JSON object on standard output, everything for the eye goes to standard error.
    console = error_console() if as_json else output_console()
    answers = Answers([one.title for one in asked], console)
    with closing(llm.stream(prompts, params)) as stream:
        completions, is_interrupted = _follow(stream, answers, len(asked), is_streamed=is_streamed)
    summary = llm.summary() | {"interrupted": is_interrupted}
    print_generation(summary, console)
    if as_json:
        typer.echo(to_json({"completions": [asdict(completion) for completion in completions], "summary": summary}))
    return is_interrupted


def _follow(
    stream: Iterable[Piece], answers: Answers, num_prompts: int, *, is_streamed: bool
) -> tuple[list[Completion], bool]:
    """Write answers as they come, or at the end; returns what came of each prompt, and whether it was interrupted."""
    pieces: list[list[Piece]] = [[] for _ in range(num_prompts)]
    is_interrupted = False
    try:
        for piece in stream:
            pieces[piece.index].append(piece)
            answers.add(piece.index, _shown(piece), is_last=piece.completion is not None)
            if is_streamed:
                answers.write()
    except KeyboardInterrupt:
        is_interrupted = True
    answers.write_rest()
    return [_completion(parts) for parts in pieces], is_interrupted


def _shown(piece: Piece) -> str:
    """What is to be read of a piece: its text, or why there is none."""
    ended = piece.completion
    if ended is not None and ended.finish_reason is FinishReason.REJECTED:
        return f"(rejected: {ended.reason})"
    return piece.text


def _completion(pieces: Sequence[Piece]) -> Completion:
    """What came of a prompt: the whole, or what there was when it was interrupted."""
    if pieces and pieces[-1].completion is not None:
        return pieces[-1].completion
    tokens = tuple(chain.from_iterable(piece.tokens for piece in pieces))
    return Completion((), tokens, "".join(piece.text for piece in pieces), FinishReason.ABORTED)


def _params(one: Asked, sampling: Mapping[str, Any]) -> SamplingParams:
    try:
        return SamplingParams(**{**sampling, **one.sampling})
    except (RequestError, OverflowError) as error:  # also a whole number too large for a float
        raise RequestError(f"{one.place}: {error}" if one.place else str(error)) from error
