"""What a memory holds over the clock, against sums over its own statistics."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from kind_models import MODELS, POOL_LAYOUTS, manager_for
from replay_oracles import LinearCost
from trace_strategies import traces

from kvstead.engine import Request, Scheduler
from kvstead.engine.meter import MemoryMeter, bytes_by_kind
from kvstead.model import CacheKind, LayerCache, ModelLayout, StatePart, TokenCache
from kvstead.replay.simulate import CostRunner


@given(
    traces(),
    st.sampled_from(list(MODELS)),
    st.sampled_from(POOL_LAYOUTS),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 30),
)
def test_means_are_those_of_the_statistics_at_every_step(trace, kind, pool_layout, page_size, spare):
    """Each state of each side is its bytes at every step, weighted by the step's time, to a byte; the peak is exact.

    So is each state of the whole memory, but for what rounding leaves over.
    """
    longest = int((trace.prompt_lens + trace.output_lens).max())
    manager = manager_for(MODELS[kind], pool_layout, page_size, longest + spare)
    scheduler, meter, seen = Scheduler(manager, chunk_tokens=7), MemoryMeter(manager), []

    def spend(seconds):
        seen.append((seconds, manager.stats()))
        meter.spend(seconds)

    def mean(bytes_of):
        return sum(Fraction(seconds) * bytes_of(stats) for seconds, stats in seen) / (total or 1)

    runner = CostRunner(trace, LinearCost(), manager.table.num_rows, spend, window=manager.window)
    for index in range(len(trace)):
        scheduler.add(Request(index, trace.prompt_tokens(index), int(trace.output_lens[index])))
    while not scheduler.is_idle:
        scheduler.step(runner)
    total = sum(Fraction(seconds) for seconds, _ in seen)
    means, now = meter.mean_by_side(), manager.stats()
    assert list(means) == [name for name in ("full", "window", "state") if name in now.by_side]
    for name, side in now.by_side.items():
        assert list(means[name]) == ["total_bytes", *side.by_state]
        assert sum(means[name][state] for state in side.by_state) == means[name]["total_bytes"]
        assert means[name]["parked"] == 0
        for state in set(side.by_state) - {"parked", "free"}:
            assert abs(means[name][state] - mean(lambda stats: stats.by_side[name].by_state[state])) <= 1  # noqa: B023
    by_state = meter.mean_by_state(means)
    assert list(by_state) == list(now.by_state)
    assert sum(by_state.values()) == manager.total_bytes
    for state, num_bytes in by_state.items():
        assert abs(num_bytes - mean(lambda stats: stats.by_state[state])) <= 12  # noqa: B023 - rounded by side and state
    assert meter.peak_bytes == max((stats.live + stats.cached for _, stats in seen), default=0)


def _layout_of(kinds, state=()):
    """One layer of each of so many heads, of 4 bytes a token and head, and one with a state."""
    span = {CacheKind.WINDOW: 8, CacheKind.CHUNK: 8}
    layers = [
        LayerCache(index, TokenCache(kind, heads, 1, 1, "bfloat16", 2 * heads, 2 * heads, span.get(kind)))
        for index, (kind, heads) in enumerate(kinds.items())
    ]
    layers += [LayerCache(len(kinds), state=state)] if state else []
    return ModelLayout("made", tuple(layers))


KINDS = st.dictionaries(
    st.sampled_from([CacheKind.FULL, CacheKind.LATENT, CacheKind.WINDOW, CacheKind.CHUNK]),
    st.integers(1, 1000),
    min_size=1,
)
BYTES = st.fixed_dictionaries({"live": st.integers(0, 2**50), "cached": st.integers(0, 2**50)})


@given(KINDS, BYTES, BYTES, st.none() | BYTES)
def test_kinds_share_the_bytes_of_their_side(kinds, full, window, state):
    """Every kind of the layout gets its part, to a byte for each kind, and the parts sum to what the sides hold.

    States are a side by themselves.
    """
    layout = _layout_of(kinds, () if state is None else (StatePart("conv", (2, 2), "bfloat16"),))
    sides = {}
    if layout.full_bytes_per_token:
        sides["full"] = full
    if layout.window_bytes_per_token:
        sides["window"] = window
    if state is not None:
        sides["state"] = state
    by_kind = bytes_by_kind(layout, sides)
    assert list(by_kind) == list(layout.kinds)
    assert sum(by_kind.values()) == sum(side["live"] + side["cached"] for side in sides.values())
    if state is not None:
        assert by_kind["state"] == state["live"] + state["cached"]
    for kind in kinds:
        is_full = kind in {CacheKind.FULL, CacheKind.LATENT}
        side = sides["full" if is_full else "window"]
        share = layout.full_bytes_per_token if is_full else layout.window_bytes_per_token
        fair = Fraction((side["live"] + side["cached"]) * layout.bytes_per_token(kind), share)
        assert abs(by_kind[kind] - fair) < len(kinds)


def test_a_rounding_rest_goes_to_the_last_kind():
    """Of 10 bytes on the full side a third goes to the kind of half the size, the other gets what is left."""
    layout = _layout_of({CacheKind.WINDOW: 1, CacheKind.FULL: 2, CacheKind.LATENT: 4})
    sides = {"full": {"live": 6, "cached": 4}, "window": {"live": 10, "cached": 0}}
    assert bytes_by_kind(layout, sides) == {"full": 3, "window": 10, "latent": 7}
