"""Replay: traces, how long a step takes, and what-if runs over the real allocators."""
