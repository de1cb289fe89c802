"""Arrow tables as DataFrames, on classic sessions and on Spark Connect alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def schema_of(schema: pa.Schema) -> StructType:
    """The Spark types of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The rows of `table`. An empty table keeps its columns: Connect takes none of an empty Arrow table's schema."""
    if table.num_rows:
        return spark.createDataFrame(table)
    return spark.createDataFrame([], schema_of(table.schema))
