"""Rows of a DataFrame into a table, by the gate: tasks store what they have in token order, the driver writes it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.datasource.errors import as_spark_says
from epochlake.jobs.datasource.options import WriteOptions
from epochlake.jobs.exchange.filters import parse_condition
from epochlake.jobs.gate.fitting import require_fitting_columns
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.merge import overwrite_by, require_overwritable
from epochlake.jobs.gate.spark_types import type_text
from epochlake.jobs.gate.spilled_rows import NewSpilledRows, Spill, SpilledRows, forget_spills, spill
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage import places
from epochlake.placement.consistency import ConsistencyLevel, require_local
from epochlake.placement.errors import InvalidRequest
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


class Spilled(WriterCommitMessage):
    """What a task has stored, at which place, and the table that it was made for."""

    def __init__(self, place: str, table: Table, spills: list[Spill]) -> None:
        self.place = place
        self.table = table
        self.spills = spills


class _Writing:
    """What all kinds of writers do: tasks spill, and one process writes all of it as one write of the gate."""

    overwrites = False

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        with as_spark_says(), options.open() as cluster:
            metadata = cluster.catch_up()
            self._table = metadata.table(options.table)
            metadata.require_datacenter(options.datacenter)
            if options.consistency is not None:
                require_local(ConsistencyLevel.parse(options.consistency), options.datacenter)
            try:
                _require_fitting(self._table, schema, deleted=options.deletes)
            except InvalidRequest as misfit:
                if options.settings is not None:  # an INSERT into a view, whose columns are those of then
                    misfit.hint += "; if the table was altered since, call epochlake.attach again"
                raise
            if options.deletes and self._table.append_only:
                raise InvalidRequest(f"table {options.table} is append-only: its rows cannot be deleted")
            self._storage = cluster.storage
            self._place = places.join(cluster.root.spills, uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of a task."""
        context = TaskContext.get()
        name = f"{context.partitionId()}-{context.attemptNumber()}" if context else "0"
        name += f"-{uuid.uuid4().hex[:8]}"  # a second try at the same time has files of its own
        with as_spark_says():
            self._storage.create_directory(self._place, parents=True)
            spills = spill(
                self._storage,
                self._place,
                name,
                self._table,
                iterator,
                deleted=self._options.deletes,
                changes=self.overwrites,
            )
        return Spilled(self._place, self._table, spills)

    def _land(self, messages: list[WriterCommitMessage | None], batch: str | None) -> None:
        # Spark makes another writer to commit a micro-batch: tasks say themselves what they have written, and where.
        told = [message for message in messages if isinstance(message, Spilled)]
        made_for = told[0].table if told else self._table
        spills = [one for message in told for one in message.spills]
        try:
            with as_spark_says(), self._options.open() as cluster, cluster.gate(self._options.datacenter) as gate:
                self._write(gate, self._same_table(gate, made_for), spills, batch)
        finally:
            self._forget(messages)

    def _forget(self, messages: list[WriterCommitMessage | None]) -> None:
        for place in {self._place, *(message.place for message in messages if isinstance(message, Spilled))}:
            forget_spills(self._storage, place)

    def _write(self, gate: Gate, table: Table, spills: list[Spill], batch: str | None) -> None:
        rows = SpilledRows(self._storage, spills)
        gate.write(rows, table, self._options.consistency, batch, deleted=self._options.deletes)

    def _same_table(self, gate: Gate, made_for: Table) -> Table:
        # By its id: its keyspace may have got another name since the write began.
        now = gate.planning.metadata.schema.tables.get(made_for.table_id)
        if now is None:
            gate.planning.table(self._options.table)  # says that there is none
            raise InvalidRequest(f"table {self._options.table} was dropped and made anew since the write began")
        # Rows that were made for other columns than those of now stay what they are: files say which ones they have.
        return made_for if now.version != made_for.version else now


class TableWriter(_Writing, DataSourceArrowWriter):
    """`df.write`: one write, which lands as a whole or not at all."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write what all tasks have stored."""
        self._land(messages, self._options.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was written: delete what was stored."""
        self._forget(messages)


class OverwritingWriter(TableWriter):
    """`df.write.mode("overwrite")`: these rows in the place of all others, or of those of a part, as one write."""

    overwrites = True

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        with as_spark_says():
            require_overwritable(self._table)
            self._where()

    def _write(self, gate: Gate, table: Table, spills: list[Spill], batch: str | None) -> None:
        new = NewSpilledRows(self._storage, self._place, spills, table)
        overwrite_by(gate, table, new, self._where(), self._options.consistency, batch)

    def _where(self) -> pc.Expression | None:
        text = self._options.replace_where
        return None if text is None else parse_condition(text, self._table)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream`: each micro-batch is a named batch, so one that comes again after a restart lands once."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Write a micro-batch."""
        self._land(messages, f"{self._options.batch}/{batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing was written: delete what was stored."""
        self._forget(messages)


def _require_fitting(table: Table, schema: StructType, *, deleted: bool) -> None:
    """Before any task runs: the types of the columns. Values are looked at by the tasks."""
    columns = [column for column in table.columns if not deleted or column.name in table.primary_key]
    given = [(field.name, type_text(field.dataType)) for field in schema.fields]
    if deleted:
        given = [one for one in given if one[0] in table.primary_key]
    require_fitting_columns(table, columns, given)
