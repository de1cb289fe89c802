"""Arrow arrays from lists and numpy arrays and back, without pandas.

`pa.array` and `to_numpy` import pandas, if it is installed, only to see whether they were given a pandas object. It
takes each process 0.2 to 1 s, and the log and its snapshots are written while the commit lock is held.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from arro3.core import Array

READ = pa.ipc.IpcReadOptions(use_threads=False)
"""For streams of few columns: handing them to Arrow's threads takes longer than what these do."""


def array_of(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """A list as an array of the Arrow type `kind`. Timestamps are given in their unit, as numbers."""
    stored = pa.int64() if pa.types.is_timestamp(kind) else kind
    array = pa.array(Array(values, stored))
    return array if array.type == kind else array.cast(kind)


def array_of_integers(values: np.ndarray) -> pa.Array:
    """A one-dimensional array of integers as an Arrow array of the same width without nulls, not copied."""
    values = np.ascontiguousarray(values)
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], null_count=0)


def written(compression: str) -> pa.ipc.IpcWriteOptions:
    """As `READ`, for writing; the bytes are the same with and without threads."""
    return pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)


def values_of(array: pa.Array) -> np.ndarray:
    """The values of an integer array without nulls, not copied."""
    width = array.type.bit_width // 8
    return np.frombuffer(array.buffers()[1], f"<i{width}", len(array), array.offset * width)
