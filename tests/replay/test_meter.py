"""What a memory holds over the clock, against sums over its own statistics."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from replay_bench import LinearCost
from trace_strategies import traces

from kvstead.engine import Request, Scheduler
from kvstead.engine.stats import STATES
from kvstead.model import CacheKind, LayerCache, ModelLayout, TokenCache
from kvstead.replay.meter import MemoryMeter, bytes_by_kind
from kvstead.replay.simulate import CostRunner
from tiny_model import tiny_layout, tiny_manager, tiny_window_layout

LAYOUTS = st.one_of(
    st.just(tiny_layout()),
    st.builds(tiny_window_layout, st.integers(1, 12), chunked=st.booleans(), pure=st.booleans()),
)


@given(traces(), LAYOUTS, st.sampled_from([1, 2, 4]), st.integers(4, 30))
def test_means_are_those_of_the_statistics_at_every_step(trace, layout, page_size, num_pages):
    """Each state of each side is its bytes at every step, weighted by the step's time, to a byte; the peak is exact."""
    manager = tiny_manager(num_pages * page_size, page_size, layout=layout)
    scheduler, meter, seen = Scheduler(manager, chunk_tokens=7), MemoryMeter(manager), []

    def spend(seconds):
        seen.append((seconds, manager.stats()))
        meter.spend(seconds)

    runner = CostRunner(trace, LinearCost(), manager.table.num_rows, spend, window=manager.window)
    for index in range(len(trace)):
        scheduler.add(Request(index, trace.prompt_tokens(index), int(trace.output_lens[index])))
    while not scheduler.is_idle:
        scheduler.step(runner)
    means = meter.mean_by_side()
    total = sum(Fraction(seconds) for seconds, _ in seen)
    assert list(means) == list(manager.stats().by_side)
    for name, side in manager.stats().by_side.items():
        assert sum(means[name][state] for state in STATES) == means[name]["total_bytes"] == side.total_bytes
        assert (means[name]["parked"], means[name]["padding"]) == (0, side.padding)
        for state in ("live", "cached"):
            used = sum(Fraction(seconds) * getattr(stats.by_side[name], state) for seconds, stats in seen)
            assert abs(means[name][state] - (used / total if total else 0)) <= 1
    assert meter.peak_bytes == max((stats.live + stats.cached for _, stats in seen), default=0)


def _layout_of(kinds):
    """One layer of each of so many heads, of 4 bytes a token and head."""
    span = {CacheKind.WINDOW: 8, CacheKind.CHUNK: 8}
    layers = [
        LayerCache(index, TokenCache(kind, heads, 1, 1, "bfloat16", 2 * heads, 2 * heads, span.get(kind)))
        for index, (kind, heads) in enumerate(kinds.items())
    ]
    return ModelLayout("made", tuple(layers))


KINDS = st.dictionaries(
    st.sampled_from([CacheKind.FULL, CacheKind.LATENT, CacheKind.WINDOW, CacheKind.CHUNK]),
    st.integers(1, 1000),
    min_size=1,
)
BYTES = st.fixed_dictionaries({"live": st.integers(0, 2**50), "cached": st.integers(0, 2**50)})


@given(KINDS, BYTES, BYTES)
def test_kinds_share_the_bytes_of_their_side(kinds, full, window):
    """Every kind of the layout gets its part, to a byte for each kind, and the parts sum to what the sides hold."""
    layout = _layout_of(kinds)
    sides = {}
    if layout.full_bytes_per_token:
        sides["full"] = full
    if layout.window_bytes_per_token:
        sides["window"] = window
    by_kind = bytes_by_kind(layout, sides)
    assert list(by_kind) == list(layout.kinds)
    assert sum(by_kind.values()) == sum(side["live"] + side["cached"] for side in sides.values())
    for kind in layout.kinds:
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
