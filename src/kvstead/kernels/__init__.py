"""Index arithmetic: `host` (numba on numpy arrays) and `torch_ops` (the plain torch twin of each kernel).

`host` is what the allocators run. `torch_ops` says the same in a few lines of torch: the oracle that the tests hold
`host` to, and the fallback for a device that has no kernels of its own.
"""
