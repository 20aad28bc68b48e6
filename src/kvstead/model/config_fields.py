"""Reads a configuration key by key: aliases, nesting, class defaults, and errors that name what is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvstead.errors import LayoutError
from kvstead.model.defaults import CLASS_DEFAULTS, SOURCE, UNREADABLE

ConfigSource = str | os.PathLike[str] | Mapping[str, Any]

_DECODER_KEYS = ("text_config", "llm_config", "language_config")


def read_fields(source: ConfigSource, name: str | None) -> Fields:
    """The fields of a configuration, which gives them a name where `name` is None.

    `source` is a mapping, a JSON file, or a directory with a `config.json`. Raises `LayoutError` for a file that cannot
    be read or is not a JSON object, and for caches that are not supported.
    """
    if isinstance(source, Mapping):
        return Fields(source, name or str(source.get("_name_or_path") or source.get("model_type") or "unnamed"))
    path = Path(source)
    if path.is_dir():
        path /= "config.json"
    way_out = "Give the path of a model's config.json."
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LayoutError(f"{path} cannot be read: {error.strerror}. {way_out}") from error
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path} is not JSON: {error}. {way_out}") from error
    if not isinstance(config, dict):
        raise LayoutError(f"{path} holds a {type(config).__name__}, not an object. {way_out}")
    return Fields(config, name or (path.resolve().parent.name if path.name == "config.json" else path.stem))


class Fields:
    """The text decoder's part of a configuration.

    A key that is null counts as given (its class default does not apply) but has no value. `assumptions` collects what
    was filled in rather than read.
    """

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        nested = next((key for key in _DECODER_KEYS if isinstance(config.get(key), Mapping)), None)
        self._values: Mapping[str, Any] = config if nested is None else config[nested]
        self._outer = config
        self.name = name
        self.model_type = str(self._values.get("model_type") or config.get("model_type") or "")
        self.assumptions: list[str] = []
        if self.outer("is_encoder_decoder"):
            raise LayoutError(
                f"{name} has an encoder, whose cross-attention cache is not supported. Use a decoder-only model."
            )
        for key, reason in UNREADABLE.items():
            if self._values.get(key):
                raise LayoutError(f"{name} sets {key!r}: {reason}, which is not supported. Use a model without it.")

    @property
    def subject(self) -> str:
        """Name and class, as messages give them."""
        return f"{self.name} (model_type {self.model_type or 'missing'!r})"

    def assume(self, text: str) -> None:
        """Record in `assumptions` that something was filled in."""
        if text not in self.assumptions:
            self.assumptions.append(text)

    def has(self, key: str) -> bool:
        """Whether `key` is given with a value."""
        return self._values.get(key) is not None

    def has_any_of(self, prefixes: tuple[str, ...]) -> bool:
        """Whether a key that begins with one of `prefixes` is given with a value."""
        return any(key.startswith(prefixes) and value is not None for key, value in self._values.items())

    def outer(self, key: str) -> Any:
        """The value of `key` in the decoder's part, else in the whole configuration, else None."""
        value = self._values.get(key)
        return self._outer.get(key) if value is None else value

    def get(self, *keys: str) -> Any:
        """The value of the first of `keys` that has one, else a class default, else None."""
        for key in keys:
            if self.has(key):
                return self._values[key]
        if any(key in self._values for key in keys):
            return None
        defaults = CLASS_DEFAULTS.get(self.model_type, {})
        for key in keys:
            if key in defaults:
                self.assume(f"{key} = {defaults[key]} (default of {self.model_type} in {SOURCE})")
                return defaults[key]
        return None

    def number(self, *keys: str) -> int | None:
        """As `get`, for a count: raises `LayoutError` for anything but an int of at least 0."""
        value = self.get(*keys)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise LayoutError(f"{self.name}: {self.label(keys)} is {value!r}. It must be a whole number, 0 or more.")
        return value

    def size(self, *keys: str) -> int:
        """As `number`, for a size that must be there and at least 1. Raises `LayoutError` that names `keys`."""
        value = self.number(*keys)
        if value is None:
            raise self.missing(*keys)
        if value == 0:
            raise LayoutError(f"{self.name}: {self.label(keys)} is 0. It must be at least 1.")
        return value

    def items(self, key: str) -> list[Any]:
        """The list under `key`. Raises `LayoutError` for anything else."""
        value = self.get(key)
        if value is None:
            raise self.missing(key)
        if not isinstance(value, list | tuple):
            raise LayoutError(f"{self.name}: {key} is {value!r}. It must be a list.")
        return list(value)

    def numbers(self, key: str) -> list[int]:
        """As `items`, for a list of ints."""
        values = self.items(key)
        if not all(isinstance(value, int) for value in values):
            raise LayoutError(f"{self.name}: {key} is {values!r}. It must be a list of whole numbers.")
        return values

    def item(self, key: str, index: int) -> Any:
        """The entry for layer `index` of the list under `key`. Raises `LayoutError` where the list is too short."""
        values = self.items(key)
        if index >= len(values):
            raise LayoutError(
                f"{self.name}: {key} has {len(values)} entries, none for layer {index}. Give one per layer."
            )
        return values[index]

    def inner(self, key: str) -> Fields:
        """The mapping under `key`, as fields of its own. Raises `LayoutError` for anything else."""
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise LayoutError(f"{self.name}: {key} is {value!r}. It must be an object.")
        return Fields(value, f"{self.name}: {key}")

    def missing(self, *keys: str) -> LayoutError:
        """The error to raise where none of `keys` has a value."""
        looked = ", ".join(repr(key) for key in keys)
        return LayoutError(f"{self.subject} lacks {keys[0]!r}; looked for {looked}. Add it to the configuration.")

    def label(self, keys: Sequence[str]) -> str:
        """The first of `keys` that the configuration has, for messages."""
        return next((key for key in keys if key in self._values), keys[0])
