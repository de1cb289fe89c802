"""Rows in Arrow, which this process stages without Spark (rows.py)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
from epochlake.jobs.gate.arrow_conform import conform_arrow, conform_arrow_keys
from epochlake.jobs.gate.batches import Count, count_of
from epochlake.jobs.gate.row_digests import RowDigest
from epochlake.jobs.replicas.encoding import ROW_DIGEST
from epochlake.jobs.replicas.intervals import merged
from epochlake.jobs.replicas.schema import DELETED
from epochlake.jobs.replicas.staging import Announce, StagedFile, stage_here
from epochlake.jobs.replicas.staging_plan import StagingPlan
from epochlake.metastore.metadata.model import Table
from epochlake.placement.column_hashing import hashes_of
from epochlake.placement.tokens import TOKEN, Interval
from numpy.typing import NDArray


class ArrowRows:
    """Rows that fit their table, in token order. Of a batch of changes `_deleted` says which are deletes."""

    def __init__(self, rows: pa.Table, tokens: NDArray[np.int64]) -> None:
        self._rows = rows
        self._tokens = tokens

    def stage(
        self, plan: StagingPlan, *, digest: RowDigest | None = None, announce: Announce | None = None
    ) -> list[StagedFile]:
        rows = self._rows.append_column(TOKEN, pa.array(self._tokens))
        if digest is not None:
            rows = rows.append_column(ROW_DIGEST, pa.array(digest.of_arrow(self._rows)))
        return stage_here(plan, rows.to_batches(), digested=digest is not None, announce=announce)

    def counted(self, digest: RowDigest) -> Count:
        return count_of(digest.of_arrow(self._rows))

    def within(self, windows: Collection[Interval]) -> ArrowRows:
        inside = np.zeros(len(self._tokens), dtype=bool)
        for low, high in merged(windows):
            inside |= (self._tokens >= low) & (self._tokens <= high)
        return ArrowRows(self._rows.filter(pa.array(inside)), self._tokens[inside])


def rows_to_write(rows: object, table: Table) -> ArrowRows:
    """The rows of a write. Raises InvalidRequest as `conform_arrow`."""
    return _in_token_order(conform_arrow(rows, table), table)


def rows_to_delete(keys: object, table: Table) -> ArrowRows:
    """The rows of a delete. Raises InvalidRequest as `conform_arrow_keys`."""
    return _in_token_order(conform_arrow_keys(keys, table), table)


def rows_to_change(rows: object, keys: object, table: Table) -> ArrowRows:
    """The rows of a batch of changes: `rows` are inserted or replace others, those with `keys` are deleted.

    Raises InvalidRequest as `conform_arrow` and `conform_arrow_keys`.
    """
    return changes_of(conform_arrow(rows, table), conform_arrow_keys(keys, table), table)


def changes_of(upserts: pa.Table, deletes: pa.Table, table: Table) -> ArrowRows:
    """Rows that fit their table already, as a batch of changes."""
    parts = [
        rows.append_column(DELETED, pa.array(np.full(rows.num_rows, deleted)))
        for rows, deleted in ((upserts, False), (deletes, True))
    ]
    return _in_token_order(pa.concat_tables(parts), table)


def _in_token_order(rows: pa.Table, table: Table) -> ArrowRows:
    tokens = hashes(rows.select(list(table.primary_key)))
    order = np.argsort(tokens, kind="stable")
    return ArrowRows(rows.take(pa.array(order)).combine_chunks(), tokens[order])


def hashes(columns: pa.Table) -> NDArray[np.int64]:
    """The hash of each row of these columns, together: of the columns of a key, the token."""
    hashed = [hashes_of(batch.columns, batch.num_rows) for batch in columns.to_batches()]
    return np.concatenate([np.zeros(0, dtype=np.int64), *hashed])
