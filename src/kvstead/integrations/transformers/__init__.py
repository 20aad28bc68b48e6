"""Hugging Face models on kvstead's memory. Needs the extra `hf`.

Requests of one forward pass attend in `groups`, by the `plan` of the pass, through an `attention` function that
transformers knows by name. `families` says which models run, and how.
"""

from kvstead.integrations.transformers.families import FAMILIES, REFUSED, Way
from kvstead.integrations.transformers.layout import model_layout

__all__ = ["FAMILIES", "REFUSED", "Way", "model_layout"]
