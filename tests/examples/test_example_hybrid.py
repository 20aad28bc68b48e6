"""The example of a hybrid model computes what its model says, in an arena and in a divided memory."""

import runpy

import pytest

from kvstead import KVCacheManager
from paths import ROOT

EXAMPLE = runpy.run_path(str(ROOT / "examples" / "hybrid.py"))
Request, serve = EXAMPLE["Request"], EXAMPLE["serve"]


def answers(num_bytes, **options):
    """Outputs of eight requests on so many bytes, how often one stepped back, and how many tokens were cached."""
    manager = KVCacheManager(EXAMPLE["LAYOUT"], num_bytes, page_size=4, max_requests=4, max_length=128, **options)
    requests = [Request([at % 3 for at in range(20)] + [7 + at] * (1 + at), 12) for at in range(8)]
    num_retractions = serve(manager, requests, chunk=8)
    manager.audit()
    return [request.output for request in requests], num_retractions, sum(request.num_cached for request in requests)


@pytest.mark.parametrize("sharing", [{"expected_length": 40}, {"pool_layout": "unified"}])
def test_outputs_are_those_of_ample_memory_without_reuse(sharing):
    """Prefixes are found and requests step back, and every output is what a request alone would get."""
    alone, num_retractions, num_cached = answers(1 << 20, prefix_cache=False, expected_length=40)
    assert (num_retractions, num_cached) == (0, 0)
    assert len({tuple(output) for output in alone}) == 8
    tight, num_retractions, num_cached = answers(16 << 10, state_interval=8, **sharing)
    assert tight == alone
    assert num_retractions > 0
    assert num_cached > 0


def test_main_runs(capsys):
    """It prints what was reused, and what each kind of cache holds in the end."""
    EXAMPLE["main"]()
    first, *sides = capsys.readouterr().out.splitlines()
    assert "12 requests" in first
    assert " 0 retractions" not in first
    assert " 0 of" not in first
    assert {side.split()[0] for side in sides} == {"full", "window", "state"}
