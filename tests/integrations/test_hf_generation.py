"""Every family generates on kvstead's memory what it generates alone, in every use of that memory."""

import pytest
from hf_memory_uses import hold, modes_of

from kvstead.integrations.transformers import FAMILIES

# Windows, sinks, latents, chunks, and three forms of state: what differs between families.
_SOME = ("llama", "gemma3_text", "gpt_oss", "deepseek_v3", "llama4_text", "qwen3_next", "falcon_h1", "lfm2")
_CASES = [
    pytest.param(family, mode, marks=() if family in _SOME else pytest.mark.models)
    for family in FAMILIES
    for mode in modes_of(family)
]


@pytest.mark.parametrize(("family", "mode"), _CASES)
def test_a_family_generates_as_it_does_alone(family, mode):
    """Tokens are those of `generate`, logits within the tolerance."""
    hold(family, mode)
