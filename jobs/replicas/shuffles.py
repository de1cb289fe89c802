"""How many tasks a session of Spark shuffles rows to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT = 200
"""Spark's own."""


def shuffle_tasks(spark: SparkSession) -> int:
    """As the session says it; Spark's default where it says no number: Databricks knows `auto`."""
    said = spark.conf.get("spark.sql.shuffle.partitions", str(DEFAULT)) or ""
    return int(said) if said.isascii() and said.isdecimal() and int(said) else DEFAULT
