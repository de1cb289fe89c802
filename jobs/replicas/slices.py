"""Tasks of a job that has a table's ranges: equal slices of the token space, rounded to the ranges that begin in them.

Whoever plans the job and who does it know the same by the same numbers. Runs on executors: it imports no Spark.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def slice_of(tokens: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Which of `count` equal slices of the token space each token is in; `staging.task_of_token` says it to Spark."""
    unsigned = tokens.view(np.uint64) ^ np.uint64(1 << 63)
    return ((unsigned >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


def tasks_of_slices(lows: NDArray[np.int64], count: int) -> list[tuple[int | None, int]]:
    """For each of `count` slices: the first token in it that begins a range, and the task of the tokens before that.

    A range belongs to the task of the slice that it begins in, so tokens from that first one on are the slice's own.
    """
    own = slice_of(lows, count)
    first = np.searchsorted(own, np.arange(count))
    return [
        (int(lows[at]) if at < len(lows) and own[at] == number else None, int(own[max(at - 1, 0)]))
        for number, at in enumerate(first.tolist())
    ]
