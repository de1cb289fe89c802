"""Rows of a table for Spark: planned at the gate, then read and merged by tasks as all reads are.

Spark plans in a process that ends after it, and the lease with it: what the frame is made of stays for the time that
vacuum leaves to all reads that it does not know of, an hour unless it is told otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import pyarrow as pa
from epochlake.jobs.datasource.errors import as_spark_says
from epochlake.jobs.datasource.given_schema import Given
from epochlake.jobs.datasource.options import ReadOptions
from epochlake.jobs.exchange.filters import parse_condition, parse_keys
from epochlake.jobs.gate.arrow_reading import Question, question, round_damage
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.verified_reading import damage_behind
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.reading import ReadPlan
from epochlake.jobs.replicas.scanning import Asked, scan_slices
from epochlake.jobs.replicas.sections import TASK_ROWS, Task, tasks
from epochlake.metastore.metadata.model import Table, TableId
from epochlake.placement.errors import EpochlakeError
from pyspark.sql.datasource import DataSourceReader, InputPartition

NAME = "spark.read"
"""How operators see these reads."""

LEAST_TASK_ROWS = 1 << 19
"""Fewer rows are not worth a task of their own: to begin and to end one takes Spark as long as reading half of them."""

TASKS = 32
"""In about so many tasks a table is read, however many executors there are: Spark does not say how many."""


class RowsOf(InputPartition):
    """What a task reads, and of which table it is."""

    def __init__(self, task: Task, asked: Asked, table_id: TableId) -> None:
        super().__init__(None)
        self.task = task
        self.asked = asked
        self.table_id = table_id


class TableReader(DataSourceReader):
    """Reads a table at a consistency level, as it is when Spark first plans it.

    Its options `where` and `keys` say which rows are read. It takes no filters of queries, on purpose: Spark 4.2 keeps
    one plan for all queries of a frame or a view, the one with the last filters that it was told, and others would miss
    rows (docs/decisions/056-data-source.md).
    """

    def __init__(self, options: ReadOptions, given: Given) -> None:
        self._options = options
        self._given = given

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks; none where there is no row."""
        options = self._options
        with as_spark_says(), options.open() as cluster, Gate(cluster, NAME, options.datacenter) as gate:

            def planned(table: Table) -> Sequence[InputPartition]:
                self._given.require_columns(table)
                of = asked_of(options, table, self._given.schema.names)
                plan = round_damage(lambda: gate.plan_read(table, options.consistency, of.windows, of.as_of))
                return [RowsOf(task, of.asked, table.table_id) for task in _tasks(plan)]

            return gate.planning.as_it_is(options.table, planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task. What is found damaged by it is noted, so that the next plan goes round it."""
        if type(partition) is InputPartition and partition.value is None:
            return  # Spark's way to say that there were no tasks
        assert isinstance(partition, RowsOf)
        with as_spark_says():
            try:
                yield from scan_slices(partition.task, partition.asked)
            except (EpochlakeError, pa.ArrowException, OSError) as error:
                self._note(error, partition)
                raise

    def _note(self, error: Exception, partition: RowsOf) -> None:
        damaged = damage_behind(error, copies_of(partition.task))
        if damaged:
            # What names the file is what the user has to see, also where the note cannot be made.
            with suppress(EpochlakeError), self._options.open() as cluster:
                cluster.damage.add(partition.table_id, damaged)


def asked_of(options: ReadOptions, table: Table, columns: Iterable[str] | None) -> Question:
    """What the options ask of a table, and these columns of it. Raises InvalidRequest for what cannot be meant."""
    where = None if options.where is None else parse_condition(options.where, table)
    keys = None if options.keys is None else parse_keys(options.keys, table)
    return question(table, columns, where, keys, options.as_of)


def copies_of(task: Task) -> list[ExpectedFile]:
    """The files that a task reads."""
    return list({run.name: run.copy for piece in task for run in piece.runs}.values())


def _tasks(plan: ReadPlan) -> Sequence[Task]:
    groups = [*((run,) for run in plan.alone), *plan.sections]
    rows = sum({run.name: run.copy.file.rows for group in groups for run in group}.values())
    return tasks(groups, min(max(rows // TASKS, LEAST_TASK_ROWS), TASK_ROWS))
