"""Triton's kernels, through its interpreter, and on the GPU where there is one."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from kvstead.kernels import device_dispatch, device_ops
from paths import ROOT

PEERS = ROOT / ".venv" / "peers" / "bin" / "python"  # has Triton, which is too large (1 GB) to ask of every developer


def run_on_triton(script, *arguments, **settings):
    """What a script prints in an interpreter that has Triton."""
    python = sys.executable if find_spec("triton") else PEERS
    if not os.access(python, os.X_OK):
        pytest.skip("Triton is installed neither here nor in the interpreter of the peers (benchmarks/peers.py)")
    paths = [ROOT / "src", ROOT / "tests" / "allocators"]
    done = subprocess.run(  # noqa: S603
        [python, str(ROOT / "tests" / "kernels" / script), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def compare(num_rounds, **settings):
    """Compare Triton's kernels with torch's."""
    assert run_on_triton("triton_twin.py", str(num_rounds), **settings).endswith("equal\n")


def test_triton_gives_the_answers_of_torch():
    """In Triton's interpreter every kernel gives torch's answer, and an allocator on them the host's."""
    compare(2, TRITON_INTERPRET="1")


@pytest.mark.soak
def test_triton_gives_the_answers_of_torch_for_long():
    """The same holds over many rounds."""
    compare(100, TRITON_INTERPRET="1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_triton_gives_the_answers_of_torch_on_a_gpu():
    """The same holds for compiled kernels."""
    compare(30, TRITON_INTERPRET="0")


@pytest.mark.soak
@pytest.mark.parametrize("index", ["i32", "i64"])
def test_every_kernel_compiles_for_a_gpu(index, tmp_path):
    """The interpreter takes what no compiler would, so each kernel is compiled, for a GPU that need not be there."""
    said = run_on_triton("triton_compile.py", index, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert said.startswith("8 kernels")


def test_triton_is_for_cuda_only():
    """A CPU and devices of other makers get plain torch, also where Triton is installed."""
    for device in ("cpu", "meta", "xpu"):
        assert device_dispatch.ops_for(torch.device(device)) is device_ops


@pytest.mark.parametrize("is_there", [False, True])
def test_cuda_gets_triton_where_it_is_installed(monkeypatch, is_there):
    """A CUDA device without Triton works on plain torch."""
    monkeypatch.setattr(device_dispatch, "find_spec", lambda _name: object() if is_there else None)
    monkeypatch.setattr(device_dispatch, "import_module", lambda name: name)
    chosen = device_dispatch.ops_for(torch.device("cuda"))
    assert chosen == ("kvstead.kernels.triton_ops" if is_there else device_ops)
