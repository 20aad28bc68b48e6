"""Hugging Face models that compute on kvstead's memory, without a line of model code.

    layout = model_layout(model)
    manager = KVCacheManager(layout, 2**30)
    scheduler = Scheduler(manager)
    runner = TransformersRunner(model, manager)
    scheduler.add(Request(1, prompt, max_new_tokens=64))
    while not scheduler.is_idle:
        scheduler.step(runner)

`LLM` does all that from texts to texts. How it fits together: the runner turns a step into forward passes
(`forward_plan`). A pass gets a cache over the manager's pools (`pooled_cache`) and an attention function for packed
requests (`attention`). `families` says which models run, and how; `checkpoint` loads them. Needs the extra `hf`.
"""

from kvstead.integrations.transformers.answers import Completion, FinishReason, Piece
from kvstead.integrations.transformers.checkpoint import Checkpoint, load_checkpoint
from kvstead.integrations.transformers.families import FAMILIES, REFUSED, Way
from kvstead.integrations.transformers.layout import model_layout
from kvstead.integrations.transformers.llm import LLM
from kvstead.integrations.transformers.runner import TransformersRunner, greedy
from kvstead.integrations.transformers.sampling import SamplingParams

__all__ = [
    "FAMILIES",
    "LLM",
    "REFUSED",
    "Checkpoint",
    "Completion",
    "FinishReason",
    "Piece",
    "SamplingParams",
    "TransformersRunner",
    "Way",
    "greedy",
    "load_checkpoint",
    "model_layout",
]
