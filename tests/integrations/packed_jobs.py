"""Requests of one forward pass, and what each of their tokens sees, by the definition."""

import numpy as np
import torch

from kvstead.integrations.transformers.forward_plan import Jobs

CPU = torch.device("cpu")


def jobs_of(pairs):
    """Jobs on rows 1, 2, ..., given as (start, new tokens) each, in the order in which they are packed."""
    starts = np.array([start for start, _ in pairs], dtype=np.int64)
    jobs = Jobs(np.arange(1, len(pairs) + 1), starts, starts + np.array([new for _, new in pairs]))
    return jobs.take(jobs.order())


def seen_from(position, window):
    """The positions that a token sees, by the definition."""
    return [at for at in range(position + 1) if window is None or _sees(position, at, window)]


def _sees(position, at, window):
    return position // window.span == at // window.span if window.is_chunked else position - at < window.span
