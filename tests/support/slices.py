"""Which of many cases a run of the tests takes: all with EPOCHLAKE_TESTS_THOROUGH (`make prove`), else a slice."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from typing import Any

THOROUGH = bool(os.environ.get("EPOCHLAKE_TESTS_THOROUGH"))


def slice_of(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Cases of several axes: each value of each axis at least once, and beside different ones of the others."""
    if THOROUGH:
        return list(product(*axes))
    longest = max(len(axis) for axis in axes)
    # Another step for each round of an axis, so that values that share a divisor of the lengths meet others too.
    return [tuple(axis[(n + n // len(axis) * i) % len(axis)] for i, axis in enumerate(axes)) for n in range(longest)]


def some(thorough: int, otherwise: int) -> int:
    """How often something is tried."""
    return thorough if THOROUGH else otherwise
