"""The example of a runner computes what its model says, whatever the scheduler does to its requests."""

import runpy

import numpy as np
import pytest

from kvstead import KVCacheManager, ModelLayout, Request, Scheduler
from paths import ROOT

EXAMPLE = runpy.run_path(str(ROOT / "examples" / "runner.py"))


def answers(num_slots, *, prefix_cache=True, overlap=False):
    """Outputs of eight requests on so many slots, how often one stepped back, and how many tokens were cached."""
    layout = ModelLayout.from_config(EXAMPLE["CONFIG"], name="example", cache_dtype="float32")
    manager = KVCacheManager(
        layout, num_slots=num_slots, page_size=4, max_requests=4, max_length=128, prefix_cache=prefix_cache
    )
    scheduler = Scheduler(manager, chunk_tokens=16, decode_headroom=0, overlap=overlap)
    runner = EXAMPLE["AttentionRunner"](manager)
    requests = [Request(at, np.array([at % 3 for at in range(20)] + [7 + at] * (1 + at)), 12) for at in range(8)]
    for request in requests:
        assert scheduler.add(request)
    while not scheduler.is_idle:
        scheduler.step(runner)
    manager.audit()
    outputs = [request.output.tolist() for request in requests]
    return outputs, scheduler.num_retractions, sum(request.num_cached for request in requests)


@pytest.mark.parametrize("overlap", [False, True])
def test_outputs_are_those_of_ample_memory_without_reuse(overlap):
    """Prefixes are found and requests step back, also where steps are planned ahead; the outputs stay the same."""
    alone, num_retractions, num_cached = answers(4096, prefix_cache=False)
    assert (num_retractions, num_cached) == (0, 0)
    assert len({tuple(output) for output in alone}) == 8
    tight, num_retractions, num_cached = answers(64, overlap=overlap)
    assert tight == alone
    assert num_retractions > 0
    assert num_cached > 0


def test_main_runs(capsys):
    """All chats have their second turn, and some request steps back on the way."""
    EXAMPLE["main"]()
    printed = capsys.readouterr().out
    assert "32 requests" in printed
    assert " 0 retractions" not in printed
