"""The forms that prompts may have, and how they become token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from kvstead.engine.request import token_ids
from kvstead.errors import RequestError
from kvstead.kernels.array_types import IntArray

_MOST_SHOWN = 60  # characters of a prompt in a message
_TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError)  # a template is a program

Message: TypeAlias = Mapping[str, str]
Prompt: TypeAlias = str | Sequence[int] | np.ndarray | torch.Tensor | Sequence[Message]
"""A text, token ids, or the messages of a chat, {"role": ..., "content": ...} each."""


def as_prompts(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """One prompt, or several, as a list of prompts."""
    several = _parts(prompts)
    is_one = bool(several) and all(_is_token(part) or isinstance(part, Mapping) for part in several)
    return [several] if is_one else several


class PromptEncoder:
    """Turns prompts into token ids below `vocabulary`, by a tokenizer; None where prompts are token ids only."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    def encode(self, prompt: Prompt) -> IntArray:
        """The ids of a prompt, int64[*].

        A text is used as it is, with the start token that the tokenizer adds. A chat goes through the model's template,
        up to the assistant's turn; without a template it is the text of its messages, one per line. Raises
        `RequestError` for an empty prompt, and for anything that is not a prompt.
        """
        try:
            found = np.asarray(self._ids(prompt), dtype=np.int64)
        except OverflowError as error:
            raise RequestError(
                f"the prompt {_short(prompt)} has a number that is not a token id. Use ids below {self._vocabulary}."
            ) from error
        ids = token_ids(found).astype(np.int64)
        if ids.max() >= self._vocabulary:
            raise RequestError(f"token {ids.max()} is not in the vocabulary. Use ids below {self._vocabulary}.")
        return ids

    def _ids(self, prompt: Prompt) -> Any:
        if isinstance(prompt, str):
            return self._text_ids(prompt)
        parts = _parts(prompt)
        if all(_is_token(part) for part in parts):
            return [int(part) for part in parts]
        if not all(map(_is_message, parts)):
            raise RequestError(
                f"the prompt {_short(prompt)} is neither a text, nor token ids, nor a chat. Messages of a chat have a "
                "role and a content."
            )
        return self._chat_ids(parts)

    def _text_ids(self, text: str) -> Any:
        if self._tokenizer is None:
            raise RequestError(f"the model has no tokenizer for the text {_short(text)}. Use token ids.")
        try:
            return self._tokenizer(text)["input_ids"]
        except (TypeError, UnicodeError) as error:
            raise RequestError(f"the tokenizer refuses the text {_short(text)}: it is not valid Unicode.") from error

    def _chat_ids(self, messages: list[Message]) -> Any:
        if self._tokenizer is None or not self._tokenizer.chat_template:
            return self._text_ids("\n".join(message["content"] for message in messages))
        try:
            found: Any = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, return_dict=True
            )
        except _TEMPLATE_FAULTS as error:
            raise RequestError(f"the model's chat template refuses {_short(messages)}: {error}.") from error
        return found["input_ids"]


def _parts(value: Any) -> list[Any]:
    """The parts of a sequence, or one value. A text, bytes or a message has no parts that could be prompts."""
    is_one = not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping)
    return [value] if is_one or getattr(value, "ndim", 1) == 0 else list(value)


def _is_token(part: Any) -> bool:
    if isinstance(part, torch.Tensor):
        return part.dim() == 0 and not part.is_floating_point()
    return isinstance(part, int | np.integer) and not isinstance(part, bool)


def _is_message(part: Any) -> bool:
    return isinstance(part, Mapping) and all(isinstance(part.get(key), str) for key in ("role", "content"))


def _short(prompt: Any) -> str:
    text = repr(prompt)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
