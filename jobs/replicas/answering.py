"""DataFrames of what a read asks for: some columns, the rows of a filter, the rows of some keys.

A filter of Arrow is nothing that Spark understands, and keys are looked for by token. So tasks read the rows
themselves, as this process would (scanning.py), and nothing else crosses from Python to Spark. Which rows of sections
count they are told where that is little, and else find out. What needs neither a filter of Arrow nor, where much is
merged, a task of Python is left to Spark's scan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from epochlake.jobs.replicas.superseding import Told
from epochlake.jobs.replicas.telling import tell_here, words_of_files
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
    told = None if everything else _told_to_tasks(plan, asked)
    frames: list[DataFrame] = []
    groups: list[Sequence[Run]] = list(plan.sections)
    if everything:
        frames = frames_alone(spark, table, plan, asked.schema.names)
    elif told is not None:
        groups = [(run,) for runs in (plan.alone, *plan.sections) for run in runs]
    else:
        groups = [*((run,) for run in plan.alone), *plan.sections]
    work = tasks(groups, _task_rows(spark, groups))
    if work:
        answer = partial(_answer, asked, work, told)
        frames.append(numbered(spark, len(work)).mapInArrow(answer, spark_ddl(columns)))
    return frame_of(spark, columns, frames)


def _told_to_tasks(plan: ReadPlan, asked: Asked) -> dict[str, Told] | None:
    """What is told of files, by name, where that is little, and no filter on keys spares most of it.

    Then tasks merge nothing, whatever is asked next, and what footers say of any column leaves row groups out.
    """
    is_by_key = asked.keys is not None or any(name in asked.primary_key for name in asked.needed)
    if is_by_key or not plan.sections or not is_told_here(plan):
        return None
    told = tell_here(asked.judged_by, plan.tasks)
    rows = {run.name: run.copy.file.rows for section in plan.sections for run in section}
    count: Counter[str] = Counter()
    for one in told:
        count[one.file] += one.count
    words = words_of_files(told, rows)
    return {name: Told(name, 0, rows[name] - 1, of_file, count[name]) for name, of_file in words.items()}


def _answer(
    asked: Asked, work: Sequence[Task], told: Mapping[str, Told] | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: numbers of tasks in, their rows out. Raises as `scan_slices`."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from scan_slices(work[number], asked, told)


def _task_rows(spark: SparkSession, groups: Sequence[Sequence[Run]]) -> int:
    """About as many rows in a task that each of Spark's partitions has one."""
    rows = sum({run.name: run.copy.file.rows for group in groups for run in group}.values())
    count = shuffle_tasks(spark)
    return min(max(rows // count, LEAST_TASK_ROWS), TASK_ROWS)
