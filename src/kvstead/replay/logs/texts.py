"""Counts the tokens of texts, and names the blocks that prompts are made of.

A block's name is a hash of its tokens and of all tokens before it, so that equal names mean equal prefixes:

    name of block i  =  sum over j <= i of  f(tokens of block j) * r[j]   (mod 2^64; r: random odd numbers)
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstead.errors import TraceError

_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd, so that a prompt's blocks all differ
BYTES_PER_TOKEN = 4  # of English text, by the usual estimate


class TextTokens:
    """Turns texts into tokens. tokenizer: a `tokenizer.json` or a folder with one; None takes 4 bytes as a token.

    Raises `TraceError` for a file that is no tokenizer, or where the package that reads it is missing.
    """

    def __init__(self, tokenizer: str | None = None) -> None:
        self._tokenizer = None if tokenizer is None else _load(Path(tokenizer))

    def of(self, text: str) -> NDArray[np.uint64]:
        """The tokens of a text: uint64[n]."""
        if self._tokenizer is not None:
            return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint64)
        data = text.encode("utf-8", "surrogatepass")
        return np.frombuffer(data + bytes(-len(data) % BYTES_PER_TOKEN), dtype="<u4").astype(np.uint64)


def block_names(tokens: NDArray[np.uint64], block_size: int, ends: list[int]) -> list[NDArray[np.int64]]:
    """The names of the blocks of prompts `tokens[:end]`, for each of `ends`: int64[ceil(end / block_size)] each.

    A partial last block has a name of its own. O(tokens + names).
    """
    num_blocks = -(-tokens.size // block_size)
    padded = np.zeros(num_blocks * block_size, dtype=np.uint64)
    padded[: tokens.size] = tokens + np.uint64(1)  # token 0 differs from no token
    weights, factors = _odd_numbers(0, block_size), _odd_numbers(1, num_blocks)
    weighted = padded.reshape(-1, block_size) * weights
    names = np.cumsum(weighted.sum(axis=1) * factors)
    prompts = []
    for end in ends:
        full, rest = divmod(end, block_size)
        prompt = names[: full + (rest > 0)].copy()
        if rest:  # what follows in the block is another prompt's
            prompt[full:] -= weighted[full : full + 1, rest:].sum(axis=1) * factors[full : full + 1]
        prompts.append(prompt.view(np.int64))
    return prompts


def own_names(owner: int, num_blocks: int) -> NDArray[np.int64]:
    """Names of the first blocks of a prompt that shares none with any other owner's: int64[num_blocks]."""
    first = int.from_bytes(hashlib.blake2b(f"{owner}".encode(), digest_size=8).digest(), "little")
    names: NDArray[np.uint64] = np.arange(num_blocks, dtype=np.uint64) * _STEP + np.uint64(first)
    return names.view(np.int64)


def _odd_numbers(seed: int, size: int) -> NDArray[np.uint64]:
    """The first `size` of the random odd numbers that `seed` decides: uint64[size]."""
    return _random(seed, 1 << max(size - 1, 0).bit_length())[:size]


@lru_cache(maxsize=64)
def _random(seed: int, size: int) -> NDArray[np.uint64]:
    # A generator fills arrays front to back, so a longer one begins with the shorter.
    return np.random.Generator(np.random.PCG64(seed)).integers(0, 2**64, size, dtype=np.uint64) | np.uint64(1)


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - of the extra `hf`, needed here alone
    except ModuleNotFoundError:
        raise TraceError(
            "Counting tokens with a tokenizer needs the package tokenizers. Install it with: pip install 'kvstead[hf]'"
        ) from None
    try:
        return Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
    except Exception as error:  # its errors have no class of their own
        raise TraceError(f"{path} is no tokenizer ({error}). Name a tokenizer.json, or a folder with one.") from error
