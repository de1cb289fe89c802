"""The data source itself: what Spark makes for `format("epochlake")`."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import cached_property

from epochlake.jobs.datasource.change_reading import CHANGE_DDL, CHANGE_TYPE, ChangeReader, ChangeStreamReader
from epochlake.jobs.datasource.errors import as_spark_says
from epochlake.jobs.datasource.log_streaming import LogStream
from epochlake.jobs.datasource.metadata_reading import LOG, MetadataReader, table_of
from epochlake.jobs.datasource.options import ReadOptions, read_options, write_options
from epochlake.jobs.datasource.table_reading import TableReader
from epochlake.jobs.datasource.table_writing import OverwritingWriter, StreamWriter, TableWriter
from epochlake.jobs.gate.arrow_reading import question
from epochlake.jobs.replicas.schema import spark_ddl
from epochlake.placement.dataframes.frames import schema_of
from epochlake.placement.errors import InvalidRequest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

FORMAT = "epochlake"


class EpochlakeDataSource(DataSource):
    """Tables of a cluster by name (`air.flights`), and its metadata (`system.tablets`, `system.log`)."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @cached_property
    def _read(self) -> ReadOptions:
        with as_spark_says():
            return read_options(self._given)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType | str:
        """What the metadata of now declares; with the option `columns` these alone."""
        with as_spark_says():
            if self._read.metadata_table is not None:
                return schema_of(table_of(self._read, None).schema)
            with self._read.open() as cluster:
                table = cluster.catch_up().table(self._read.table)
            asked = question(table, self._read.columns).asked.schema.names
            declared = {column.name: column for column in table.columns}
            ddl = spark_ddl([declared[name] for name in asked])
            return f"{ddl}, {CHANGE_DDL}" if self._read.changes else ddl

    def struct(self) -> StructType:
        """The same as a type: Spark's own parser of DDL is in the JVM."""
        with as_spark_says():
            if self._read.metadata_table is not None:
                return schema_of(table_of(self._read, None).schema)
            with self._read.open() as cluster:
                table = cluster.catch_up().table(self._read.table)
            asked = schema_of(question(table, self._read.columns).asked.schema)
            return StructType([*asked.fields, *CHANGE_TYPE.fields]) if self._read.changes else asked

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of rows, of changes, or of metadata."""
        if self._read.changes:
            return ChangeReader(self._read, schema)
        return MetadataReader(self._read) if self._read.metadata_table is not None else TableReader(self._read, schema)

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
        with as_spark_says():
            if self._read.changes:
                return ChangeStreamReader(self._read, schema)
            if self._read.metadata_table != LOG:
                raise InvalidRequest(
                    f"{self._read.table} is no stream",
                    hint='Stream system.log, or give option("changes", True), or read the table',
                )
            return LogStream(self._read)
