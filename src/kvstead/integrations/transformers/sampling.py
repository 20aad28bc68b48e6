"""How tokens are picked: the parameters of a request, and the sampler of a batch.

The random number of a token depends on the seed and the token's position alone. So a request with a seed gets the same
tokens in any batch, in chunks or not, after a retraction, or on a cached prefix.
"""

from __future__ import annotations

import math
import secrets
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from kvstead.engine.request import token_keys
from kvstead.errors import RequestError
from kvstead.integrations.transformers.forward_plan import Jobs
from kvstead.prefix import TokenKey

_SEEDS = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one prompt is answered.

    max_new_tokens: most tokens of the answer; it may end earlier, at the limit of the model or of the memory.
    temperature: divides the scores before a token is drawn; 0 takes the most likely token. top_p: draw from the most
    likely tokens that have this share of the probability. top_k: draw from so many of the most likely tokens. seed: 0
    .. 2**64 - 1; a seed gives the same answer to the same prompt, None another one each time. stop_tokens: ids that end
    the answer, besides those of the model. stop: texts that end it; its text ends before the first of them.
    keys: what ranges of the prompt's tokens depend on besides their ids; see `TokenKey`.

    Raises `RequestError` for values out of range, and for keys that are none.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    seed: int | None = None
    stop_tokens: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    keys: tuple[TokenKey, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens is {self.max_new_tokens}. Use 1 or more.")
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise RequestError(
                f"temperature is {self.temperature}. Use 0 for the most likely tokens, or a number above 0."
            )
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}. Use a share above 0 and up to 1, which leaves no token out.")
        if self.top_k is not None and self.top_k < 1:
            raise RequestError(f"top_k is {self.top_k}. Use 1 or more, or None, which leaves no token out.")
        if isinstance(self.stop, str) or not all(isinstance(text, str) and text for text in self.stop):
            raise RequestError(f"stop is {self.stop!r}. Use a list of texts that are not empty.")
        object.__setattr__(self, "stop", tuple(self.stop))
        if self.seed is not None and not 0 <= self.seed < _SEEDS:
            raise RequestError(f"seed is {self.seed}. Use 0 .. 2**64 - 1, or None.")
        if any(token < 0 for token in self.stop_tokens):
            raise RequestError(f"stop_tokens are {self.stop_tokens}. Use token ids, which are 0 or more.")
        token_keys(self.keys)


def seeded(params: SamplingParams) -> SamplingParams:
    """The same parameters with a seed: a random one where they have none."""
    return params if params.seed is not None else replace(params, seed=secrets.randbelow(_SEEDS))


class RowSampler:
    """Picks each row's token by the parameters of its request; the `sample` of a `TransformersRunner`.

    params: by row, with a seed; the caller sets them when a request takes the row.
    """

    def __init__(self) -> None:
        self.params: dict[int, SamplingParams] = {}

    def __call__(self, logits: torch.Tensor, jobs: Jobs) -> torch.Tensor:
        """A token id for each job: int64[jobs] from [jobs, vocabulary]."""
        tokens = logits.argmax(-1)
        alike: dict[tuple[float, float, int | None], list[int]] = defaultdict(list)
        params = [self.params[row] for row in jobs.rows.tolist()]
        for place, each in enumerate(params):
            if each.temperature:
                alike[each.temperature, each.top_p, each.top_k].append(place)
        for ways, places in alike.items():
            chances = [_chance(params[place].seed, int(jobs.ends[place])) for place in places]
            tokens[places] = _drawn(logits[places].double(), *ways, chances)
        return tokens


def _chance(seed: int | None, position: int) -> float:
    """The random number in [0, 1) for the token at a position."""
    assert seed is not None, "a row's parameters have a seed"
    return float(np.random.Generator(np.random.Philox(key=seed, counter=position)).random())


def _drawn(
    logits: torch.Tensor, temperature: float, top_p: float, top_k: int | None, chances: list[float]
) -> torch.Tensor:
    """The token whose share of the probability each chance falls into: int64[n] from float64[n, vocabulary]."""
    warpers: Any = LogitsProcessorList([TemperatureLogitsWarper(float(temperature))])  # which need no ids
    if top_k is not None:
        warpers.append(TopKLogitsWarper(min(top_k, logits.shape[-1])))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    best = logits.amax(-1, keepdim=True)  # subtracted, so that no temperature makes it infinite
    shares = warpers(None, logits - best).softmax(-1).cumsum(-1)
    points = torch.tensor(chances, dtype=shares.dtype, device=shares.device) * shares[:, -1]
    places = torch.searchsorted(shares, points[:, None], right=True)[:, 0]
    return places.clamp(max=shares.shape[-1] - 1)  # NaN scores have no shares
