"""FlexAttention behind the same function: what each token sees, and that outputs equal those of SDPA."""

import inspect

import numpy as np
import pytest
import torch
from hf_memory_uses import sizes_of
from hf_models import tiny_model
from hf_runs import FIRST, Run, references
from hypothesis import given
from hypothesis import strategies as st
from packed_jobs import CPU, jobs_of, seen_from

from kvstead.engine import KVCacheManager
from kvstead.errors import LayoutError
from kvstead.integrations.transformers import TransformersRunner, model_layout
from kvstead.integrations.transformers.attention import FlexAttention, attend, visible
from kvstead.integrations.transformers.forward_plan import PLAN_KEYWORD, Plan, SidePlan, group
from kvstead.model import Window

_JOBS = st.lists(st.tuples(st.integers(0, 300), st.sampled_from([1, 1, 2, 9, 150])), min_size=1, max_size=12)
_WINDOWS = st.one_of(st.none(), st.builds(Window, st.integers(1, 200), st.booleans()))
_MIXED = [(5, 1), (40, 1), (200, 1), (0, 30), (11, 30), (3, 140)]
_DECODING = [(5, 1), (40, 1), (200, 1)]
_DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="compiled for a GPU alone")),
]


def _plan(pairs, window, device=CPU):
    """A plan of one side, and the rows and positions of what it gathers."""
    jobs = jobs_of(pairs)
    groups, rows, positions = group(jobs, window, device)
    side = SidePlan(None, None, None, groups)
    plan = Plan(jobs, side, None, None) if window is None else Plan(jobs, None, side, None)
    return plan, rows, positions


@given(_JOBS, _WINDOWS)
def test_every_token_sees_one_range_of_its_own(pairs, window):
    """For any jobs, the entries of a token's range are those that the window allows, each once."""
    plan, rows, positions = _plan(pairs, window)
    jobs = plan.jobs
    first, last = visible(jobs, window, plan.side(None).groups)
    tokens = zip(jobs.rows.repeat(jobs.num_new).tolist(), jobs.positions().tolist(), strict=True)
    for at, (row, position) in enumerate(tokens):
        stretch = slice(first[at], last[at] + 1)
        assert (rows[stretch] == row).all()
        assert positions[stretch].tolist() == seen_from(position, window)


@given(_JOBS, _WINDOWS)
def test_blocks_hold_all_that_is_seen(pairs, window):
    """The blocks of a block of tokens cover the ranges of all its tokens, and no block is superfluous."""
    plan, _, _ = _plan(pairs, window)
    masks = FlexAttention(CPU).plan(plan, window)
    mask = masks.full if window is None else masks.window
    first, last = visible(plan.jobs, window, plan.side(None).groups)
    counts, blocks = mask.kv_num_blocks[0, 0].numpy(), mask.kv_indices[0, 0].numpy()
    assert mask.shape == (1, 1, first.size, plan.side(None).groups[-1].keys.stop)
    for at in range(counts.size):
        some = slice(at * 128, (at + 1) * 128)
        own = blocks[at, : counts[at]]
        assert own.tolist() == list(range(first[some].min() // 128, last[some].max() // 128 + 1))


@pytest.mark.parametrize("device", _DEVICES)
@pytest.mark.parametrize(
    ("window", "heads", "softcap", "has_sinks"),
    [
        (None, (4, 2), None, False),
        (Window(20, is_chunked=False), (4, 4), 2.0, False),
        (Window(16, is_chunked=True), (4, 1), None, True),
    ],
)
def test_outputs_equal_those_of_sdpa(window, heads, softcap, has_sinks, device):
    """With windows, chunks, head groups, caps, sinks and values of another width, in a mixed and a decoding pass."""
    device = torch.device(device)
    flex = FlexAttention(device)
    generator = torch.Generator().manual_seed(3)
    for pairs in (_MIXED, _DECODING):
        plan, rows, _ = _plan(pairs, window, device)
        query = torch.randn(1, heads[0], int(plan.jobs.num_new.sum()), 16, generator=generator).to(device)
        key = torch.randn(1, heads[1], rows.size, 16, generator=generator).to(device)
        value = torch.randn(1, heads[1], rows.size, 32, generator=generator).to(device)
        sinks = torch.randn(heads[0], generator=generator).to(device) if has_sinks else None
        options = {"scaling": 0.3, "softcap": softcap, "s_aux": sinks}
        with torch.no_grad():
            module = torch.nn.Module()
            expected, _ = attend(module, query, key, value, None, **options, **{PLAN_KEYWORD: plan})
            got, _ = attend(module, query, key, value, None, **options, **{PLAN_KEYWORD: flex.plan(plan, window)})
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def _generate(family):
    model = tiny_model(family)
    run = Run(model, sizes_of(model_layout(model), 512), {"chunk_tokens": 16}, attention="flex").serve(FIRST)
    run.check(references(family)[: len(FIRST)])


def test_a_model_generates_by_flex():
    """A model with caps and two kinds of layers gives the same tokens, with chunks of prompts beside decoding."""
    _generate("gemma2")


@pytest.mark.models
@pytest.mark.parametrize("family", ["deepseek_v2", "gemma3n_text", "gpt_oss", "lfm2", "llama4_text"])
def test_families_generate_by_flex(family):
    """Models with latents, shared entries, sinks, chunks or states give the same tokens."""
    _generate(family)


def test_other_lengths_compile_nothing_new():
    """After a few passes, passes of other lengths run the compiled code."""
    flex = FlexAttention(CPU)

    def compiled(pairs):
        torch._dynamo.utils.counters.clear()
        plan, rows, _ = _plan(pairs, None)
        query, key = torch.randn(1, 4, int(plan.jobs.num_new.sum()), 8), torch.randn(1, 2, rows.size, 8)
        with torch.no_grad():
            attend(torch.nn.Module(), query, key, key, None, **{PLAN_KEYWORD: flex.plan(plan, None)})
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    assert compiled(_MIXED) == 1
    assert compiled(_DECODING) == 1
    rng = np.random.default_rng(2)
    for num_jobs in range(2, 8):
        starts, lengths = rng.integers(0, 300, num_jobs), rng.integers(1, 60, num_jobs)
        assert compiled(list(zip(starts.tolist(), lengths.tolist(), strict=True))) == 0


def test_unusable_attentions_are_refused(monkeypatch):
    """An unknown attention, device or torch is refused by name, and the model keeps its attention."""
    model = tiny_model("llama")
    manager = KVCacheManager(model_layout(model), num_slots=64, page_size=4, max_requests=2, max_length=32)
    with pytest.raises(LayoutError, match="attention is 'eager'"):
        TransformersRunner(model, manager, attention="eager")
    with pytest.raises(LayoutError, match="never tried on meta"):
        FlexAttention(torch.device("meta"))
    monkeypatch.setattr(inspect, "signature", lambda _: inspect.Signature())
    with pytest.raises(LayoutError, match="cannot compile FlexAttention"):
        TransformersRunner(model, manager, attention="flex")
    assert model.config._attn_implementation != "kvstead"
