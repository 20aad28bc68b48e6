"""How tokens are picked: the parameters of a request, and the sampler of a batch.

The chance in a token comes from a seed and the token's position alone. So a request with a seed says the same whatever
it is computed with, in pieces or not, retracted on the way, or found in the cache.
"""

from __future__ import annotations

import math
import secrets
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

from kvstead.errors import RequestError
from kvstead.integrations.transformers.attention_groups import Jobs

_SEEDS = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What one prompt's answer is to be like.

    max_new_tokens: its tokens at most; it ends before where the model's length, or the memory, does. temperature: by
    what scores are divided before a token is drawn; 0 takes the best token instead. top_p: draw from the likeliest
    tokens of this share only. seed: 0 .. 2**64 - 1; the same seed draws the same answer to the same prompt, None
    another one every time. stop_tokens: ids that end the answer, beside those of the model.

    Raises `RequestError` for values out of range.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens is {self.max_new_tokens}. Generate at least 1.")
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise RequestError(f"temperature is {self.temperature}. Use 0 for the best tokens, or a number above 0.")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}. Use a share above 0; 1 leaves no token out.")
        if self.seed is not None and not 0 <= self.seed < _SEEDS:
            raise RequestError(f"seed is {self.seed}. Use 0 .. 2**64 - 1, or None.")
        if any(token < 0 for token in self.stop_tokens):
            raise RequestError(f"stop_tokens are {self.stop_tokens}. Token ids are 0 or more.")


@dataclass(frozen=True, slots=True)
class Draw:
    """How one request's tokens are drawn. key: of its chance."""

    temperature: float
    top_p: float
    key: int

    @classmethod
    def by(cls, params: SamplingParams) -> Draw:
        """As parameters say; without a seed by a key of its own."""
        return cls(params.temperature, params.top_p, secrets.randbelow(_SEEDS) if params.seed is None else params.seed)

    def chance(self, position: int) -> float:
        """A number from [0, 1) for the token at a position."""
        return float(np.random.Generator(np.random.Philox(key=self.key, counter=position)).random())


class RowSampler:
    """Picks tokens as the request on each row wants them; the `sample` of a `TransformersRunner`.

    draws: by row, set when a request comes onto it.
    """

    def __init__(self) -> None:
        self.draws: dict[int, Draw] = {}

    def __call__(self, logits: torch.Tensor, jobs: Jobs) -> torch.Tensor:
        """A token id for each job: int64[jobs] from [jobs, vocabulary]."""
        tokens = logits.argmax(-1)
        alike: dict[tuple[float, float], list[int]] = defaultdict(list)
        draws = [self.draws[row] for row in jobs.rows.tolist()]
        for place, draw in enumerate(draws):
            if draw.temperature:
                alike[draw.temperature, draw.top_p].append(place)
        for (temperature, top_p), places in alike.items():
            chances = [draws[place].chance(int(jobs.ends[place])) for place in places]
            tokens[places] = _drawn(logits[places].double(), temperature, top_p, chances)
        return tokens


def _drawn(logits: torch.Tensor, temperature: float, top_p: float, chances: list[float]) -> torch.Tensor:
    """Where each chance falls among the shares of the tokens: int64[n] of float64[n, vocabulary]."""
    warpers: Any = LogitsProcessorList([TemperatureLogitsWarper(float(temperature))])  # these need no ids
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    best = logits.amax(-1, keepdim=True)  # taken off, so that no temperature makes it infinite
    shares = warpers(None, logits - best).softmax(-1).cumsum(-1)
    points = torch.tensor(chances, dtype=shares.dtype, device=shares.device) * shares[:, -1]
    places = torch.searchsorted(shares, points[:, None], right=True)[:, 0]
    return places.clamp(max=shares.shape[-1] - 1)  # scores that are no numbers have no shares
