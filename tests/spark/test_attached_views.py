"""`epochlake.attach`: tables of a cluster as views, and what becomes of these when tables change."""

from __future__ import annotations

from pathlib import Path

import epochlake
import pytest
from epochlake.jobs.datasource.attaching import settings_of
from epochlake.jobs.datasource.source import EpochlakeDataSource
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.support.lakes import FLIGHTS, Lake

pytestmark = pytest.mark.connect


def test_attached_tables_are_views_that_sql_reads_and_inserts_into(lake: Lake, sales: str) -> None:
    lake.spark.catalog.dropTempView("flights")
    views = epochlake.attach(lake.spark, lake.cluster)
    short = sales.partition(".")[2]
    assert {sales, short, FLIGHTS, "flights"} <= {*views}
    lake.spark.sql(f"INSERT INTO {short} SELECT id, 'sql' AS note, date'2026-02-02' AS day FROM range(20)")
    epochlake.attach(lake.spark, lake.cluster, ["air"])
    joined = lake.spark.sql(f"SELECT count(*) AS n FROM `{sales}` s JOIN flights f ON f.number = s.id")
    assert (
        joined.collect()[0].n
        == lake.cluster.sql(f"SELECT count(*) AS n FROM {sales} s JOIN {FLIGHTS} f ON f.number = s.id")
        .read_all()["n"]
        .to_pylist()[0]
    )
    epochlake.drop_table(lake.cluster, sales)
    assert short not in epochlake.attach(lake.spark, lake.cluster)
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        lake.spark.sql(f"SELECT * FROM {short}").collect()
    with pytest.raises(epochlake.InvalidRequest, match="no keyspace sea"):
        epochlake.attach(lake.spark, lake.cluster, ["sea"])


def test_attached_tables_hide_nothing_of_the_users_own_whatever_its_capitals(lake: Lake, tmp_path: Path) -> None:
    names = ("Own", "Seen", "Twice", "twice", "plain")
    for name in names:
        epochlake.create_table(lake.cluster, f"air.{name}", [("id", "bigint", False)], ["id"], tablets=1)
    lake.spark.sql(f"CREATE TABLE own (mine int) USING parquet LOCATION '{tmp_path / 'own'}'")
    lake.spark.range(1).selectExpr("id AS mine").createOrReplaceTempView("seen")
    try:
        for _ in range(2):
            views = set(epochlake.attach(lake.spark, lake.cluster))
            assert {"air.Own", "air.Seen", "air.plain", "plain"} <= views
            assert not {"Own", "Seen", "air.Twice", "air.twice", "Twice", "twice"} & views
            assert lake.spark.table("own").columns == lake.spark.table("seen").columns == ["mine"]
    finally:
        lake.spark.catalog.dropTempView("seen")
        lake.spark.sql("DROP TABLE default.own")
        for name in names:
            epochlake.drop_table(lake.cluster, f"air.{name}")


def test_a_query_or_a_view_of_columns_that_have_changed_says_what_became_of_them(lake: Lake) -> None:
    epochlake.create_table(lake.cluster, "air.late", [("id", "bigint", False), ("note", "string", True)], ["id"])
    opens = {"settings": settings_of(lake.cluster), "table": "air.late"}
    columns = StructType([StructField("id", LongType()), StructField("note", StringType())])
    old, read = EpochlakeDataSource(opens), EpochlakeDataSource({"conf": str(lake.conf), "path": "air.late"})
    assert old.schema() == read.schema() == "`id` bigint, `note` string"
    epochlake.alter_table(lake.cluster, "air.late", rename={"note": "remark"}, add=["gate int"])
    for source in (old, read):
        with pytest.raises(PySparkRuntimeError) as told:
            source.reader(columns).partitions()
        assert str(told.value).startswith("[EPOCHLAKE_REJECTED] rejected (schema-changed): the columns of air.late ")
        assert str(told.value).endswith(
            "have changed since the query was made: note is called remark now. Load the table again; for a view, call "
            "epochlake.attach again"
        )
    with pytest.raises(PySparkRuntimeError, match=r"if the table was altered since, call epochlake\.attach again"):
        old.writer(columns, False)
