"""Hugging Face models on kvstead's memory. Needs the extra `hf`.

Requests of one forward pass attend in `groups`, by the `plan` of the pass, through an `attention` function that
transformers knows by name.
"""
