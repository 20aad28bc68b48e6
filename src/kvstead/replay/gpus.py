"""Published figures of GPUs, for the step cost of a replay."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from kvstead.errors import LayoutError

_TERA = 1e12
_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as its maker publishes it: peaks that no program reaches, so the cost formula scales them down.

    bf16_flops: dense (no sparsity) tensor FLOP/s with float32 accumulation. fp8_flops: the same for fp8, None where the
    hardware has none. bandwidth: bytes/s of its memory. memory_bytes: the figure on the data sheet at 10^9 bytes a GB.
    source: where the figures are published.
    """

    name: str
    bf16_flops: float
    fp8_flops: float | None
    bandwidth: float
    memory_bytes: int
    source: str

    def peak_flops(self, *, fp8: bool) -> float:
        """Peak FLOP/s of matrices in fp8, where the GPU has it, or in bfloat16."""
        return self.fp8_flops if fp8 and self.fp8_flops else self.bf16_flops


def _gpu(name: str, bf16: float, fp8: float | None, bandwidth: float, memory: float, source: str) -> Gpu:
    """Figures in TFLOP/s, TB/s and GB, as data sheets write them."""
    fp8_flops = None if fp8 is None else fp8 * _TERA
    return Gpu(name, bf16 * _TERA, fp8_flops, bandwidth * _TERA, round(memory * _GIGA), source)


# Data sheets print tensor peaks of Hopper, Ada and Blackwell with sparsity; half of that is the dense peak used here.
_GPUS = {
    gpu.name: gpu
    for gpu in (
        # name, bf16 TFLOP/s, fp8 TFLOP/s, TB/s, GB, source
        _gpu("a10", 125, None, 0.600, 24, "NVIDIA A10 data sheet"),
        _gpu("a100-40g", 312, None, 1.555, 40, "NVIDIA A100 data sheet, 40GB SXM"),
        _gpu("a100-80g-pcie", 312, None, 1.935, 80, "NVIDIA A100 data sheet, 80GB PCIe"),
        _gpu("a100-80g-sxm", 312, None, 2.039, 80, "NVIDIA A100 data sheet, 80GB SXM"),
        _gpu("b200", 2250, 4500, 8.0, 180, "NVIDIA DGX B200 data sheet, an eighth of the system"),
        _gpu("h100-nvl", 835, 1671, 3.9, 94, "NVIDIA H100 data sheet, NVL"),
        _gpu("h100-pcie", 756, 1513, 2.0, 80, "NVIDIA H100 data sheet, PCIe"),
        _gpu("h100-sxm", 989, 1979, 3.35, 80, "NVIDIA H100 data sheet, SXM"),
        _gpu("h200", 989, 1979, 4.8, 141, "NVIDIA H200 data sheet, SXM"),
        _gpu("l4", 121, 242, 0.300, 24, "NVIDIA L4 data sheet"),
        _gpu("l40s", 362, 733, 0.864, 48, "NVIDIA L40S data sheet"),
        _gpu("mi300x", 1307.4, 2614.9, 5.3, 192, "AMD Instinct MI300X data sheet"),
        _gpu("mi325x", 1307.4, 2614.9, 6.0, 256, "AMD Instinct MI325X data sheet"),
        _gpu("rtx4090", 165.2, 330.3, 1.008, 24, "NVIDIA Ada GPU architecture white paper, appendix A"),
    )
}

GPU_NAMES = tuple(_GPUS)


def gpu(name: str) -> Gpu:
    """The figures of a named GPU; case does not matter. Raises `LayoutError` for a name that is not in the table."""
    found = _GPUS.get(name.lower())
    if found is None:
        close = difflib.get_close_matches(name.lower(), GPU_NAMES, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        raise LayoutError(f"GPU {name!r} is unknown. {hint}Known are {', '.join(GPU_NAMES)}.")
    return found
