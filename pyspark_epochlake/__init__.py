"""Where Spark finds `format("epochlake")` by itself: it imports modules that are called `pyspark_…`.

Spark does so once for each session that uses any data source of Python. So nothing of Epochlake is imported before the
format is really used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """`epochlake.jobs.datasource.source.EpochlakeDataSource`, imported when it is asked for something."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "epochlake"

    def schema(self) -> StructType | str:
        """What the metadata declares."""
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of rows, or of metadata."""
        return self._source().reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of rows."""
        return self._source().writer(schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The stream of `system.log`."""
        return self._source().streamReader(schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of a stream."""
        return self._source().streamWriter(schema, overwrite)

    def _source(self) -> DataSource:
        from epochlake.jobs.datasource.source import EpochlakeDataSource

        return EpochlakeDataSource(self.options)
