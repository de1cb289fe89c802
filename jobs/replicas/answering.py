"""DataFrames of what a read asks for: some columns, the rows of a filter, the rows of some keys.

Spark's own scan does not know of other versions of a key, so which rows count has to be told to it, and each file is
opened twice. Here it is known which columns and rows are wanted. So tasks read the rows of sections themselves, once,
as this process would (scanning.py), and nothing else crosses from Python to Spark. What needs neither a merge nor a
filter of Arrow is left to Spark's scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from epochlake.jobs.replicas.reading import (
    ReadPlan,
    columns_named,
    frame_of,
    frames_alone,
    is_told_here,
    numbered,
    read_plan,
)
from epochlake.jobs.replicas.scanning import Asked, scan_slices
from epochlake.jobs.replicas.schema import spark_ddl
from epochlake.jobs.replicas.sections import TASK_ROWS, Run, Task, tasks
from epochlake.jobs.replicas.shuffles import shuffle_tasks
from epochlake.metastore.metadata.model import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEAST_TASK_ROWS = 1 << 18
"""Fewer rows are not worth a task of their own, however many cores there are."""


def read_asked(spark: SparkSession, table: Table, plan: ReadPlan, asked: Asked) -> DataFrame:
    """The rows of a plan that are asked for, with exactly the columns that are asked for.

    The same rows as `reading.read_plan` shows, and as lazy. Filters on it reach files whose rows need no merge, and
    those only where no filter and no keys were asked for.
    """
    columns = columns_named(table, asked.schema.names)
    everything = asked.where is None and asked.keys is None
    if everything and is_told_here(plan):
        return read_plan(spark, table, plan, asked.schema.names)
    if everything:
        frames, groups = frames_alone(spark, table, plan, asked.schema.names), list(plan.sections)
    else:
        frames, groups = [], [*((run,) for run in plan.alone), *plan.sections]
    work = tasks(groups, _task_rows(spark, groups))
    if work:
        answer = partial(_answer, asked, work)
        frames.append(numbered(spark, len(work)).mapInArrow(answer, spark_ddl(columns)))
    return frame_of(spark, columns, frames)


def _answer(asked: Asked, work: Sequence[Task], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: numbers of tasks in, their rows out. Raises as `scan_slices`."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from scan_slices(work[number], asked)


def _task_rows(spark: SparkSession, groups: Sequence[Sequence[Run]]) -> int:
    """About as many rows in a task that each of Spark's partitions has one."""
    rows = sum({run.name: run.copy.file.rows for group in groups for run in group}.values())
    count = shuffle_tasks(spark)
    return min(max(rows // count, LEAST_TASK_ROWS), TASK_ROWS)
