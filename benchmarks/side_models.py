"""Generates with one model in one way, and prints what that took as one JSON object.

python benchmarks/side_models.py "llama 0.18M"|"llama 8.9M"|SmolLM2-135M kvstead|continuous|padded|one

Every way gets the same prompts and goes on from each by `NEW_TOKENS` greedy tokens. Memory is the highest that the
process held while it did so, above what it held with the model loaded and a first tiny run done.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

import machine
from kvstead.engine import KVCacheManager, Request, Scheduler
from kvstead.integrations.transformers import TransformersRunner, model_layout
from kvstead.integrations.transformers.checkpoint import load_checkpoint

NUM_REQUESTS = 64
NUM_SLOW = 8  # requests where each takes long: one by one, or of the larger model
BUNDLED = "SmolLM2-135M"
PROMPT_TOKENS = (16, 128)
NEW_TOKENS = 64
PAGE_SIZE = 16
PEER_PAGE_SIZE = 256  # the peer's default

# Weights are as wide as keeps the best tokens apart.
MODELS = {
    "llama 0.18M": LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=64**-0.5,
    ),
    "llama 8.9M": LlamaConfig(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        initializer_range=256**-0.5,
    ),
}

Prompts = Sequence[Sequence[int]]
Tokens = list[list[int]]
GREEDY: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def kvstead(model: Any, prompts: Prompts, new_tokens: int) -> Tokens:
    """Its scheduler and runner, on a pool of as many tokens as the requests end with."""
    pages = sum(-(-(len(prompt) + new_tokens) // PAGE_SIZE) for prompt in prompts)
    manager = KVCacheManager(
        model_layout(model),
        num_slots=pages * PAGE_SIZE,
        page_size=PAGE_SIZE,
        max_requests=len(prompts),
        max_length=max(map(len, prompts)) + new_tokens,
    )
    scheduler = Scheduler(manager, decode_headroom=new_tokens)
    requests = [Request(at, np.array(prompt), new_tokens) for at, prompt in enumerate(prompts)]
    for request in requests:
        assert scheduler.add(request), request.reason
    runner = TransformersRunner(model, manager)
    while not scheduler.is_idle:
        scheduler.step(runner)
    model.set_attn_implementation("sdpa")
    return [request.output.tolist() for request in requests]


def continuous(model: Any, prompts: Prompts, new_tokens: int) -> Tokens:
    """The library's continuous batching, with a block for every request."""
    blocks = sum(-(-(len(prompt) + new_tokens) // PEER_PAGE_SIZE) for prompt in prompts)
    config = ContinuousBatchingConfig(page_size=PEER_PAGE_SIZE, num_blocks=blocks)
    generation = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    outputs = model.generate_batch(
        [list(prompt) for prompt in prompts], generation_config=generation, continuous_batching_config=config
    )
    return [output.generated_tokens for output in outputs.values()]


def padded(model: Any, prompts: Prompts, new_tokens: int) -> Tokens:
    """`generate` on one batch, filled up on the left."""
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return model.generate(ids, attention_mask=mask, max_new_tokens=new_tokens, **GREEDY)[:, longest:].tolist()


def one(model: Any, prompts: Prompts, new_tokens: int) -> Tokens:
    """`generate` on each prompt."""
    return [padded(model, [prompt], new_tokens)[0] for prompt in prompts]


WAYS: dict[str, Callable[[Any, Prompts, int], Tokens]] = {
    "kvstead": kvstead,
    "continuous": continuous,
    "padded": padded,
    "one": one,
}


class ForwardClock:
    """Seconds that a model spends in its forward passes."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.seconds = 0.0
        self._begin = 0.0
        model.register_forward_pre_hook(self._enter)
        model.register_forward_hook(self._leave)

    def _enter(self, *_: Any) -> None:
        self._begin = time.perf_counter()

    def _leave(self, *_: Any) -> None:
        self.seconds += time.perf_counter() - self._begin


def draw_prompts(vocabulary: int, count: int) -> Tokens:
    rng = np.random.default_rng(5)
    low, high = PROMPT_TOKENS
    return [rng.integers(3, vocabulary, rng.integers(low, high + 1)).tolist() for _ in range(count)]


def forget_peak() -> int:
    """Measure the highest memory anew from here on, and say how many bytes are held now."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(name: str) -> int:
    """Bytes that this process holds (VmRSS), or held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def load(name: str) -> Any:
    torch.manual_seed(0)
    return load_checkpoint(None, device="cpu").model if name == BUNDLED else LlamaForCausalLM(MODELS[name]).eval()


def measure(name: str, way: str) -> dict[str, Any]:
    """Tokens a second, bytes, the share of the time outside the model's forward passes, and the tokens themselves."""
    generate, model = WAYS[way], load(name)
    count = NUM_SLOW if way == "one" or name == BUNDLED else NUM_REQUESTS
    prompts = draw_prompts(model.config.vocab_size, count)
    generate(model, prompts[:2], 2)
    clock, before = ForwardClock(model), forget_peak()
    start = time.perf_counter()
    tokens = generate(model, prompts, NEW_TOKENS)
    seconds = time.perf_counter() - start
    return {
        "tokens/s": sum(map(len, tokens)) / seconds,
        "peak bytes": memory("VmHWM") - before,
        "outside": 1 - clock.seconds / seconds,
        "tokens": tokens,
    }


def main(name: str, way: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(machine.num_cores())
    print(json.dumps(measure(name, way)))


if __name__ == "__main__":
    main(*sys.argv[1:])
