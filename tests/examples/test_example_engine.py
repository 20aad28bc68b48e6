"""The example engine for embedders computes what its model says, whatever the memory does to its requests."""

import runpy

import pytest

from kvstead import KVCacheManager, ModelLayout
from paths import ROOT

EXAMPLE = runpy.run_path(str(ROOT / "examples" / "engine.py"))
Model, Engine, Request = EXAMPLE["Model"], EXAMPLE["Engine"], EXAMPLE["Request"]


def serve(requests, num_slots, **options):
    """Outputs of requests on a memory of so many slots, and how often one of them had to step back."""
    layout = ModelLayout.from_config(EXAMPLE["CONFIG"], name="example", cache_dtype="float32")
    manager = KVCacheManager(layout, num_slots=num_slots, max_requests=4, max_length=256, **options)
    engine = Engine(Model(), manager, chunk=8)
    engine.waiting.extend(Request(prompt, num_new) for prompt, num_new in requests)
    asked = list(engine.waiting)
    while engine.waiting or engine.running:
        engine.step()
        manager.audit()
    return [request.output for request in asked], engine.num_retractions, sum(request.num_cached for request in asked)


@pytest.mark.parametrize("page_size", [1, 4])
def test_outputs_are_those_of_ample_memory_without_reuse(page_size):
    """Six requests with a shared prefix on a third of the memory that they would need: prefixes hit, some step back."""
    requests = [([at % 3 for at in range(20)] + [7 + at] * (1 + at), 12) for at in range(6)]
    alone, num_retractions, num_cached = serve(requests, 4096, page_size=page_size, prefix_cache=False)
    assert (num_retractions, num_cached) == (0, 0)
    tight, num_retractions, num_cached = serve(requests, 64, page_size=page_size)
    assert tight == alone
    assert num_retractions > 0
    assert num_cached > 0


def test_main_runs(capsys):
    """As a reader would run it: it prints what was reused, and requests step back in its small memory."""
    EXAMPLE["main"]()
    printed = capsys.readouterr().out
    assert "12 requests" in printed
    assert " 0 retractions" not in printed
    assert "0 of" not in printed.splitlines()[1][:5]
