"""Rows in Arrow, which this process stages without Spark (rows.py).

A write of few rows would make a file of a few rows for each of many ranges, and three copies of each. So neighbouring
ranges with the same write replicas share a file until it is worth one. Such a file is cut where the ranges part later
on, like every file of a range that is divided (docs/decisions/051-work-without-spark.md).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
from epochlake.jobs.gate.arrow_conform import conform_arrow, conform_arrow_keys
from epochlake.jobs.gate.batches import Count
from epochlake.jobs.gate.routing import borders_of
from epochlake.jobs.replicas.encoding import RESULT, ROW_DIGEST, Routing, StagingPlan, encode_rows
from epochlake.jobs.replicas.intervals import merged
from epochlake.jobs.replicas.staging import StagedFile, digested_columns, staged_files, wrapped
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.metadata.placements import highs
from epochlake.placement.column_hashing import hashes_of
from epochlake.placement.tokens import TOKEN, Interval, range_label
from msgspec.structs import replace
from numpy.typing import NDArray

SHARED_FILE_BYTES = 1 << 20
"""Neighbouring ranges share a file of up to so many bytes in memory."""


class ArrowRows:
    """Rows that fit their table, in token order. `borders`: first tokens of windows that no file may reach across."""

    def __init__(self, rows: pa.Table, tokens: NDArray[np.int64], table: Table, borders: Collection[int] = ()) -> None:
        self._rows = rows
        self._tokens = tokens
        self._table = table
        self._borders = borders

    def stage(self, plan: StagingPlan, *, digested: bool = False) -> list[StagedFile]:
        rows = self._rows.append_column(TOKEN, pa.array(self._tokens))
        if digested:
            rows = rows.append_column(ROW_DIGEST, pa.array(self._digests()))
        plan = replace(plan, routing=shared_routing(plan.routing, self._rows.nbytes, self._borders))
        told = pa.Table.from_batches(encode_rows(plan, rows.to_batches()), RESULT)
        return staged_files(told, plan, digested=digested)

    def counted(self) -> Count:
        return Count(self._rows.num_rows, wrapped(int(self._digests().sum(dtype=np.int64))))

    def within(self, windows: Collection[Interval]) -> ArrowRows:
        inside = np.zeros(len(self._tokens), dtype=bool)
        for low, high in merged(windows):
            inside |= (self._tokens >= low) & (self._tokens <= high)
        return ArrowRows(self._rows.filter(pa.array(inside)), self._tokens[inside], self._table, borders_of(windows))

    def _digests(self) -> NDArray[np.int64]:
        """What `staging.row_digest` has Spark compute of each row."""
        return hashes(self._rows.select(digested_columns(self._table)))


def rows_to_write(rows: object, table: Table) -> ArrowRows:
    """The rows of a write. Raises InvalidRequest as `conform_arrow`."""
    return _in_token_order(conform_arrow(rows, table), table)


def rows_to_delete(keys: object, table: Table) -> ArrowRows:
    """The rows of a delete. Raises InvalidRequest as `conform_arrow_keys`."""
    return _in_token_order(conform_arrow_keys(keys, table), table)


def shared_routing(routing: Routing, size: int, borders: Collection[int] = ()) -> Routing:
    """The routing with neighbouring ranges as one, where their replicas are the same and rows of `size` bytes are few.

    Ranges come together in groups of a power of two, counted from the first one: then writes of a size use the same
    directories. A range that begins at one of the `borders` is not joined to the one before. While tablets
    are being split nothing is joined.
    """
    if routing.apart:
        return routing
    lows = routing.lows
    files = size // SHARED_FILE_BYTES + 1
    width = 1 << max(len(lows) // files, 1).bit_length() - 1 if files > 1 else len(lows)
    parted = np.arange(len(lows)) % width == 0
    parted[1:] |= routing.route[1:] != routing.route[:-1]
    parted |= np.isin(lows, np.array(sorted(borders), dtype=np.int64))
    first = np.flatnonzero(parted)
    last = np.append(first[1:], len(lows)) - 1
    labels = tuple(
        routing.labels[begin] if begin == end else range_label(low, high)
        for begin, end, low, high in zip(
            first.tolist(), last.tolist(), lows[first].tolist(), highs(lows)[last].tolist(), strict=True
        )
    )
    return Routing(lows[first], labels, routing.routes, routing.route[first])


def _in_token_order(rows: pa.Table, table: Table) -> ArrowRows:
    tokens = hashes(rows.select(list(table.primary_key)))
    order = np.argsort(tokens, kind="stable")
    return ArrowRows(rows.take(pa.array(order)).combine_chunks(), tokens[order], table)


def hashes(columns: pa.Table) -> NDArray[np.int64]:
    """The hash of each row of these columns, together: of the columns of a key, the token."""
    hashed = [hashes_of(batch.columns, batch.num_rows) for batch in columns.to_batches()]
    return np.concatenate([np.zeros(0, dtype=np.int64), *hashed])
