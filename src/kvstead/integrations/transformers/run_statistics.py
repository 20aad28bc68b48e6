"""What an `LLM` has done so far, in figures."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvstead.engine import KVCacheManager, Request
from kvstead.engine.meter import MemoryMeter, bytes_by_kind

_MOST_MESSAGES = 20


class RunStatistics:
    """Sums over all steps, in O(1) a step.

    ended: requests by how they ended. wall_s, model_s: seconds in steps, and the part of them in the model.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self.meter = MemoryMeter(manager)
        self.num_requests = self.num_steps = 0
        self.ended: Counter[str] = Counter()
        self.prompt_tokens = self.hit_tokens = self.output_tokens = 0
        self.wall_s = self.model_s = 0.0
        self.rejections: list[str] = []
        self._manager = manager

    def start(self, request: Request) -> None:
        """Count a request's first token, and how much of its prompt was cached."""
        self.prompt_tokens += request.prompt.size
        self.hit_tokens += request.num_cached

    def reject(self, request_id: int, reason: str) -> None:
        """Keep why a request was rejected, for the first twenty."""
        if len(self.rejections) < _MOST_MESSAGES:
            self.rejections.append(f"request {request_id}: {reason}")

    def summary(self, num_retractions: int) -> dict[str, Any]:
        """The part of `LLM.summary` that is counted here."""
        by_side = self.meter.mean_by_side()
        by_kind = bytes_by_kind(self._manager.layout, by_side)
        return {
            "requests": {
                "total": self.num_requests,
                "finished": self.ended["stop"] + self.ended["length"],
                "rejected": self.ended["rejected"],
                "retracted": num_retractions,
                "aborted": self.ended["aborted"],
            },
            "prefix": {
                "hit_tokens": self.hit_tokens,
                "prompt_tokens": self.prompt_tokens,
                "hit_rate": self.hit_tokens / self.prompt_tokens if self.prompt_tokens else None,
            },
            "memory": {
                "total_bytes": self._manager.total_bytes,
                "peak_bytes": self.meter.peak_bytes,
                "mean_bytes": sum(by_kind.values()),
                "by_state": self.meter.mean_by_state(by_side),
                "by_kind": by_kind,
                "by_side": by_side,
            },
            "output_tokens": self.output_tokens,
            "throughput_tok_s": self.output_tokens / self.wall_s if self.wall_s else 0.0,
            "steps": self.num_steps,
            "wall_s": self.wall_s,
            "model_s": self.model_s,
            "outside_model_share": 1 - self.model_s / self.wall_s if self.wall_s else 0.0,
            "rejections": list(self.rejections),
        }
