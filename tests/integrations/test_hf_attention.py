"""Attention over packed requests, against one token at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_jobs import CPU, jobs_of, seen_from
from transformers import AttentionInterface

from kvstead.errors import LayoutError
from kvstead.integrations.transformers.attention import ATTENTION_NAME, attend, register_attention
from kvstead.integrations.transformers.forward_plan import PLAN_KEYWORD, Plan, SidePlan, group
from kvstead.model import Window

_JOBS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1, 1, 2, 5, 17])), min_size=1, max_size=8)
_WINDOWS = st.one_of(st.none(), st.builds(Window, st.integers(1, 20), st.booleans()))


def _plan(pairs, window):
    """A plan of one side, and for each packed token the places of what it sees among the gathered entries."""
    jobs = jobs_of(pairs)
    groups, rows, positions = group(jobs, window, CPU)
    side = SidePlan(None, None, None, groups)
    place = {}
    for at, entry in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        place.setdefault(entry, at)
    tokens = zip(jobs.rows.repeat(jobs.num_new).tolist(), jobs.positions().tolist(), strict=True)
    seen = [[place[row, at] for at in seen_from(position, window)] for row, position in tokens]
    return Plan(jobs, side, None, None), seen, rows.size


def _one_by_one(query, key, value, seen, scale, softcap, sinks):
    """The definition of attention, token after token and head after head."""
    heads, key_heads = query.shape[1], key.shape[1]
    out = torch.zeros(len(seen), heads, value.shape[-1], dtype=query.dtype)
    for token, places in enumerate(seen):
        for head in range(heads):
            group_head = head // (heads // key_heads)
            scores = key[0, group_head, places] @ query[0, head, token] * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            weights = scores if sinks is None else torch.cat((scores, sinks[head : head + 1]))
            weights = torch.softmax(weights, -1)[: len(places)]
            out[token, head] = weights @ value[0, group_head, places]
    return out


@settings(max_examples=60)
@given(_JOBS, _WINDOWS, st.sampled_from([(4, 2), (4, 1), (3, 3)]), st.booleans(), st.booleans(), st.integers(0, 99))
def test_outputs_equal_the_definition(pairs, window, heads, has_cap, has_sinks, seed):
    """For all lengths, windows and head groups, with and without caps and sinks, outputs equal the definition."""
    plan, seen, num_entries = _plan(pairs, window)
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, heads[0], len(seen), 8, generator=generator)
    key = torch.randn(1, heads[1], num_entries, 8, generator=generator)
    value = torch.randn(1, heads[1], num_entries, 6, generator=generator)
    sinks = torch.randn(heads[0], generator=generator) if has_sinks else None
    softcap = 2.0 if has_cap else None
    keywords = {PLAN_KEYWORD: plan, "softcap": softcap, "s_aux": sinks}
    out, weights = attend(torch.nn.Module(), query, key, value, None, scaling=0.4, **keywords)
    assert weights is None
    expected = _one_by_one(query, key, value, seen, 0.4, softcap, sinks)
    torch.testing.assert_close(out[0], expected, rtol=1e-4, atol=1e-5)


def test_a_column_of_tokens_is_packed():
    """Tokens that come as [requests, heads, 1, dim] give the same as in one row; the default scale is used."""
    plan, seen, num_entries = _plan([(5, 1), (9, 1), (30, 1)], None)
    query, key = torch.randn(3, 4, 1, 8), torch.randn(1, 2, num_entries, 8)
    out, _ = attend(torch.nn.Module(), query, key, key, None, **{PLAN_KEYWORD: plan})
    assert out.shape == (3, 1, 4, 8)
    expected = _one_by_one(query.transpose(0, 2), key, key, seen, 8**-0.5, None, None)
    torch.testing.assert_close(out[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_model_called_without_a_plan_is_refused():
    """The message says how to set another attention."""
    register_attention()
    assert AttentionInterface()[ATTENTION_NAME] is attend
    query = torch.zeros(1, 1, 1, 4)
    with pytest.raises(LayoutError, match="set_attn_implementation"):
        attend(torch.nn.Module(), query, query, query, None)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("columns", [12, 20, 24])
def test_entries_are_gathered_head_by_head(heads, columns):
    """Entries are copied as they are, whether contiguous, whole heads apart as in an arena, or at any stride."""
    whole = torch.randn(30, columns * heads)
    tensor = whole[:, : 12 * heads].view(30, heads, 12)
    read = torch.tensor([4, 5, 6, 29, 0, 0, 29])
    side = SidePlan(None, None, read, [])
    for _ in range(2):
        assert torch.equal(side.gather(tensor), tensor[read].transpose(0, 1))
