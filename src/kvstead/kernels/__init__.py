"""Index arithmetic on arrays: numba kernels for the host, torch and Triton operations for a device.

`host`, `rows`, `windows`, `tokens`, `spans`, `bitmap` and `hot_pages` work on numpy arrays. `device_ops` does the same
in plain torch, and `triton_ops` on CUDA (`device_dispatch` chooses). Each host kernel has a plain twin in the tests.
"""
