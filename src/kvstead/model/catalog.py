"""The bundled model configurations, and where each comes from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from kvstead.errors import LayoutError

_SOURCES = "_sources.json"


def _folder() -> Traversable:
    return files("kvstead.model") / "presets"


def preset_names() -> tuple[str, ...]:
    """Names of the bundled models, sorted."""
    names = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json") and name != _SOURCES))


def preset_config(name: str) -> Mapping[str, Any]:
    """The configuration of a bundled model. Raises `LayoutError` for an unknown name, with close names."""
    if name not in preset_names():
        raise _unknown_model(name)
    config: dict[str, Any] = json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
    return config


def preset_source(name: str) -> str:
    """Where a bundled model's numbers come from: the evidence, the source, and what is not verified.

    Evidence is "config" (the model's own file), "package" (values in a released package), "quoted" (the file quoted in
    public code or documents) or "partly" (a field that decides the cache has no direct source). Raises `LayoutError`
    for an unknown name.
    """
    if name not in preset_names():
        raise _unknown_model(name)
    entry: dict[str, str] = json.loads((_folder() / _SOURCES).read_text(encoding="utf-8"))[name]
    unverified = f" Unverified: {entry['unverified']}" if "unverified" in entry else ""
    return f"[{entry['evidence']}] {entry['source'].rstrip('.')}.{unverified}"


def find_config(name_or_path: str | os.PathLike[str]) -> tuple[Mapping[str, Any] | str, str | None]:
    """A bundled model's configuration and its name, or an existing path and None: arguments of `from_config`.

    Raises `LayoutError`, with close names, for anything else.
    """
    text = os.fspath(name_or_path)
    if text in preset_names():
        return preset_config(text), text
    if Path(text).exists():
        return text, None
    raise _unknown_model(text)


def _unknown_model(name: str) -> LayoutError:
    close = get_close_matches(name.lower().rsplit("/", maxsplit=1)[-1], preset_names(), n=3, cutoff=0.5)
    near = f" Close names: {', '.join(close)}." if close else ""
    return LayoutError(
        f"{name!r} is not a bundled model or a configuration file.{near} "
        f"Give one of the {len(preset_names())} bundled names, or the path of a config.json."
    )
