"""Compiles Triton's kernels for a GPU, which need not be there, in an interpreter that has Triton."""

import sys
import warnings

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvstead.kernels import triton_ops

HOPPER = GPUTarget("cuda", 90, 32)
KERNELS = ["_extend", "_decode", "_expand", "_segment", "_mark", "_count", "_gather", "_unmark"]
OWN_TYPES = {"marks_ptr": "*i32", "counts_ptr": "*i32", "ends_ptr": "*i64", "BLOCK": "constexpr"}


def compile_for(kernel, index):
    """Machine code of a kernel whose slots and pages are of type `index`."""
    names = kernel.arg_names
    types = {name: OWN_TYPES.get(name, f"*{index}" if name.endswith("_ptr") else "i32") for name in names}
    source = ASTSource(fn=kernel, signature=types, constexprs={(names.index("BLOCK"),): triton_ops._BLOCK})
    return triton.compile(source, target=HOPPER).asm["cubin"]


def main(index_types):
    warnings.simplefilter("ignore")
    sizes = [len(compile_for(getattr(triton_ops, name), index)) for name in KERNELS for index in index_types]
    print(f"{len(sizes)} kernels of {min(sizes)} bytes at least")  # noqa: T201 - what the caller looks for


if __name__ == "__main__":
    main(sys.argv[1:])
