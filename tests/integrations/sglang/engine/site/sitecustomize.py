"""Runs first in every process of an engine, in those that SGLang spawns too: stands in for packages that need a GPU."""

import os

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"  # these two are read while SGLang is imported
os.environ["SGLANG_RUST_BUILD_MODE"] = "never"

from absent_packages import stand_in

stand_in(("compressed_tensors", "sgl_kernel", "torchvision", "tvm_ffi", "xgrammar"))
