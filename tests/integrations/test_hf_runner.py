"""The runner: how a step becomes passes, and what it refuses."""

import numpy as np
import pytest
import torch
from hf_models import random_model, tiny_config, tiny_model
from hf_runs import FIRST, Asked, Run, generate

from kvstead.engine import KVCacheManager, Request, Scheduler
from kvstead.errors import LayoutError, RequestError
from kvstead.integrations.transformers import TransformersRunner, model_layout

_SLOTS = {"num_slots": 256}


def _manager(model, **options):
    options = {"page_size": 4, "max_requests": 8, "max_length": 96, **_SLOTS, **options}
    return KVCacheManager(model_layout(model), **options)


def _asked(prompt_length, num_new, seed=0):
    tokens = np.random.default_rng(seed).integers(3, 200, prompt_length)
    return Asked(tuple(tokens.tolist()), num_new)


def test_a_mixed_step_is_one_pass():
    """Prefill beside decode takes one forward pass a step where the family allows it."""
    run = Run(tiny_model("llama"), _SLOTS, {"chunk_tokens": 8}).serve([_asked(6, 10), _asked(30, 4, seed=1)])
    assert run.num_passes == run.planner._processed


def test_chunks_of_states_are_passes_of_their_own():
    """A family with states takes one pass for all decoding rows, and one for each chunk: whole pages, and the rest."""
    run = Run(tiny_model("lfm2"), {**_SLOTS, "num_states": 8}).serve([_asked(6, 5, seed=at) for at in range(4)])
    assert run.num_passes == 4 * 2 + 4


def test_a_model_works_again_with_another_attention():
    """After a run the model generates by itself as before."""
    model = tiny_model("llama")
    before = generate(model, FIRST[0])
    Run(model, _SLOTS).serve(FIRST)
    tokens, logits = generate(model, FIRST[0])
    assert tokens == before[0]
    assert torch.equal(logits, before[1])


def test_sample_decides_the_tokens():
    """Requests get the tokens of `sample` and continue from them; `sample` gets each row and position."""
    model = tiny_model("llama")
    seen = []

    def sample(logits, jobs):
        seen.append((tuple(logits.shape), jobs.rows.tolist(), jobs.ends.tolist()))
        return torch.full((logits.shape[0],), 7)

    attention = model.config._attn_implementation
    manager = _manager(model)
    scheduler = Scheduler(manager)
    request = Request(0, np.arange(3, 9), 4)
    scheduler.add(request)
    runner = TransformersRunner(model, manager, sample=sample)
    while not scheduler.is_idle:
        scheduler.step(runner)
    model.set_attn_implementation(attention)
    assert request.output.tolist() == [7] * 4
    assert seen == [((1, 256), [request.row], [end]) for end in (6, 7, 8, 9)]


def test_positions_may_scale_queries():
    """A Llama 4 whose queries are scaled by position, beyond where the scale begins, generates as it does alone."""
    model = random_model(tiny_config("llama4_text", floor_scale=8, attn_scale=0.5))
    asked = [_asked(5, 9), _asked(21, 6, seed=1), _asked(3, 12, seed=2)]
    expected = [generate(model, each) for each in asked]
    run = Run(model, {"num_slots": 256, "num_window_slots": 256}, {"chunk_tokens": 7}).serve(asked)
    run.check(expected)
    assert run.num_passes > run.planner._processed


@pytest.mark.parametrize("chunk_tokens", [5, 16, 64])
@pytest.mark.parametrize(
    "lengths", [(16, 16), (15, 15), (6, 6, 6, 6), (14, 3), (15, 1, 1), (4,) * 5, (31, 32, 33, 2)], ids=str
)
def test_queries_are_scaled_by_their_own_positions_in_every_packing(lengths, chunk_tokens):
    """Llama 4, prompts and outputs around the length where the scale begins, many of them in one pass: the logits are
    those of each request alone.
    """
    model = random_model(tiny_config("llama4_text", floor_scale=16, attn_scale=2.0))
    asked = [_asked(length, 20 if length < 16 else 4, seed=at) for at, length in enumerate(lengths)]
    expected = [generate(model, each) for each in asked]
    options = {"chunk_tokens": chunk_tokens}
    Run(model, {"num_slots": 256, "num_window_slots": 256}, options).serve(asked).check(expected)


def test_entries_in_another_dtype_are_converted():
    """With a pool in bfloat16 under a model in fp32 logits are close, and in the model's dtype."""
    model = tiny_model("llama")
    tokens, logits = generate(model, FIRST[1])
    run = Run(model, _SLOTS, layout=model_layout(model, cache_dtype="bfloat16")).serve([FIRST[1]])
    first = run.logits[0, len(FIRST[1].prompt)]
    assert first.dtype == torch.float32
    assert 1e-4 < (first - logits[0]).abs().max() < 0.1
    assert len(tokens) == run.requests[0].output.size


def test_a_chunk_is_refused_where_prompts_must_be_whole():
    """A family whose scan starts empty refuses a chunk that is not the whole prompt, and says what to set."""
    model = tiny_model("jamba")
    attention = model.config._attn_implementation
    manager = _manager(model, num_states=8)
    scheduler = Scheduler(manager, chunk_tokens=8)
    scheduler.add(Request(5, np.arange(3, 23), 4))
    runner = TransformersRunner(model, manager)
    with pytest.raises(RequestError, match=r"request 5 computes tokens 0 \.\. 7.*prefix_cache=False"):
        scheduler.step(runner)
    model.set_attn_implementation(attention)


def test_a_manager_must_fit_the_model():
    """A manager without storage, of another layout or with too long rows, and a model in training are refused."""
    model = tiny_model("llama")
    with pytest.raises(LayoutError, match="storage=True"):
        TransformersRunner(model, _manager(model, storage=False))
    with pytest.raises(LayoutError, match="keeps window of 16 tokens in its layout and is a full_attention layer in"):
        TransformersRunner(model, _manager(tiny_model("mistral")))
    with pytest.raises(LayoutError, match="3 layers in its layout and 4"):
        TransformersRunner(model, _manager(tiny_model("opt")))
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    short = random_model(tiny_config("llama", max_position_embeddings=64, rope_parameters=dynamic))
    with pytest.raises(LayoutError, match="rows of 96 tokens are longer than the 64"):
        TransformersRunner(short, _manager(short))
    TransformersRunner(short, _manager(short, max_length=64))
    model.train()
    with pytest.raises(LayoutError, match="eval"):
        TransformersRunner(model, _manager(model))
    model.eval()
    assert model.config._attn_implementation != "kvstead", "a refused model keeps its attention"
