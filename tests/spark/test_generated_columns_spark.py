"""Generated columns of rows that Spark writes: as without Spark, and as Spark's own SQL computes them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.placement.errors import InvalidRequest
from pyspark.sql import SparkSession

from tests.support.clusters import grow, spark_stages_all, without_zookeeper
from tests.support.session_settings import settings

ZONE = "spark.sql.session.timeZone"
BASE = "id bigint, at timestamp, local timestamp_ntz, d date, s string, n int, b bigint, m decimal(10,2), yes boolean"
GENERATED = {
    "y int": "year(at)",
    "md int": "month(local) * 100 + day(d)",
    "h int": "hour(at)",
    "days date": "date(at)",
    "local_days date": "cast(local as date)",
    "early boolean": "date(local) < d",
    "part string": "substring(s, 2, 3)",
    "rest string": "substring(s, 3)",
    "text string": "s || '-' || cast(b as string) || concat(cast(d as string), cast(yes as string))",
    "longer bigint": "length(s) + b",
    "more decimal(20,3)": "m + 1.125",
    "twice decimal(14,2)": "m * 2",
    "narrow smallint": "cast(n as smallint)",
    "wide double": "cast(n as double)",
    "exact decimal(8,1)": "cast(n as decimal(8,1))",
    "some string": "coalesce(s, 'none')",
    "truth boolean": "(n > 3 and b <= 7) or (yes and m <> 0) or s is null",
    "among boolean": "s in ('a', 'é😀b') or n between -2 and 2",
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    spark_stages_all(monkeypatch)
    with grow(tmp_path) as grown:
        columns = [BASE, *(f"{name} generated always as ({text})" for name, text in GENERATED.items())]
        for table in ("air.spark", "air.arrow"):
            administration.create_table(grown, table, columns, ["id"], tablets=2)
        yield grown


def some_rows(dice: random.Random, count: int = 300) -> list[dict[str, object]]:
    """Rows with nulls, moments before 1970, and texts whose characters take one to four bytes."""

    def moment() -> datetime:
        return datetime(1970, 1, 1) + timedelta(microseconds=dice.randint(-(10**16), 10**16))

    kinds = {
        "at": lambda: moment().replace(tzinfo=UTC),
        "local": moment,
        "d": lambda: date(1970, 1, 1) + timedelta(days=dice.randint(-40_000, 40_000)),
        "s": lambda: dice.choice(["", "a", "é😀b", "ab cd", "日本語テキスト", "a\u0301e"]),
        "n": lambda: dice.randint(-9, 9) * dice.choice([1, 1000]),
        "b": lambda: dice.choice([0, 7, -(2**62), 2**62, dice.randint(-100, 100)]),
        "m": lambda: Decimal(dice.randint(-(10**10) + 1, 10**10 - 1)).scaleb(-2),
        "yes": lambda: dice.random() < 0.5,
    }
    return [
        {"id": key, **{name: None if dice.random() < 0.15 else kind() for name, kind in kinds.items()}}
        for key in range(count)
    ]


def rows(cluster: Cluster, table: str) -> list[dict[str, object]]:
    return sorted(cluster.scan(table).read_all().to_pylist(), key=lambda row: row["id"])


def test_random_rows_have_what_arrow_computes_and_what_the_sql_of_spark_says(
    cluster: Cluster, spark: SparkSession, seed: int
) -> None:
    made = some_rows(random.Random(seed))
    cluster.write("air.arrow", made)
    order = ["id", "at", "local", "d", "s", "n", "b", "m", "yes"]
    frame = spark.createDataFrame([tuple(row[name] for name in order) for row in made], BASE)
    # The zone of a session is nothing to them.
    with settings(spark, {ZONE: "Asia/Kolkata"}), cluster.pipeline("test", spark) as pipeline:
        pipeline.write(frame, "air.spark")
    with settings(spark, {ZONE: "UTC"}):
        said = [f"cast({text} as {name.split()[1]}) as {name.split()[0]}" for name, text in GENERATED.items()]
        expected = sorted(frame.selectExpr("id", *said).toArrow().to_pylist(), key=lambda row: row["id"])
    found = rows(cluster, "air.spark")
    assert found == rows(cluster, "air.arrow"), f"seed {seed}"
    computed = [{name: row[name] for name in expected[0]} for row in found]
    assert computed == expected, f"seed {seed}"


def test_dataframes_may_give_generated_columns_as_they_would_be(cluster: Cluster, spark: SparkSession) -> None:
    administration.create_table(cluster, "air.few", ["id bigint, n int, twice int generated always as (n * 2)"], ["id"])
    given = "id bigint, n int, twice int"
    with cluster.pipeline("test", spark) as pipeline:
        right = spark.createDataFrame([(1, 5, 10), (2, None, None)], given)
        pipeline.write(right, "air.few", batch="b")
        # The name says which rows they were: what follows from them is no part of that.
        assert pipeline.write(right.drop("twice"), "air.few", batch="b").already
        wrong = spark.createDataFrame([(3, 6, 11)], given)
        for way in (
            lambda: pipeline.write(wrong, "air.few"),
            lambda: pipeline.overwrite(wrong, "air.few"),
            lambda: pipeline.write(wrong, "air.few", deletes=right.select("id")),
        ):
            with pytest.raises(InvalidRequest, match="it is 12, and not 11"):
                way()
        assert rows(cluster, "air.few") == [{"id": 1, "n": 5, "twice": 10}, {"id": 2, "n": None, "twice": None}]
        pipeline.write(wrong.drop("twice"), "air.few", deletes=right.select("id").where("id = 2"))
        pipeline.write(right.where("id = 1"), "air.few", deletes=right.select("id").where("id = 2"))
        pipeline.delete(right.select("id").where("id = 1"), "air.few")
        assert pipeline.read("air.few").collect() == [(3, 6, 12)]
        more = spark.createDataFrame([(3, 7)], "id bigint, n int")
        pipeline.merge(more, "air.few").when_matched_update({"n": "source.n"}).execute()
        pipeline.overwrite(pipeline.read("air.few").drop("twice"), "air.few")
        assert pipeline.read("air.few").collect() == [(3, 7, 14)]


@pytest.mark.parametrize("batch", [None, "b"], ids=["without a name", "named"])
def test_what_spark_has_staged_before_a_generated_column_lands_with_its_values(
    cluster: Cluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, batch: str | None
) -> None:
    administration.create_table(cluster, "air.late", ["id bigint, n int"], ["id"], tablets=2)
    land, once = CommitPhase.land, ["twice int generated always as (n * 2)"]

    def landed(phase: CommitPhase) -> object:
        if once:
            administration.alter_table(cluster, "air.late", add=[once.pop()])
        return land(phase)

    monkeypatch.setattr(CommitPhase, "land", landed)
    frame = spark.range(50).selectExpr("id", "cast(id as int) as n")
    with cluster.pipeline("test", spark) as pipeline:
        assert pipeline.write(frame, "air.late", batch=batch).rows == 50
    assert rows(cluster, "air.late") == [{"id": key, "n": key, "twice": 2 * key} for key in range(50)]
