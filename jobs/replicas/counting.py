"""How many rows a read plan has of those that are asked for: the same that a scan of them shows, and nothing is moved.

Of a file that shares no token with another one its metadata say how many rows it has. Of sections tokens and keys are
read, and what a filter needs; each slice by itself, so that several are counted side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from epochlake.jobs.replicas.reading import ReadPlan, numbered
from epochlake.jobs.replicas.scanning import Asked, rows_of_slices
from epochlake.jobs.replicas.sections import Run, Slice, tasks, work_of
from epochlake.jobs.replicas.superseding import different_tokens, judged
from epochlake.jobs.replicas.telling import told_once
from epochlake.jobs.workers.threads import ThreadWorkers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTED_HERE = 1 << 23
"""As much work as reading tokens and keys of so many rows is worth a job of Spark: some seconds of a core."""

COUNTERS = 4
"""Slices that are counted side by side: what reads and sorts them lets other threads go on."""

_COUNT = pa.schema([("count", pa.int64())])


def count_of(plan: ReadPlan, asked: Asked, spark: SparkSession | None = None) -> int:
    """How many rows `scan` has of a plan. With a session its tasks count where that is much work.

    Raises StorageUnavailable, which names the file, for one that is missing, torn or has other bytes than were written.
    """
    known, pieces = _to_count(plan, asked)
    if spark is not None and work_of([pieces]) > COUNTED_HERE:
        work = tasks([*((run,) for run in _alone(pieces)), *plan.sections])
        counted = numbered(spark, len(work)).mapInArrow(partial(_counts, asked, work), "count bigint")
        return known + int(counted.agg({"count": "sum"}).collect()[0][0] or 0)
    return known + sum(ThreadWorkers(COUNTERS).run(partial(_count, asked), pieces))


def _to_count(plan: ReadPlan, asked: Asked) -> tuple[int, tuple[Slice, ...]]:
    """How many rows are known to be asked for, and where the others have to be looked for."""
    is_known = [asked.where is None and asked.keys is None and _is_whole(run) for run in plan.alone]
    known = sum(run.copy.file.rows for run, whole in zip(plan.alone, is_known, strict=True) if whole)
    alone = (Slice(*run.extent, (run,)) for run, whole in zip(plan.alone, is_known, strict=True) if not whole)
    return known, (*alone, *(piece for task in plan.tasks for piece in task))


def _is_whole(run: Run) -> bool:
    return not run.intervals and not run.copy.file.has_tombstones


def _is_all_of(run: Run, piece: Slice) -> bool:
    """Whether all rows of a file take part in a slice."""
    first, last = run.copy.file.extent
    return not run.intervals and piece.low <= first and last <= piece.high


def _alone(pieces: Iterable[Slice]) -> Iterator[Run]:
    return (piece.runs[0] for piece in pieces if len(piece.runs) == 1)


def _counts(
    asked: Asked, work: Sequence[Sequence[Slice]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: numbers of tasks in, their counts out."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            count = sum(_count(asked, piece) for piece in work[number])
            yield pa.RecordBatch.from_pylist([{"count": count}], _COUNT)


def _count(asked: Asked, piece: Slice) -> int:
    if len(piece.runs) > 1 and asked.where is None and asked.keys is None:
        if all(_is_all_of(run, piece) for run in piece.runs):
            told = told_once(asked.judged_by, piece)
            return sum(run.copy.file.rows for run in piece.runs) - sum(one.count for one in told)
        if not asked.judged_by and not any(run.copy.file.has_tombstones for run in piece.runs):
            return different_tokens(piece)
        return sum(int(np.count_nonzero(~one.dead)) for one in judged(asked.judged_by, piece))
    return sum(rows.num_rows for rows in rows_of_slices([piece], asked))
