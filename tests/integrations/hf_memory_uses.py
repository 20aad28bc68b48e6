"""Ways to use the memory under a model: how each is set up, and how a run shows that it happened."""

from hf_models import tiny_model
from hf_runs import FIRST, PAGE_SIZE, SECOND, Run, references

from kvstead.engine import KVCacheManager
from kvstead.integrations.transformers import FAMILIES, Way, model_layout
from kvstead.model import CacheKind

_ONLY_WINDOWS = {"mistral", "phi3"}
ROOMY, TIGHT = 512, 64  # slots; the longest request takes 48


def plain(family):
    """Serve all requests at once, and share nothing."""
    run = _run(family, ROOMY, prefix_cache=False).serve(FIRST + SECOND)
    assert run.planner.num_retractions == 0, "there was room for all"
    return run


def chunked(family):
    """Compute prompts in chunks of up to 16 tokens, beside decoding requests."""
    run = _run(family, ROOMY, chunk_tokens=16, prefix_cache=False).serve(FIRST + SECOND)
    assert run.planner.num_retractions == 0, "there was room for all"
    return run


def reused(family):
    """The second wave reuses prefixes of the first, in a memory too small for both."""
    run = _run(family, 2 * TIGHT).serve(FIRST, SECOND)
    assert any(request.num_cached > 0 for request in run.requests), "a request found a prefix"
    evicted = run.memory.evicted
    assert any(evicted.pages.values()), "something was evicted"
    return run


def retracted(family):
    """A memory too small for all admitted requests, so that some are retracted and come back later."""
    share = FAMILIES[family] is not Way.WHOLE
    run = _run(family, TIGHT // 2 if family in _ONLY_WINDOWS else TIGHT, prefix_cache=share).serve(FIRST, SECOND)
    assert run.planner.num_retractions > 0, "a request was retracted"
    return run


def moved(family):
    """One arena for all kinds, in which pages close up as soon as others are freed."""
    layout = model_layout(tiny_model(family))
    counted = KVCacheManager(layout, **sizes_of(layout, 2 * TIGHT), page_size=PAGE_SIZE, storage=False)
    manager = {"num_bytes": counted.total_bytes, "pool_layout": "unified", "eager": True}
    manager["prefix_cache"] = FAMILIES[family] is not Way.WHOLE
    run = Run(tiny_model(family), manager).serve(FIRST, SECOND)
    assert run.memory.chain.num_moves > 0, "pages moved"
    return run


def aborted(family):
    """Abort requests on the way, and plan each step before the last one's results are known."""
    share = FAMILIES[family] is not Way.WHOLE
    run = _run(family, ROOMY, prefix_cache=share, overlap=True, aborts={1: 4, 3: 2, 4: 6}).serve(FIRST + SECOND)
    assert sum(request.status == "aborted" for request in run.requests) == 3, "three were aborted"
    return run


MODES = {mode.__name__: mode for mode in (plain, chunked, reused, retracted, moved, aborted)}


def modes_of(family):
    """The ways that a family allows."""
    cannot = set()
    if FAMILIES[family] is Way.WHOLE:
        cannot |= {"chunked", "reused"}
    if family in _ONLY_WINDOWS:
        cannot |= {"moved"}  # one kind that is bounded has no arena
    return [name for name in MODES if name not in cannot]


def hold(family, mode):
    """Run a mode, and compare the result with what the model generates by itself."""
    MODES[mode](family).check(references(family))


def _run(family, num_slots, *, aborts=None, prefix_cache=True, **scheduler):
    model = tiny_model(family)
    manager = {**sizes_of(model_layout(model), num_slots), "prefix_cache": prefix_cache}
    return Run(model, manager, scheduler, aborts or {})


def sizes_of(layout, num_slots):
    """Sizes of a manager with `num_slots` slots on each side."""
    sizes = {"num_slots": num_slots}
    if layout.window is not None and layout.full_bytes_per_token:
        sizes["num_window_slots"] = num_slots
    if CacheKind.STATE in layout.kinds:
        sizes["num_states"] = num_slots // 8
    return sizes
