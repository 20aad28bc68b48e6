"""Where a model comes from: a directory, the hub's cache, or the hub itself, if it can be reached."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch
from huggingface_hub import constants, get_session, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from kvstead.errors import CheckpointError

_PATIENCE_S = 5.0


def find_model(model: str | Path) -> tuple[str | Path, str]:
    """What to load a model from, and its name: a directory, or a name of the hub.

    Raises `CheckpointError` for a directory that is not there, and for a model that is neither here nor in the cache
    while the hub cannot be reached: at once, where the library would ask again and again.
    """
    source = Path(model)
    with suppress(RuntimeError):  # no such home directory
        source = source.expanduser()
    if source.is_dir():
        return source, source.resolve().name
    if isinstance(model, Path) or model.startswith((".", "/", "~")):
        raise CheckpointError(f"{model} is not a directory. Name one with a config.json, or a model of the hub.")
    _require_reachable(model)
    return model, model


def as_dtype(name: str | torch.dtype | None) -> torch.dtype | str:
    """A dtype of weights by its name; None is the checkpoint's own. Raises `CheckpointError` for an unknown one."""
    if name is None or isinstance(name, torch.dtype):
        return name or "auto"
    found = getattr(torch, {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(name, name), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise CheckpointError(f"{name!r} is no dtype of weights. Use bfloat16, float16 or float32.")
    return found


def as_device(name: str | torch.device | None) -> torch.device:
    """A device by its name; None is a GPU if there is one. Raises `CheckpointError` for one that is not here."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"device {str(name)!r} is not here ({reason}). Use cpu, or a device that torch finds."
        ) from None
    return device


def _require_reachable(name: str) -> None:
    with suppress(HFValidationError):  # transformers says what is wrong with the name
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
        way_out = "Name a directory that has it, or connect to the network once."
        if constants.is_offline_mode():
            raise CheckpointError(f"{name} is not in the cache of the hub, and HF_HUB_OFFLINE is set. {way_out}")
        try:
            get_session().head(constants.ENDPOINT, timeout=_PATIENCE_S)
        except Exception as error:  # noqa: BLE001 - of whichever library makes the request
            fault = f"{constants.ENDPOINT} cannot be reached ({error})"
            raise CheckpointError(f"{name} is not in the cache of the hub, and {fault}. {way_out}") from None
