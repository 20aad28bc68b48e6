"""Models on memories of random settings."""

import numpy as np
import pytest
from hf_memory_uses import sizes_of
from hf_models import tiny_model
from hf_runs import ASKED, Run, references

from kvstead.engine import KVCacheManager
from kvstead.integrations.transformers import model_layout

_SOME = ("llama", "gemma3_text", "gpt_oss", "deepseek_v3", "llama4_text", "qwen3_next", "falcon_h1", "lfm2")
_CASES = [
    pytest.param(family, seed, marks=() if seed == 0 and family in {"llama4_text", "falcon_h1"} else pytest.mark.models)
    for family in _SOME
    for seed in range(12)
]


@pytest.mark.parametrize(("family", "seed"), _CASES)
def test_no_setting_changes_what_is_generated(family, seed):
    """Tokens are the same for any page and pool sizes, in an arena or not, with chunks, overlap, waves and aborts."""
    rng = np.random.default_rng(seed)
    model = tiny_model(family)
    page_size = int(rng.choice([1, 2, 4, 8]))
    manager = sizes_of(model_layout(model), int(rng.integers(64, 200)))
    if rng.random() < 0.5:
        counted = KVCacheManager(model_layout(model), **manager, page_size=page_size, storage=False)
        manager = {
            "num_bytes": int(counted.total_bytes * 1.2),
            "pool_layout": "unified",
            "eager": bool(rng.integers(2)),
        }
    manager |= {"page_size": page_size, "state_interval": int(rng.choice([4, 8, 16]))}
    manager["prefix_cache"] = bool(rng.random() < 0.8)
    scheduler = {"chunk_tokens": int(rng.integers(2, 40)), "overlap": bool(rng.integers(2))}
    aborts = {int(place): int(rng.integers(1, 12)) for place in rng.choice(len(ASKED), 2, replace=False)}
    run = Run(model, manager, scheduler, aborts)
    cut = int(rng.integers(1, len(ASKED)))
    run.serve(ASKED[:cut], ASKED[cut:]).check(references(family))
