"""The data source itself: what Spark makes for `format("epochlake")`."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import cached_property

from epochlake.jobs.datasource.change_reading import CHANGE_DDL, CHANGE_TYPE, ChangeReader, ChangeStreamReader
from epochlake.jobs.datasource.errors import EpochlakeSparkError, as_spark_says, is_worker
from epochlake.jobs.datasource.given_schema import Given
from epochlake.jobs.datasource.log_streaming import LogStream
from epochlake.jobs.datasource.metadata_reading import LOG, MetadataReader, epoch_of, metadata_schema
from epochlake.jobs.datasource.options import ReadOptions, read_options, write_options
from epochlake.jobs.datasource.refused_streams import RefusedStream
from epochlake.jobs.datasource.table_reading import TableReader, asked_of
from epochlake.jobs.datasource.table_writing import OverwritingWriter, StreamWriter, TableWriter
from epochlake.jobs.gate.arrow_reading import Question
from epochlake.jobs.gate.change_before import BEFORE, require_replaced_rows
from epochlake.jobs.replicas.schema import spark_ddl
from epochlake.metastore.metadata.model import Table
from epochlake.placement.consistency import ConsistencyLevel, require_local
from epochlake.placement.dataframes.frames import schema_of
from epochlake.placement.errors import InvalidRequest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

FORMAT = "epochlake"

_CHOOSE = "choose by .where(…)"


class EpochlakeDataSource(DataSource):
    """Tables of a cluster by name (`air.flights`), and its metadata (`system.tablets`, `system.log`)."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)
        # Spark carries this object on when it has asked for the schema, which it does where the user gives none.
        self._told = False

    @cached_property
    def _read(self) -> ReadOptions:
        with as_spark_says():
            return read_options(self._given)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType | str:
        """What the metadata of now declares; with the option `columns` these alone.

        Options that cannot be meant are refused here, before a query is made.
        """
        with as_spark_says():
            if self._read.metadata_table is not None:
                return self._metadata_schema()
            table, of = self._question()
            declared = {column.name: column for column in table.columns}
            ddl = spark_ddl([declared[name] for name in of.asked.schema.names])
            if not self._read.changes:
                return ddl
            return f"{ddl}, {CHANGE_DDL}, `{BEFORE}` struct<{ddl}>" if self._read.before else f"{ddl}, {CHANGE_DDL}"

    def struct(self) -> StructType:
        """The same as a type: Spark's own parser of DDL is in the JVM."""
        with as_spark_says():
            if self._read.metadata_table is not None:
                return self._metadata_schema()
            asked = schema_of(self._question()[1].asked.schema)
            if not self._read.changes:
                return asked
            before = [StructField(BEFORE, asked)] if self._read.before else []
            return StructType([*asked.fields, *CHANGE_TYPE.fields, *before])

    def _metadata_schema(self) -> StructType:
        self._told = True
        if self._read.epoch is not None:
            epoch_of(self._read)
        return metadata_schema(self._read)

    def _question(self) -> tuple[Table, Question]:
        self._told = True
        with self._read.open() as cluster:
            metadata = cluster.catch_up()
        table = metadata.table(self._read.table)
        if self._read.before:
            require_replaced_rows(table)
        metadata.require_datacenter(self._read.datacenter)
        if self._read.consistency is not None:
            require_local(ConsistencyLevel.parse(self._read.consistency), self._read.datacenter)
        return table, asked_of(self._read, table, self._read.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of rows, of changes, or of metadata."""
        with as_spark_says():
            read = self._read
            if read.starting_epoch is not None:
                raise InvalidRequest("the option 'startingEpoch' is for streams", hint=f"Use readStream, or {_CHOOSE}")
            if read.reader is not None:
                raise InvalidRequest("the option 'reader' is for streams", hint="Use readStream, or leave it out")
            given = Given(schema, by_user=not self._told)
            if read.changes:
                return ChangeReader(read, given)
            if read.metadata_table is None:
                return TableReader(read, given)
            given.require(read.table, metadata_schema(read))
            return MetadataReader(read)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of rows: one write of the gate, of rows that are inserted, replaced by their keys, or deleted.

        With `overwrite` the table, or the part of it that the option `replaceWhere` names, has these rows alone.
        """
        with as_spark_says():
            options = write_options(self._given)
            if options.replace_where is not None and not overwrite:
                raise InvalidRequest(
                    "the option 'replaceWhere' says what is overwritten, and the mode is not overwrite",
                    hint='Use mode("overwrite")',
                )
            if overwrite and options.deletes:
                raise InvalidRequest("a write either overwrites or deletes", hint='Delete with mode("append")')
            return OverwritingWriter(options, schema) if overwrite else TableWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of a stream, whose option `batch` names it."""
        with as_spark_says():
            options = write_options(self._given)
            if overwrite:
                raise InvalidRequest(
                    "a stream is written in the output mode append, as rows are replaced by their keys"
                )
            if not options.batch:
                raise InvalidRequest(
                    "the stream has no name by which a micro-batch that comes again is known",
                    hint='Give option("batch", NAME), another one for each stream into a table',
                )
            return StreamWriter(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The stream of `system.log`, or of the changes of a table."""
        try:
            return self._stream_reader(schema)
        except EpochlakeSparkError as error:
            if not is_worker():
                raise
            return RefusedStream(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        with as_spark_says():
            given = Given(schema, by_user=not self._told)
            if self._read.changes:
                if self._read.up_to is not None:
                    raise InvalidRequest("the option 'upTo' is for reads, and a stream goes on", hint="Leave it out")
                return ChangeStreamReader(self._read, given)
            if self._read.metadata_table != LOG:
                raise InvalidRequest(
                    f"{self._read.table} is no stream",
                    hint='Stream system.log, or give option("changes", True), or read the table',
                )
            if self._read.epoch is not None:
                raise InvalidRequest(
                    f"the option 'epoch' is for reads of {self._read.table} as of then",
                    hint=f'Begin the stream with option("startingEpoch", {self._read.epoch})',
                )
            given.require(self._read.table, metadata_schema(self._read))
            return LogStream(self._read)
