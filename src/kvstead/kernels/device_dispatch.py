"""Which kernels a device gets."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import cast

import torch

from kvstead.kernels import device_ops


def ops_for(device: torch.device) -> device_ops.DeviceOps:
    """Triton's on a CUDA device, where Triton is installed; plain torch everywhere else."""
    if device.type == "cuda" and find_spec("triton") is not None:
        return cast("device_ops.DeviceOps", import_module("kvstead.kernels.triton_ops"))
    return device_ops
