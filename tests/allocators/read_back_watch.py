"""Fails whatever reads from a device, or waits for it."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

# Operators whose result, or its shape, the host has to learn from the device.
READS = {
    aten._local_scalar_dense,
    aten.equal,
    aten.is_nonzero,
    aten.nonzero,
    aten.nonzero_numpy,
    aten.masked_select,
    aten._unique,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
}
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._unsafe_index, aten._index_put_impl_}
COPIES = {aten._to_copy, aten.copy_, aten.copy, aten.to}


class ReadBack(AssertionError):
    """The host has waited for the device."""


class NoReadBack(TorchDispatchMode):
    """Raises `ReadBack` for every operator that reads from a device or waits for it.

    On the CPU it sees operators only. The `meta` device is the stricter witness: it has shapes but no data, so torch
    itself refuses to copy from it, and a copy to it that waits shows here.
    """

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # nothing is compiled here, and torch need not import its compiler for that

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """One operator."""
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if packet in READS or (packet is aten.repeat_interleave and kwargs.get("output_size") is None):
            raise ReadBack(str(func))
        if packet in INDEXED and any(index.dtype in {torch.bool, torch.uint8} for index in _tensors(args[1])):
            raise ReadBack(f"{func} by a mask")
        out = func(*args, **kwargs)
        if packet in COPIES and self._waits(packet, args, kwargs, out):
            raise ReadBack(f"{func} from {[source.device for source in _tensors(args)]} to {out.device}")
        return out

    def _waits(self, packet, args, kwargs, out):
        source = args[1] if packet in {aten.copy_, aten.copy} else args[0]
        flag = kwargs.get("non_blocking", args[2] if packet in {aten.copy_, aten.copy} and len(args) > 2 else False)
        return source.device != out.device and (out.is_cpu or not flag)


class SmallResults(TorchDispatchMode):
    """Raises for every operator that makes a new tensor longer than `limit`. Views and writes in place pass."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # as above

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """One operator."""
        out = func(*args, **(kwargs or {}))
        is_new = all(result.alias_info is None for result in func._schema.returns)
        for tensor in _tensors(out if isinstance(out, tuple | list) else [out]):
            assert not is_new or tensor.numel() <= self.limit, f"{func} made {tensor.numel()} elements"
        return out


def _tensors(values):
    return [value for value in values if isinstance(value, torch.Tensor)]


class NoWait:
    """On a GPU torch itself says what waits; elsewhere `NoReadBack` does."""

    def __init__(self, device):
        self.device = torch.device(device)

    def __enter__(self):
        if self.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        self.mode = NoReadBack()
        self.mode.__enter__()

    def __exit__(self, *error):
        self.mode.__exit__(*error)
        if self.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


DEVICES = [
    "cpu",
    "meta",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")),
]
