"""The numpy arrays that kernels and tables are made of."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]  # slots, pages, lengths
TagArray: TypeAlias = NDArray[np.int32]  # owner tags
StateArray: TypeAlias = NDArray[np.uint8]  # page states
WordArray: TypeAlias = NDArray[np.uint64]  # bitmap words
