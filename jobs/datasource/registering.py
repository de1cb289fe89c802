"""How a session comes to know of the format and of the table function."""

from __future__ import annotations

from epochlake.jobs.datasource.source import EpochlakeDataSource
from epochlake.jobs.datasource.table_function import NAME, register_function
from epochlake.jobs.spark_session import require_session
from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make a session know the format `epochlake`, and for SQL the table function `epochlake_read`.

    A function that `attach` has made, which knows its cluster, stays as it is. Raises InvalidRequest for what is no
    session.
    """
    require_session(spark, "dataSource")
    spark.dataSource.register(EpochlakeDataSource)
    if not spark.catalog.functionExists(NAME):
        register_function(spark)
