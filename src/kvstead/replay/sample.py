"""The bundled sample: five minutes of chat that need about twice the 32,768 tokens of llama-3.1-8b in 4 GiB.

A replay there shows reuse, eviction of prefixes that come back, and, in the bursts, retraction.
"""

from __future__ import annotations

from pathlib import Path

from kvstead.replay.synthetic import make_trace
from kvstead.replay.trace import Trace

SAMPLE_PATH = Path(__file__).parent / "samples" / "chat.jsonl.gz"


def make_sample() -> Trace:
    """Make the trace in `SAMPLE_PATH` again: `write_mooncake(make_sample(), SAMPLE_PATH)` wrote the file."""
    return make_trace(
        seed=1,
        num_sessions=130,
        turns=4.0,
        block_size=16,
        num_system_prompts=4,
        system_tokens=600.0,
        user_tokens=150.0,
        output_tokens=400.0,
        spread=0.8,
        sessions_per_second=0.7,
        burstiness=8.0,
        think_seconds=6.0,
        max_prompt_tokens=8192,
        name=SAMPLE_PATH.name,
    )
