"""Types of NumPy arrays that signatures name; docstrings give their shapes and units."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
