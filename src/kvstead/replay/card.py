"""Whether a model and its cache fit the GPUs that a replay is timed on."""

from __future__ import annotations

from dataclasses import dataclass

from kvstead.errors import InvalidSize
from kvstead.model.weight_precision import WeightPrecision
from kvstead.replay.gpus import Gpu


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Bytes of one GPU: its share of the weights, its cache, what an engine keeps besides, and what the GPU has.

    weight_dtype: of the quantised weights, or of all. bytes_per_weight: the mean over all.
    """

    gpu: str
    weight_dtype: str
    bytes_per_weight: float
    weights_bytes: int
    cache_bytes: int
    overhead_bytes: int
    card_bytes: int

    @property
    def fits(self) -> bool:
        """Whether all of it fits."""
        return self.weights_bytes + self.cache_bytes + self.overhead_bytes <= self.card_bytes

    def require_fit(self) -> None:
        """Raise `InvalidSize` with the arithmetic where it does not."""
        if not self.fits:
            most = self.card_bytes - self.weights_bytes - self.overhead_bytes
            way_out = f"at most {_gib(most)} of cache fit" if most > 0 else "no cache fits"
            raise InvalidSize(
                f"{_gib(self.weights_bytes)} of weights, {_gib(self.cache_bytes)} of cache and "
                f"{_gib(self.overhead_bytes)} for the engine do not fit the {_gib(self.card_bytes)} of one {self.gpu}: "
                f"{way_out}. Use a smaller --memory, more GPUs by --tp, another --gpu, or --force to replay anyway."
            )


def card_memory(
    gpu: Gpu, precision: WeightPrecision, *, num_weights: float, cache_bytes: int, overhead_bytes: int
) -> CardMemory:
    """The memory of one GPU, which has `num_weights` of the model's weights."""
    weights_bytes = round(num_weights * precision.bytes_per_weight)
    sizes = weights_bytes, cache_bytes, overhead_bytes, gpu.memory_bytes
    return CardMemory(gpu.name, precision.name, precision.bytes_per_weight, *sizes)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
