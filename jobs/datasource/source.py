"""The data source itself: what Spark makes for `format("epochlake")`, and how a session comes to know of it."""

from __future__ import annotations

from collections.abc import MutableMapping

from epochlake.jobs.datasource.errors import as_spark_says
from epochlake.jobs.datasource.metadata_reading import MetadataReader, table_of
from epochlake.jobs.datasource.options import ReadOptions, read_options
from epochlake.jobs.datasource.table_reading import TableReader
from epochlake.jobs.gate.arrow_reading import question
from epochlake.jobs.replicas.schema import spark_ddl
from epochlake.placement.dataframes.frames import schema_of
from epochlake.placement.errors import InvalidRequest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

FORMAT = "epochlake"


class EpochlakeDataSource(DataSource):
    """Tables of a cluster by name (`air.flights`), and its metadata (`system.tablets`, `system.log`)."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with as_spark_says():
            self._read: ReadOptions = read_options(options)

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
            return spark_ddl([declared[name] for name in asked])

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of rows, or of metadata."""
        return MetadataReader(self._read) if self._read.metadata_table is not None else TableReader(self._read, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refused: see docs/spark.md."""
        with as_spark_says():
            raise InvalidRequest(
                f"rows of {self._read.table} cannot be written by a DataFrame's `write`",
                hint="Write them with cluster.pipeline(name, spark).write(rows, table), in its `with`",
            )


def register(spark: SparkSession) -> None:
    """Make a session know the format `epochlake`."""
    spark.dataSource.register(EpochlakeDataSource)
