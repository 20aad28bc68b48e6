"""The smallest model that has a cache, for tests that need one of known size."""

from kvstead.engine import KVCacheManager
from kvstead.model import ModelLayout

VOCABULARY = 5
TOKEN_BYTES = 32


def tiny_layout() -> ModelLayout:
    """Two layers of one head: `TOKEN_BYTES` a token."""
    return ModelLayout.from_config(
        {
            "model_type": "llama",
            "num_hidden_layers": 2,
            "hidden_size": 8,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 4,
            "vocab_size": VOCABULARY,
            "intermediate_size": 8,
        },
        name="tiny",
    )


def tiny_manager(num_slots, page_size=1, **options) -> KVCacheManager:
    """A manager of so many slots that keeps books only."""
    options = {"max_requests": 16, "max_length": 512, "storage": False, **options}
    return KVCacheManager(tiny_layout(), num_slots=num_slots, page_size=page_size, **options)
