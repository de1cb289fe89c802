"""Rows in Arrow, which this process stages without Spark (rows.py)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
from epochlake.jobs.gate.arrow_conform import conform_arrow, conform_arrow_keys
from epochlake.jobs.gate.batches import Count
from epochlake.jobs.replicas.encoding import ROW_DIGEST
from epochlake.jobs.replicas.intervals import merged
from epochlake.jobs.replicas.schema import DELETED
from epochlake.jobs.replicas.staging import Announce, StagedFile, digested_columns, stage_here, wrapped
from epochlake.jobs.replicas.staging_plan import StagingPlan
from epochlake.metastore.metadata.model import Table
from epochlake.placement.column_hashing import hashes_of
from epochlake.placement.tokens import TOKEN, Interval
from numpy.typing import NDArray


class ArrowRows:
    """Rows that fit their table, in token order. Of a batch of changes `_deleted` says which are deletes."""

    def __init__(self, rows: pa.Table, tokens: NDArray[np.int64], table: Table) -> None:
        self._rows = rows
        self._tokens = tokens
        self._table = table

    def stage(self, plan: StagingPlan, *, digested: bool = False, announce: Announce | None = None) -> list[StagedFile]:
        rows = self._rows.append_column(TOKEN, pa.array(self._tokens))
        if digested:
            rows = rows.append_column(ROW_DIGEST, pa.array(self._digests()))
        return stage_here(plan, rows.to_batches(), digested=digested, announce=announce)

    def counted(self) -> Count:
        return Count(self._rows.num_rows, wrapped(int(self._digests().sum(dtype=np.int64))))

    def within(self, windows: Collection[Interval]) -> ArrowRows:
        inside = np.zeros(len(self._tokens), dtype=bool)
        for low, high in merged(windows):
            inside |= (self._tokens >= low) & (self._tokens <= high)
        return ArrowRows(self._rows.filter(pa.array(inside)), self._tokens[inside], self._table)

    def _digests(self) -> NDArray[np.int64]:
        """What `staging.row_digest` has Spark compute of each row."""
        return hashes(self._rows.select(digested_columns(self._table, self._rows.column_names)))


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
    return ArrowRows(rows.take(pa.array(order)).combine_chunks(), tokens[order], table)


def hashes(columns: pa.Table) -> NDArray[np.int64]:
    """The hash of each row of these columns, together: of the columns of a key, the token."""
    hashed = [hashes_of(batch.columns, batch.num_rows) for batch in columns.to_batches()]
    return np.concatenate([np.zeros(0, dtype=np.int64), *hashed])
