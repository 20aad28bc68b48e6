import timeit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstead.errors import InvalidSize, LayoutError
from kvstead.model import ComputeProfile, ModelLayout, load_profile, preset_names
from kvstead.replay.cost import FixedCost, RooflineCost
from kvstead.replay.gpus import GPU_NAMES, Gpu, gpu

SMALL = Gpu("small", bf16_flops=100.0, fp8_flops=200.0, bandwidth=10.0, memory_bytes=1000, source="made up")
DENSE = {"total_params": 8, "active_params": 8, "attention_flops_per_pair": 4, "kv_bytes_per_token": 3}
counts = st.integers(0, 10**6)


def roofline(**changes):
    figures = {**DENSE, "mfu": 1.0, "mbu": 1.0, "overhead_seconds": 0.0, **changes}
    return RooflineCost(figures.pop("gpu", SMALL), **figures)


@settings(deadline=None)
@given(num_tokens=st.integers(1, 1000), kv_tokens=counts, pairs=counts)
def test_roofline_of_a_dense_model(num_tokens, kv_tokens, pairs):
    """A step takes as long as its arithmetic or its memory traffic, whichever is longer, and the overhead."""
    cost = roofline(mfu=0.5, mbu=0.8, overhead_seconds=0.25)
    compute = (2 * 8 * num_tokens + 4 * pairs) / (100 * 0.5)
    memory = (2 * 8 + 3 * (kv_tokens + num_tokens)) / (10 * 0.8)
    assert cost.seconds(num_tokens, kv_tokens, pairs) == pytest.approx(0.25 + max(compute, memory))


@settings(deadline=None)
@given(num_tokens=st.integers(1, 40), total=st.integers(2, 50), data=st.data())
def test_a_batch_reads_the_experts_that_it_touches(num_tokens, total, data):
    """A batch of a mixture of experts reads `active` weights for one token and tends to all of them for many."""
    active = data.draw(st.integers(1, total))
    cost = roofline(total_params=total, active_params=active, kv_bytes_per_token=0, gpu=_without_compute())
    touched = 0.0
    for _ in range(num_tokens):  # each token finds its share of what is left
        touched += (total - touched) * active / total
    assert cost.seconds(num_tokens, 0, 0) == pytest.approx(touched * 2 / 10)
    assert cost.seconds(1, 0, 0) == pytest.approx(active * 2 / 10)
    assert cost.seconds(10**6, 0, 0) == pytest.approx(total * 2 / 10)


def _without_compute():
    return Gpu("memory only", bf16_flops=1e30, fp8_flops=None, bandwidth=10.0, memory_bytes=1, source="made up")


@settings(deadline=None)
@given(work=st.tuples(*[counts] * 6), more=st.tuples(*[counts] * 6))
def test_more_work_takes_no_less_time(work, more):
    """The cost is monotonic in each of its arguments."""
    cost = roofline(active_params=3, window_bytes_per_token=2, bounded_flops_per_pair=1, state_bytes=7)
    larger = tuple(a + b for a, b in zip(work, more, strict=True))
    assert cost.seconds(*larger) >= cost.seconds(*work)


@settings(deadline=None)
@given(num_tokens=st.integers(1, 1000), full=st.tuples(counts, counts), window=st.tuples(counts, counts))
def test_roofline_of_a_model_with_windows(num_tokens, full, window):
    """Layers with a window add the bytes of what they read and write, and the arithmetic of their own pairs."""
    cost = roofline(window_bytes_per_token=5, bounded_flops_per_pair=6, mfu=0.5, mbu=0.8, overhead_seconds=0.25)
    compute = (2 * 8 * num_tokens + 4 * full[1] + 6 * window[1]) / (100 * 0.5)
    memory = (2 * 8 + 3 * (full[0] + num_tokens) + 5 * (window[0] + num_tokens)) / (10 * 0.8)
    assert cost.seconds(num_tokens, *full, *window) == pytest.approx(0.25 + max(compute, memory))


@settings(deadline=None)
@given(num_tokens=st.integers(0, 10**5), work=st.tuples(counts, counts), read=counts, pairs=counts)
def test_models_without_windows_cost_what_they_did(num_tokens, work, read, pairs):
    """Without bounded layers and states the figure is the shorter formula's to the last bit, whatever else is read."""
    cost = roofline(mfu=0.37, mbu=0.83, overhead_seconds=1e-3, num_gpus=3)
    flops_per_second, bytes_per_second = 3 * 100.0 * 0.37, 3 * 10.0 * 0.83
    compute = num_tokens * (2.0 * 8 / flops_per_second) + work[1] * (4 / flops_per_second)
    weights = 8 * 2.0 / bytes_per_second if num_tokens else 0.0
    memory = weights + (work[0] + num_tokens) * (3 / bytes_per_second)
    expected = 1e-3 + max(compute, memory)
    assert cost.seconds(num_tokens, *work) == cost.seconds(num_tokens, *work, read, pairs, read) == expected


@pytest.mark.parametrize("work", [(3, 70, 9), (1000, 70, 90_000)])
def test_windows_as_long_as_the_sequence_cost_as_full_layers(work):
    """A model whose layers are part full and part windows that hold everything costs as one whose layers are full."""
    halves = roofline(
        attention_flops_per_pair=1, bounded_flops_per_pair=3, kv_bytes_per_token=1, window_bytes_per_token=2
    )
    assert halves.seconds(*work, *work[1:]) == pytest.approx(roofline().seconds(*work))


def test_a_known_step_with_windows():
    """Decoding 64 sequences of 32,768 tokens with gpt-oss-120b reads 256 times fewer tokens in half of its layers."""
    profile, layout = ComputeProfile.preset("gpt-oss-120b"), ModelLayout.preset("gpt-oss-120b")
    assert profile.full_flops_per_pair == profile.bounded_flops_per_pair
    assert profile.full_flops_per_pair + profile.bounded_flops_per_pair == profile.attention_flops_per_pair
    cost = RooflineCost(
        gpu("h200"),
        total_params=profile.total_params,
        active_params=profile.active_params,
        attention_flops_per_pair=profile.full_flops_per_pair,
        kv_bytes_per_token=layout.full_bytes_per_token,
        bounded_flops_per_pair=profile.bounded_flops_per_pair,
        window_bytes_per_token=layout.window_bytes_per_token,
        mbu=1.0,
        overhead_seconds=0.0,
    )
    full, window = 64 * 32_768, 64 * layout.window_rule.live_tokens(32_768)
    assert full == 256 * window
    without = cost.seconds(64, 0, 64, 0, 64)
    cached = cost.seconds(64, full, full, window, window) - without
    assert cached == pytest.approx(36_864 * (full + window) / 4.8e12, rel=1e-3)


@settings(deadline=None)
@given(num_tokens=st.integers(1, 1000), full=st.tuples(counts, counts), num_states=counts)
def test_roofline_of_a_model_with_states(num_tokens, full, num_states):
    """A state is read and written once for each row of the step, and computes nothing of its own."""
    cost = roofline(state_bytes=7, mfu=0.5, mbu=0.8, overhead_seconds=0.25)
    compute = (2 * 8 * num_tokens + 4 * full[1]) / (100 * 0.5)
    memory = (2 * 8 + 3 * (full[0] + num_tokens) + 2 * 7 * num_states) / (10 * 0.8)
    assert cost.seconds(num_tokens, *full, num_states=num_states) == pytest.approx(0.25 + max(compute, memory))


STATEFUL = [name for name in preset_names() if ModelLayout.preset(name).state_bytes]


def of_preset(name, **options):
    profile, layout = load_profile(name), ModelLayout.preset(name)
    return RooflineCost(
        options.pop("gpu", None) or gpu("h200"),
        total_params=profile.total_params,
        active_params=profile.active_params,
        attention_flops_per_pair=profile.full_flops_per_pair,
        kv_bytes_per_token=layout.full_bytes_per_token,
        bounded_flops_per_pair=profile.bounded_flops_per_pair,
        window_bytes_per_token=layout.window_bytes_per_token,
        state_bytes=layout.state_bytes,
        **options,
    )


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("rows", [1, 64, 1000])
def test_states_of_known_models(name, rows):
    """Where memory binds, each row of a decoding step costs two times its state over the bandwidth, and no more."""
    cost = of_preset(name, gpu=_without_compute(), mbu=1.0)
    more = cost.seconds(rows, 0, rows, num_states=rows) - cost.seconds(rows, 0, rows)
    assert more == pytest.approx(2 * ModelLayout.preset(name).state_bytes * rows / 10, rel=1e-9)


def test_a_known_step_with_states():
    """64 rows of qwen3-next-80b-a3b on an H200 read and write 9.9 GB of states: 2.06 ms more, at full bandwidth."""
    cost = of_preset("qwen3-next-80b-a3b", mbu=1.0)
    more = cost.seconds(64, 64 * 4096, 64 * 4096, num_states=64) - cost.seconds(64, 64 * 4096, 64 * 4096)
    assert more == pytest.approx(2 * 77_266_944 * 64 / 4.8e12, rel=1e-9)
    assert more == pytest.approx(2.06e-3, rel=1e-3)


def test_states_do_not_lengthen_a_step_that_arithmetic_binds():
    """A prefill of 8,192 tokens takes as long with the state of its one row as without."""
    cost = of_preset("qwen3-next-80b-a3b")
    pairs = 8192 * 8193 // 2
    assert cost.seconds(8192, 8192, pairs, num_states=1) == cost.seconds(8192, 8192, pairs)


def test_an_empty_step_costs_its_overhead():
    """A step that computes nothing reads no weights."""
    assert roofline(overhead_seconds=0.5).seconds(0, 0, 0) == 0.5
    assert roofline(overhead_seconds=0.5, active_params=2).seconds(0, 0, 0) == 0.5


def test_weights_in_fp8_compute_in_fp8():
    """Weights of a byte halve the traffic; fp8 uses its own peak where there is one, else arithmetic stays at bf16."""
    many = 10**6
    assert roofline(weight_bytes=1).seconds(1, 0, 0) == pytest.approx((8 + 3) / 10)
    bound_by_compute = {"kv_bytes_per_token": 0, "gpu": SMALL}
    assert roofline(**bound_by_compute, weight_bytes=1, fp8=True).seconds(many, 0, 0) == pytest.approx(16 * many / 200)
    assert roofline(**bound_by_compute).seconds(many, 0, 0) == pytest.approx(16 * many / 100)
    old = Gpu("old", bf16_flops=100.0, fp8_flops=None, bandwidth=10.0, memory_bytes=1, source="made up")
    assert roofline(kv_bytes_per_token=0, gpu=old, weight_bytes=1, fp8=True).seconds(many, 0, 0) == pytest.approx(
        16 * many / 100
    )


def test_gpus_share_the_work():
    """Four GPUs take a quarter of the time, overhead aside."""
    one = roofline().seconds(10, 1000, 1000)
    assert roofline(num_gpus=4).seconds(10, 1000, 1000) == pytest.approx(one / 4)


def test_a_known_step():
    """Decoding one sequence of an 8B model on an H100 takes its weights over the bandwidth: about 5 ms at full rate."""
    cost = RooflineCost(
        gpu("h100-sxm"),
        total_params=8.03e9,
        active_params=8.03e9,
        attention_flops_per_pair=524_288,
        kv_bytes_per_token=131_072,
        mbu=1.0,
        overhead_seconds=0.0,
    )
    assert cost.seconds(1, 0, 0) == pytest.approx(2 * 8.03e9 / 3.35e12, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("total_params", 0),
        ("total_params", float("inf")),
        ("active_params", 0),
        ("active_params", 9),
        ("attention_flops_per_pair", -1),
        ("kv_bytes_per_token", -1),
        ("kv_bytes_per_token", float("nan")),
        ("bounded_flops_per_pair", -1),
        ("bounded_flops_per_pair", float("inf")),
        ("window_bytes_per_token", -1),
        ("window_bytes_per_token", float("nan")),
        ("state_bytes", -1),
        ("state_bytes", float("inf")),
        ("weight_bytes", 0),
        ("mfu", 0),
        ("mfu", 1.01),
        ("mbu", -0.1),
        ("mbu", float("nan")),
        ("overhead_seconds", -1e-9),
        ("overhead_seconds", float("inf")),
        ("num_gpus", 0),
    ],
)
def test_figures_out_of_range_are_refused(name, value):
    """A figure that cannot be is refused by name."""
    with pytest.raises(InvalidSize, match=f"{name} is {value}"):
        roofline(**{name: value})


def test_a_fixed_cost_ignores_the_step():
    """A fixed cost is the same for every batch; it must be a positive time."""
    assert FixedCost(0.01).seconds(1, 2, 3) == FixedCost(0.01).seconds(9999, 0, 0, 7, 8, 9) == 0.01
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidSize, match="step_seconds"):
            FixedCost(bad)


def test_published_figures_are_plausible():
    """Every GPU names its source, and its figures lie where those of such hardware lie."""
    for name in GPU_NAMES:
        figures = gpu(name)
        assert figures.name == name
        assert figures.source
        assert 1e14 < figures.bf16_flops < 3e15
        assert 0.25e12 < figures.bandwidth < 10e12
        assert 20e9 < figures.memory_bytes < 400e9
        assert figures.fp8_flops is None or figures.fp8_flops == pytest.approx(2 * figures.bf16_flops, rel=0.02)


def test_gpus_are_found_by_name():
    """Names are found in any case; an unknown one is refused with those that are close."""
    assert gpu("H100-SXM") is gpu("h100-sxm")
    with pytest.raises(LayoutError, match=r"GPU 'h100' is unknown. Did you mean .*h100-sxm.*Known are"):
        gpu("h100")
    with pytest.raises(LayoutError, match=r"GPU 'abacus' is unknown. Known are"):
        gpu("abacus")


def test_the_cost_is_cheap():
    """A call costs well under the microseconds of the step it stands for (bound with room for a busy machine)."""
    cost = roofline()
    assert (
        min(timeit.repeat(lambda: cost.seconds(32, 64_000, 64_000, 4000, 4000), number=1000, repeat=20)) / 1000 < 10e-6
    )
