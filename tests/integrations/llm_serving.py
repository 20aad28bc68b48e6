"""An `LLM` on a tiny random model, and what the model generates by itself."""

from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from hf_models import random_model, tiny_config
from hf_tokenizers import NUM_TOKENS

from kvstead.integrations.transformers import LLM, Checkpoint

ROOM = {"num_bytes": 2**21, "page_size": 4, "max_requests": 8}


@cache
def model_of(family):
    """A model with the vocabulary of the tokenizers."""
    return random_model(tiny_config(family, vocab_size=NUM_TOKENS))


@cache
def _reference(family):
    """A second copy of the model, which keeps its own attention."""
    return random_model(tiny_config(family, vocab_size=NUM_TOKENS))


@contextmanager
def serving(family="llama", tokenizer=None, model=None, **options):
    """An `LLM`; afterwards its memory is empty, its audit passes, and the model attends as before."""
    model = model or model_of(family)
    attention = model.config._attn_implementation
    try:
        llm = LLM(Checkpoint(family, model, tokenizer), **{**ROOM, **options})
        yield llm
        assert llm.is_idle
        llm.manager.audit()
        assert llm.manager.live_tokens() == llm.manager.table.live_rows().size == 0
    finally:
        model.set_attn_implementation(attention)


def prompt_of(seed, length):
    """Random token ids, without special tokens."""
    return np.random.default_rng(seed).integers(3, 250, length).tolist()


def alone(family, prompts, num_new):
    """What the model of a family generates for each prompt, greedily, until its stop token."""
    return [_alone(family, tuple(prompt), num_new) for prompt in prompts]


@cache
def _alone(family, prompt, num_new):
    ids = torch.tensor([prompt])
    out = _reference(family).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_new, do_sample=False, pad_token_id=0
    )
    return tuple(out[0, len(prompt) :].tolist())
