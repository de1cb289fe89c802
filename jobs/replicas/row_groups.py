"""Where row groups end: where tablets will part, so that who cuts a file there need not look into any of them.

A tablet has all tokens that begin with the same bits. So of two tokens it is known, without asking how many tablets
there are, which boundary between them any split comes to first: the one with most zero bits behind it
(docs/decisions/055-row-groups-are-copied.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from epochlake.placement.tokens import MIN_TOKEN, TOKEN
from numpy.typing import NDArray

ROW_GROUP_ROWS = 1 << 17
ROW_GROUP_BYTES = 64 << 20
"""A row group has at most so many rows, and about so many bytes of Arrow memory."""

LEAST_PART = 8
"""A row group ends early, for the sake of a boundary, only when it has at least this part of what it may have."""


class RowGroups:
    """Collects rows of one file, in token order, and gives them out as row groups. Memory: those of two row groups."""

    def __init__(self) -> None:
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._given = False

    def take(self, rows: pa.RecordBatch) -> Iterator[pa.Table]:
        """The row groups that are complete with these rows. Each has a row at least."""
        for start in range(0, rows.num_rows, ROW_GROUP_ROWS):
            self._keep(rows.slice(start, ROW_GROUP_ROWS))
            while self._rows > ROW_GROUP_ROWS or self._bytes > ROW_GROUP_BYTES:
                most = self._worth(ROW_GROUP_ROWS, ROW_GROUP_BYTES)
                if most >= self._rows:
                    yield self._first(self._rows)
                    break
                yield self._first(end_of_group(self._tokens(), -(-most // LEAST_PART), most))

    def rest(self) -> Iterator[pa.Table]:
        """What is left: nothing, a row group, or the two halves of a file that would have only one."""
        if not self._rows:
            return
        least = self._worth(max(1, ROW_GROUP_ROWS // LEAST_PART), ROW_GROUP_BYTES // LEAST_PART)
        if not self._given and self._rows >= 2 * least:
            tokens = self._tokens()
            if tokens[least - 1] != tokens[-least]:
                yield self._first(end_of_group(tokens, least, self._rows - least))
        yield self._first(self._rows)
        self._given = False

    def _keep(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes

    def _worth(self, rows: int, size: int) -> int:
        """So many of the rows that wait are `rows` rows or `size` bytes, whichever is less."""
        return max(1, min(rows, self._rows * size // self._bytes if self._bytes else rows))

    def _tokens(self) -> NDArray[np.int64]:
        return np.concatenate([batch.column(TOKEN).to_numpy() for batch in self._waiting])

    def _first(self, count: int) -> pa.Table:
        """Take so many rows out."""
        rows = pa.Table.from_batches(self._waiting)
        self._waiting, self._rows, self._bytes = [], 0, 0
        for batch in rows.slice(count).to_batches():
            self._keep(batch)
        self._given = True
        return rows.slice(0, count)


def in_row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows of one file, in token order, as its row groups."""
    groups = RowGroups()
    for batch in batches:
        yield from groups.take(batch)
    yield from groups.rest()


def end_of_group(tokens: NDArray[np.int64], least: int, most: int) -> int:
    """How many of these rows the first row group should have: from `least` to `most`, which is fewer than there are.

    `tokens`: int64 array of shape (rows,), ascending. Rows with one token are parted only where all of these are.
    """
    low, high = int(tokens[least - 1]), int(tokens[most])
    if low == high:
        return most
    return int(np.searchsorted(tokens, first_boundary(low, high)))


def first_boundary(low: int, high: int) -> int:
    """The first token of the upper half where a split first parts `low` from `high`, which is greater."""
    above, below = high - MIN_TOKEN, low - MIN_TOKEN
    zeros = (above ^ below).bit_length() - 1
    return (above >> zeros << zeros) + MIN_TOKEN
