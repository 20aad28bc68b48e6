import timeit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstead.errors import InvalidSize, LayoutError
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
def test_experts_touched(num_tokens, total, data):
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
@given(work=st.tuples(counts, counts, counts), more=st.tuples(counts, counts, counts))
def test_more_work_takes_no_less_time(work, more):
    """The cost is monotonic in each of its arguments."""
    cost = roofline(active_params=3)
    larger = tuple(a + b for a, b in zip(work, more, strict=True))
    assert cost.seconds(*larger) >= cost.seconds(*work)


def test_an_empty_step_costs_its_overhead():
    """A step that computes nothing reads no weights."""
    assert roofline(overhead_seconds=0.5).seconds(0, 0, 0) == 0.5
    assert roofline(overhead_seconds=0.5, active_params=2).seconds(0, 0, 0) == 0.5


def test_weights_of_one_byte_compute_in_fp8():
    """fp8 weights halve the bytes and use the fp8 peak where there is one; without one arithmetic stays at bf16."""
    many = 10**6
    assert roofline(weight_bytes=1).seconds(1, 0, 0) == pytest.approx((8 + 3) / 10)
    bound_by_compute = {"kv_bytes_per_token": 0, "gpu": SMALL}
    assert roofline(**bound_by_compute, weight_bytes=1).seconds(many, 0, 0) == pytest.approx(16 * many / 200)
    assert roofline(**bound_by_compute).seconds(many, 0, 0) == pytest.approx(16 * many / 100)
    old = Gpu("old", bf16_flops=100.0, fp8_flops=None, bandwidth=10.0, memory_bytes=1, source="made up")
    assert roofline(kv_bytes_per_token=0, gpu=old, weight_bytes=1).seconds(many, 0, 0) == pytest.approx(16 * many / 100)


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
def test_figures_out_of_range(name, value):
    """A figure that cannot be is refused by name."""
    with pytest.raises(InvalidSize, match=f"{name} is {value}"):
        roofline(**{name: value})


def test_fixed_cost():
    """A fixed cost is the same for every batch; it must be a positive time."""
    assert FixedCost(0.01).seconds(1, 2, 3) == FixedCost(0.01).seconds(9999, 0, 0) == 0.01
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidSize, match="step_seconds"):
            FixedCost(bad)


def test_published_figures_hang_together():
    """Every GPU names its source, and its figures lie where those of such hardware lie."""
    for name in GPU_NAMES:
        figures = gpu(name)
        assert figures.name == name
        assert figures.source
        assert 1e14 < figures.bf16_flops < 3e15
        assert 0.25e12 < figures.bandwidth < 10e12
        assert 20e9 < figures.memory_bytes < 400e9
        assert figures.fp8_flops is None or figures.fp8_flops == pytest.approx(2 * figures.bf16_flops, rel=0.02)


def test_gpu_names():
    """Names are found in any case; an unknown one is refused with those that are close."""
    assert gpu("H100-SXM") is gpu("h100-sxm")
    with pytest.raises(LayoutError, match=r"GPU 'h100' is unknown. Did you mean .*h100-sxm.*Known are"):
        gpu("h100")
    with pytest.raises(LayoutError, match=r"GPU 'abacus' is unknown. Known are"):
        gpu("abacus")


def test_the_cost_is_cheap():
    """A call costs well under the microseconds of the step it stands for (bound with room for a busy machine)."""
    cost = roofline()
    assert min(timeit.repeat(lambda: cost.seconds(32, 64_000, 64_000), number=1000, repeat=20)) / 1000 < 10e-6
