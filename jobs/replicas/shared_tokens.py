"""Which rows of several runs may have a key in common, found without sorting all of their rows together.

Runs have their rows in token order. Most of what a read merges are a few long runs beside each other, as compaction
makes them, and short ones across all of them, as writes do. A token of the short ones is searched for in the long ones,
and keys are compared of the rows that were found: that takes less than sorting all of them, if not much less where
tokens are all that is compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64] | slice
"""Of rows of a run, ascending; a slice stands for all of them."""

ALL = slice(None)

LONG_TO_SHORT = 4
"""Where the long runs have not so many times the rows of the others, sorting all of them together takes no longer."""

MOST_LONG = 64
"""So many long runs at most are beside each other: finding that out takes the square of it."""


def shared_rows(runs: Sequence[NDArray[np.int64]]) -> list[Numbers]:
    """For each run, given by the tokens of its rows: all rows whose token any other row has, of whichever run.

    There may be others among them: all rows of a run that is short, and all of all runs where looking for those rows
    would not pay, or where a run is not in token order.
    """
    every: list[Numbers] = [ALL] * len(runs)
    if not all((tokens[1:] >= tokens[:-1]).all() for tokens in runs):
        return every
    long = _beside_each_other(runs)
    short = [tokens for number, tokens in enumerate(runs) if number not in long]
    if sum(map(len, short)) * LONG_TO_SHORT > sum(len(runs[number]) for number in long):
        return every
    # Runs that are sorted, one after the other, are sorted at once. (`np.unique` would hash them, which takes long.)
    wanted = np.sort(np.concatenate([np.zeros(0, np.int64), *short]), kind="stable")
    for number in long:
        every[number] = _shared_of(runs[number], wanted)
    return every


def _beside_each_other(runs: Sequence[NDArray[np.int64]]) -> set[int]:
    """The numbers of long runs no two of which have tokens between each other's: the longest, and so on."""
    found: set[int] = set()
    for number in sorted(range(len(runs)), key=lambda number: -len(runs[number])):
        tokens = runs[number]
        if len(found) == MOST_LONG or not len(tokens):
            break
        if all(tokens[-1] < runs[other][0] or runs[other][-1] < tokens[0] for other in found):
            found.add(number)
    return found


def _shared_of(tokens: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of rows with a wanted token, and of those that have one token; both arrays ascend."""
    near = wanted[np.searchsorted(wanted, tokens[0]) : np.searchsorted(wanted, tokens[-1], side="right")]
    places = np.searchsorted(tokens, near)  # within the run, since no token looked for is above its last one
    shared = np.zeros(len(tokens), dtype=bool)
    shared[places[tokens[places] == near]] = True
    # Of rows with one token a search finds the first: the others are found beside it.
    same = tokens[1:] == tokens[:-1]
    shared[1:] |= same
    shared[:-1] |= same
    return np.flatnonzero(shared)
