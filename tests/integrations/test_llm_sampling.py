"""Sampling: a seed always draws the same tokens, and tokens come by their shares of the probability."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from llm_serving import prompt_of, serving

from kvstead.errors import RequestError
from kvstead.integrations.transformers import SamplingParams
from kvstead.integrations.transformers.forward_plan import Jobs
from kvstead.integrations.transformers.sampling import RowSampler

_COMMON = prompt_of(1, 24)
_PROMPTS = [prompt_of(2, 5), _COMMON + prompt_of(3, 9), prompt_of(4, 1), _COMMON + prompt_of(5, 3), _COMMON]
_PARAMS = [SamplingParams(max_new_tokens=10, temperature=1.5, top_p=0.9, seed=seed) for seed in range(5)]


def _draw(temperature, top_p, seed, top_k=None):
    return SamplingParams(temperature=temperature, top_p=top_p, seed=seed, top_k=top_k)


def _picked(logits, draws, ends):
    sampler = RowSampler()
    rows = np.arange(1, len(draws) + 1)
    sampler.params = dict(zip(rows.tolist(), draws, strict=True))
    return sampler(logits, Jobs(rows, np.asarray(ends) - 1, np.asarray(ends))).tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"num_bytes": 2**16, "decode_headroom": 0},
        pytest.param({}, marks=pytest.mark.models),
        pytest.param({"chunk_tokens": 8}, marks=pytest.mark.models),
        pytest.param({"layout": "unified", "max_requests": 2}, marks=pytest.mark.models),
        pytest.param({"prefix_cache": False}, marks=pytest.mark.models),
    ],
    ids=str,
)
def test_a_seed_gives_the_same_tokens_in_any_batch(options):
    """Alone or together, in chunks, after a retraction or on a cached prefix, the tokens are the same."""
    with serving(prefix_cache=False) as llm:
        expected = [llm.generate([prompt], params)[0].tokens for prompt, params in zip(_PROMPTS, _PARAMS, strict=True)]
    with serving(**options) as llm:
        for _ in range(2):
            found = llm.generate(_PROMPTS, _PARAMS)
            assert [one.tokens for one in found] == expected
        assert (llm.summary()["requests"]["retracted"] > 0) == ("num_bytes" in options)
        assert any(one.num_cached for one in found) == options.get("prefix_cache", True)


def test_other_seeds_give_other_tokens():
    """Another seed, or none, changes the tokens; greedy requests in the same batch stay the same."""
    hot = [SamplingParams(max_new_tokens=10, temperature=2.0, seed=seed) for seed in (1, 2, 1, None, None)]
    with serving() as llm:
        first, second, again, one, other = (found.tokens for found in llm.generate([_COMMON] * 5, hot))
        greedy = llm.generate([_COMMON], SamplingParams(max_new_tokens=10))[0].tokens
        beside = llm.generate([_COMMON] * 2, [SamplingParams(max_new_tokens=10), hot[0]])
    assert first == again == beside[1].tokens
    assert beside[0].tokens == greedy
    assert len({first, second, one, other, greedy}) == 5


def test_tokens_are_drawn_by_their_shares():
    """Over many seeds and positions, frequencies are those of the scores by temperature; top_p leaves out the rest."""
    logits = torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0])
    num_draws = 4000
    for temperature, top_p, kept in ((1.0, 1.0, 5), (2.0, 1.0, 5), (1.0, 0.8, 2), (0.5, 0.999, 4)):
        shares = (logits / temperature).softmax(-1)
        left_out = shares.argsort(descending=True)[kept:]
        shares[left_out] = 0
        draws = [_draw(temperature, top_p, key) for key in range(num_draws)]
        found = Counter(_picked(logits.expand(num_draws, -1), draws, np.arange(num_draws) % 7 + 1))
        for token, share in enumerate((shares / shares.sum()).tolist()):
            assert abs(found[token] / num_draws - share) < 0.03
        assert not any(found[token] for token in left_out.tolist())


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=30),
    st.sampled_from([5e-324, 1e-30, 1e-3]),
    st.integers(0, 2**64 - 1),
    st.integers(1, 10**6),
)
def test_a_temperature_near_0_takes_the_best(scores, temperature, key, end):
    """Even a tiny temperature does not overflow: the most likely token is taken, or one as likely."""
    logits = torch.tensor([scores, scores])
    place = _picked(logits, [_draw(temperature, 0.9, key), _draw(0.0, 1.0, key)], [end, end])
    assert scores[place[1]] == max(scores)
    assert max(scores) - scores[place[0]] < 0.1


@given(st.lists(st.sampled_from([np.nan, np.inf, -np.inf, 1.0]), min_size=1, max_size=5), st.sampled_from([0.5, 1.0]))
def test_a_token_is_always_one_of_the_vocabulary(scores, top_p):
    """Also from NaN scores, so that one broken request does not end the others."""
    for temperature in (0.0, 1.0):
        (token,) = _picked(torch.tensor([scores]), [_draw(temperature, top_p, 7)], [1])
        assert 0 <= token < len(scores)


@given(st.floats(1e-3, 1e3), st.floats(0.01, 1.0), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5))
def test_a_row_draws_the_same_in_any_batch(temperature, top_p, keys):
    """A row of a batch draws what it draws alone, for any draws of the other rows."""
    logits = torch.randn(len(keys), 40, generator=torch.Generator().manual_seed(keys[0] % 2**32))
    draws = [_draw(temperature * (at % 2), top_p, key) for at, key in enumerate(keys)]
    ends = [3 + at for at in range(len(keys))]
    alone = [_picked(logits[at : at + 1], [draws[at]], [ends[at]])[0] for at in range(len(keys))]
    assert _picked(logits, draws, ends) == alone


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", -3),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("seed", -1),
        ("seed", 2**64),
        ("stop_tokens", (5, -1)),
    ],
)
def test_params_out_of_range_are_refused(name, value):
    """The message has the parameter, its value, and the way out."""
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    what, way_out = str(caught.value).split(". ", 1)
    assert name in what
    assert str(value) in what
    assert way_out


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=9, unique=True), st.integers(1, 12), st.integers(0, 2**64 - 1))
def test_top_k_draws_from_so_many_of_the_best(scores, top_k, key):
    """A token outside the `top_k` best scores is never drawn; 1 takes the best."""
    logits = torch.tensor([scores], dtype=torch.float32)
    (token,) = _picked(logits, [_draw(2.0, 1.0, key, top_k)], [3])
    best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:top_k]
    assert token in best
