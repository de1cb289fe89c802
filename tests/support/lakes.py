"""A cluster with tables of flights, which Spark reads and writes by the format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import epochlake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHTS = "air.flights"
COLUMNS = [
    ("carrier", "string", False),
    ("number", "int", False),
    ("day", "date", True),
    ("delay", "double", True),
    ("fare", "decimal(8,2)", True),
    ("seats", "array<string>", True),
]


class Lake:
    """A cluster with an embedded ZooKeeper, which the processes that Spark plans in ask as well."""

    def __init__(self, cluster: epochlake.Cluster, spark: SparkSession, conf: Path, directory: Path) -> None:
        self.cluster = cluster
        self.spark = spark
        self.conf = conf
        self.directory = directory

    def load(self, table: str = FLIGHTS, **options: Any) -> DataFrame:
        return self.spark.read.format("epochlake").options(**{"conf": str(self.conf), **options}).load(table)


def flights(spark: SparkSession, upper: int) -> DataFrame:
    """Two numbers in five are no number, or nothing."""
    return spark.range(upper).selectExpr(
        "element_at(array('AA', 'UA', 'aa', ''), int(id % 4) + 1) as carrier",
        "int(id div 4) as number",
        "if(id % 7 = 0, null, date_add(date'2026-01-01', int(id % 60))) as day",
        f"case id % 5 when 0 then double('NaN') when 1 then null else id / 10 + {upper} - 380 end as delay",
        f"cast(id % 50 + {upper} / 800 as decimal(8,2)) as fare",
        "if(id % 3 = 0, null, array(if(id % 2 = 0, 'x', null), 'y')) as seats",
    )


def some(lake: Lake, first: int, last: int, note: str = "n") -> DataFrame:
    rows = lake.spark.range(first, last).selectExpr("id", f"'{note}' as note", "date'2026-01-01' as day")
    return rows.repartition(3, "day", "id")


def write(lake: Lake, frame: DataFrame, table: str, mode: str = "append", **options: Any) -> None:
    frame.write.format("epochlake").mode(mode).options(**{"conf": str(lake.conf), **options}).save(table)
