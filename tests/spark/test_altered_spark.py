"""Tables whose columns have changed, read and written with Spark: as without it, whatever version a file is of."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow.compute as pc
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.columns import parse_added
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.metastore.errors import Rejected
from epochlake.placement.errors import InvalidRequest
from pyspark.sql import DataFrame, SparkSession

from tests.support.clusters import grow, spark_stages_all, without_zookeeper

TABLE = "air.flights"
COLUMNS = "id bigint not null, note string, size int, price decimal(10,2), day date, rate float, gone string"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    spark_stages_all(monkeypatch)
    with grow(tmp_path) as grown:
        columns = [(one.split()[0], one.split()[1], "not" not in one) for one in COLUMNS.split(", ")]
        administration.create_table(grown, TABLE, columns, ["id"], tablets=2)
        yield grown


def test_spark_reads_and_writes_files_of_every_version_as_the_table_is_now(
    cluster: Cluster, spark: SparkSession
) -> None:
    old = (1, "old", 7, Decimal("1.25"), date(2020, 1, 1), 0.5, "secret")
    also = (2, "also", 2**31 - 1, Decimal("2.50"), date(2021, 1, 1), 1.5, "secret")
    new = "id bigint, remark string, size bigint, price decimal(14,4), day timestamp_ntz, rate double"
    with cluster.pipeline("test", spark) as pipeline:
        pipeline.write(spark.createDataFrame([old, also], COLUMNS.replace(" not null", "")), TABLE, consistency="ALL")
        administration.alter_table(
            cluster,
            TABLE,
            drop=["gone"],
            rename={"note": "remark"},
            widen={"size": "bigint", "price": "decimal(14,4)", "day": "timestamp_ntz", "rate": "double"},
        )
        added = parse_added(
            ["gone string not null default 'it''s'", "at timestamp default '2020-01-01T10:00:00Z'", "c int"]
        )
        administration.alter_table(cluster, TABLE, add=added, order=["c"])
        row = (2, "new", 2**40, Decimal("2.0001"), datetime(2022, 1, 1), 2.5)
        pipeline.write(spark.createDataFrame([row], new), TABLE, consistency="ALL")
        row3 = (3, "all", 1, Decimal("3.0001"), datetime(2023, 1, 1), 3.5, "given", None, 9)
        more = f"{new}, gone string, at timestamp, c int"
        pipeline.write(spark.createDataFrame([row3], more), TABLE, consistency="ALL")
        moment = datetime(2020, 1, 1, 10, tzinfo=UTC)
        expected = [
            (None, 1, "old", 7, Decimal("1.2500"), datetime(2020, 1, 1), 0.5, "it's", moment),
            (None, 2, "new", 2**40, Decimal("2.0001"), datetime(2022, 1, 1), 2.5, "it's", moment),
            (9, 3, "all", 1, Decimal("3.0001"), datetime(2023, 1, 1), 3.5, "given", None),
        ]

        def look() -> None:
            read = pipeline.read(TABLE)
            assert read.columns == ["c", "id", "remark", "size", "price", "day", "rate", "gone", "at"]
            assert [field.metadata for field in read.schema] == [{}] * 9
            assert in_utc(read) == expected
            assert in_utc(read.where("gone = 'it''s' and size > 6")) == expected[:2]
            assert in_utc(read.where("price = 1.25 or day >= '2023-01-01'")) == [expected[0], expected[2]]
            assert in_utc(read.where("c is null")) == expected[:2]
            assert read.where("gone = 'secret'").count() == 0
            asked = pipeline.read(TABLE, columns=["gone", "id"], where=pc.field("size") > 6)
            assert sorted(map(tuple, asked.collect())) == [("it's", 1), ("it's", 2)]
            assert pipeline.count(TABLE, where=pc.field("rate") < 3) == 2
            without = cluster.scan(TABLE).read_all().sort_by("id").to_pylist()
            assert [tuple(one.values()) for one in without] == expected

        look()
        assert compact(cluster, TABLE, spark, policy=EVERYTHING).compacted
        look()
        # It knew the columns of before, which had one that was dropped.
        with pytest.raises(Rejected, match="gone by epoch"):
            pipeline.write(spark.createDataFrame([old], COLUMNS.replace(" not null", "")), TABLE)
        pipeline.delete(spark.createDataFrame([(1,)], "id bigint"), TABLE, consistency="ALL")
        assert in_utc(pipeline.read(TABLE)) == expected[1:]


def in_utc(frame: DataFrame) -> list[tuple[object, ...]]:
    """The rows by id, as Arrow gives them: moments in UTC."""
    table = frame.toArrow().sort_by("id")
    return [tuple(row.values()) for row in table.to_pylist()]


def test_rows_that_spark_stages_are_judged_by_the_checks_of_the_table(cluster: Cluster, spark: SparkSession) -> None:
    names = COLUMNS.replace(" not null", "")
    rest = ("n", 7, Decimal("1.25"), date(2020, 1, 1), 0.5, "x")
    with cluster.pipeline("test", spark) as pipeline:
        pipeline.write(spark.createDataFrame([(1, *rest)], names), TABLE)
        # The pipeline learns of the checks from the first replica that it opens.
        with Cluster(cluster.configuration) as other:
            checks = {"young": "day >= '2020-01-01' and price < 2", "named": "note is not null and size + 1 > 0"}
            administration.alter_table(other, TABLE, add_checks=checks)
        old = spark.createDataFrame([(2, *rest), (3, *rest[:3], date(2019, 12, 31), *rest[4:])], names)
        with pytest.raises(InvalidRequest, match="check 'young'"):
            pipeline.write(old, TABLE)
        with pytest.raises(InvalidRequest, match="check 'young'"):
            pipeline.write(old, TABLE, batch="b")
        small = spark.createDataFrame([(4, "n", -5, *rest[2:])], names)
        with pytest.raises(InvalidRequest, match="check 'named'"):
            pipeline.write(small, TABLE, deletes=spark.createDataFrame([(1,)], "id bigint"))
        pipeline.write(spark.createDataFrame([(5, *rest)], names), TABLE, batch="b")
        assert sorted(row["id"] for row in pipeline.read(TABLE).collect()) == [1, 5]


def test_a_batch_that_comes_again_after_a_change_of_columns_is_the_same_for_spark_and_without(
    cluster: Cluster, spark: SparkSession
) -> None:
    rows = [
        (1, "old", 7, Decimal("1.25"), date(2020, 1, 1), 0.1, "kept"),
        (2, "", None, None, None, None, None),
        (3, "also", -(2**31), Decimal("-0.01"), date(1960, 1, 1), float("nan"), None),
    ]
    given = spark.createDataFrame(rows, COLUMNS.replace(" not null", ""))
    later = given.withColumnRenamed("note", "remark")
    with cluster.pipeline("test", spark) as pipeline:
        pipeline.write(given, TABLE, batch="b")
        administration.alter_table(
            cluster,
            TABLE,
            rename={"note": "remark"},
            widen={"size": "bigint", "price": "decimal(14,4)", "day": "timestamp_ntz", "rate": "double"},
            add=parse_added(["zone string not null default 'it''s'", "k int"]),
            order=["k"],
        )
        wide = later.selectExpr("*").withColumn("size", later["size"].cast("bigint"))
        others = [later, wide.selectExpr("*", "'it''s' AS zone", "cast(null AS int) AS k")]
        assert all(pipeline.write(one, TABLE, batch="b").already for one in others)
        assert cluster.write(TABLE, later.toArrow(), batch="b").already
        seconds = "cast(day AS timestamp_ntz) + interval 1 second AS day"
        different = [
            wide.selectExpr("id", "remark", "size + 4294967296 AS size", "price", "day", "rate", "gone"),
            wide.selectExpr("id", "remark", "size", "price", seconds, "rate", "gone"),
            wide.selectExpr("id", "remark", "size", "price", "day", "rate * 1e300 AS rate", "gone"),
            wide.selectExpr("*", "'other' AS zone"),
            wide.selectExpr("*", "0 AS k"),
        ]
        for one in different:
            with pytest.raises(Rejected, match="batch-used"):
                pipeline.write(one, TABLE, batch="b")
            with pytest.raises(Rejected, match="batch-used"):
                cluster.write(TABLE, one.toArrow(), batch="b")
        assert pipeline.count(TABLE) == 3


def test_a_batch_with_structs_that_comes_again_after_a_change_of_fields_is_the_same(
    cluster: Cluster, spark: SparkSession
) -> None:
    schema = "id bigint, at struct<zip:int,city:string>, list array<struct<p:smallint>>"
    administration.create_table(
        cluster,
        "air.homes",
        [(name, type_, True) for name, type_ in (one.split(" ") for one in schema.split(", "))],
        ["id"],
    )
    given = spark.createDataFrame([(1, (7, "Rome"), [(1,), None]), (2, None, None), (3, (None, None), [])], schema)
    with cluster.pipeline("test", spark) as pipeline:
        pipeline.write(given, "air.homes", batch="b")
        administration.alter_table(
            cluster,
            "air.homes",
            add=parse_added(["at.k int", "list.element.q string"]),
            widen={"at.zip": "bigint", "list.element.p": "int"},
            rename={"at.city": "town"},
            order=["at.k"],
        )
        now = "id bigint, at struct<k:int,zip:bigint,town:string>, list array<struct<p:int,q:string>>"
        same = [(1, (None, 7, "Rome"), [(1, None), None]), (2, None, None), (3, (None, None, None), [])]
        assert pipeline.write(spark.createDataFrame(same, now), "air.homes", batch="b").already
        for first in [
            (1, (None, 2**40, "Rome"), same[0][2]),
            (1, (0, 7, "Rome"), same[0][2]),
            (1, same[0][1], [(1, "q"), None]),
        ]:
            with pytest.raises(Rejected, match="batch-used"):
                pipeline.write(spark.createDataFrame([first, *same[1:]], now), "air.homes", batch="b")


def test_names_with_dots_are_columns_and_no_fields(cluster: Cluster, spark: SparkSession) -> None:
    columns = [("a.b", "bigint", False), ("a", "string", True), ("c.d", "string", True)]
    administration.create_table(cluster, "air.dots", columns, ["a.b"], tablets=2)
    rows = spark.range(40).selectExpr("id AS `a.b`", "'beside' AS a", "cast(id AS string) AS `c.d`")
    with cluster.pipeline("test", spark) as pipeline:
        pipeline.write(rows.where("`a.b` < 30"), "air.dots", consistency="ALL")
        pipeline.write(rows.where("`a.b` >= 20"), "air.dots", deletes=rows.where("`a.b` < 5"), consistency="ALL")
        pipeline.delete(rows.where("`a.b` = 39"), "air.dots", consistency="ALL")
        assert compact(cluster, "air.dots", spark, policy=EVERYTHING).complete
        found = pipeline.read("air.dots", keys=rows.where("`a.b` in (4, 7, 21, 39)")).where("`c.d` != '7'")
        assert [(row["a.b"], row["a"], row["c.d"]) for row in found.collect()] == [(21, "beside", "21")]
        assert pipeline.read("air.dots").count() == cluster.count("air.dots") == 34
