"""How a session comes to know of the format and of the table function."""

from __future__ import annotations

from epochlake.jobs.datasource.source import EpochlakeDataSource
from epochlake.jobs.datasource.table_function import NAME, register_function
from epochlake.placement.errors import InvalidRequest
from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make a session know the format `epochlake`, and for SQL the table function `epochlake_read`.

    A function that `attach` has made, which knows its cluster, stays as it is. Raises InvalidRequest for what is no
    session.
    """
    # Those of Spark Connect are of a class of their own, which cannot be imported everywhere.
    if not hasattr(spark, "dataSource"):
        raise InvalidRequest(
            f"{spark!r} is no session of Spark", hint="Give the notebook's `spark`, or epochlake.session(NAME)"
        )
    spark.dataSource.register(EpochlakeDataSource)
    if not spark.catalog.functionExists(NAME):
        register_function(spark)
