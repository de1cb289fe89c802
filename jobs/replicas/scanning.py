"""The rows of a read plan as Arrow, read by this process: what Spark would read of it.

Runs that share no token with another one are read as they are. Of sections it is told first which rows do not count
(superseding.py), a slice at a time, so that memory is bounded; any filter may leave rows out after that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from epochlake.jobs.replicas.reading import ReadPlan
from epochlake.jobs.replicas.run_files import Positions, rows_of_run
from epochlake.jobs.replicas.schema import DELETED
from epochlake.jobs.replicas.sections import Run
from epochlake.jobs.replicas.skipping import RowGroups
from epochlake.jobs.replicas.superseding import comparable, judged
from epochlake.placement.tokens import Interval


class Asked(msgspec.Struct, frozen=True, eq=False):
    """What of each row is wanted, and of which rows: the fields of `schema`, where `where` is true, of these `keys`
    only (values in the order of `primary_key`, as `comparable` makes them). `needed`: the columns that `where` reads.
    """

    schema: pa.Schema
    primary_key: tuple[str, ...]
    where: pc.Expression | None = None
    needed: tuple[str, ...] = ()
    keys: Collection[object] | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        keys = self.primary_key if self.keys is not None else ()
        return list(dict.fromkeys([*self.schema.names, *self.needed, *keys]))


def scan(plan: ReadPlan, asked: Asked) -> Iterator[pa.RecordBatch]:
    """The rows of a plan, in no order that means anything.

    Raises StorageUnavailable, which names the file, for one that is missing, torn or has other bytes than were written.
    """
    row_groups = None if asked.where is None else RowGroups(asked.where, asked.needed)
    for run in plan.alone:
        yield from _batches(_rows(run, run.extent, asked, row_groups), asked)
    for piece in (piece for task in plan.tasks for piece in task):
        window = (piece.low, piece.high)
        for run, dead, alive in list(judged(asked.primary_key, piece)):
            if alive:
                yield from _batches(_rows(run, window, asked, row_groups, dead), asked)


def _rows(
    run: Run, window: Interval, asked: Asked, row_groups: RowGroups | None, dead: Positions | None = None
) -> Iterator[pa.Table]:
    """The rows of a run that count: all but those at the positions `dead`; None for what is no delete."""
    deletes = [DELETED] if dead is None and run.copy.file.has_tombstones else []

    def can_match(footer: pq.FileMetaData, group: int) -> bool:
        return row_groups is None or row_groups.can_match(footer, group)

    for rows, positions in rows_of_run(run, window, [*asked.columns, *deletes], _as_stored, can_match):
        if deletes:
            rows = rows.filter(pc.invert(rows.column(DELETED)))
        elif dead is not None and len(dead):
            rows = rows.filter(pa.array(~np.isin(positions, dead, assume_unique=True)))
        yield rows


def _batches(tables: Iterable[pa.Table], asked: Asked) -> Iterator[pa.RecordBatch]:
    for rows in tables:
        if asked.keys is not None:
            rows = rows.filter(pa.array(_are_among(rows.select(list(asked.primary_key)), asked.keys), pa.bool_()))
        if asked.where is not None:
            rows = rows.filter(asked.where)
        if rows.num_rows:
            yield from rows.select(asked.schema.names).cast(asked.schema).combine_chunks().to_batches()


def _are_among(rows: pa.Table, keys: Collection[object]) -> Sequence[bool]:
    return [comparable(row) in keys for row in rows.to_pylist()]


def _as_stored(type_: pa.DataType) -> pa.DataType:
    return type_
