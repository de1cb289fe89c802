"""Tables whose structs have changed, read and written with Spark: as without it, whatever version a file is of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.metastore.errors import Rejected
from epochlake.placement.errors import InvalidRequest
from pyspark.sql import SparkSession

from tests.support.clusters import grow, spark_stages_all, without_zookeeper
from tests.support.session_settings import settings

TABLE = "air.visits"
BEFORE = (
    "id bigint, a struct<street:string,zip:int,geo:struct<x:int,y:int>>, "
    "l array<struct<p:int,q:string>>, m map<string,struct<v:int>>, s struct<only:int>"
)
AFTER = (
    "id bigint, a struct<city:string,road:string,place:struct<y:int,x:bigint,z:int>,zip:string>, "
    "l array<struct<p:bigint,r:int>>, m map<string,struct<w:bigint>>, s struct<other:int>"
)
READERS = ("true", "false")
"""Whether Spark decodes columns of structs a batch at a time."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    spark_stages_all(monkeypatch)
    with grow(tmp_path) as grown:
        columns = [(one.split()[0], one.split(" ", 1)[1], one[:3] != "id ") for one in BEFORE.split(", ")]
        administration.create_table(grown, TABLE, columns, ["id"], tablets=2)
        yield grown


def test_spark_reads_and_writes_structs_of_every_version_as_the_table_is_now(
    cluster: Cluster, spark: SparkSession
) -> None:
    old = (1, ("s", 5, (1, 2)), [(1, "x"), None], {"k": (1,), "n": None}, (7,))
    nulls = (2, None, None, {}, None)
    with cluster.pipeline("test", spark) as pipeline:
        pipeline.write(spark.createDataFrame([old, nulls], BEFORE), TABLE, consistency="ALL")
        administration.alter_table(
            cluster,
            TABLE,
            add=["a.city string", "a.geo.z int", "l.element.r int", "s.other int"],
            drop=["a.zip", "l.element.q", "s.only"],
            rename={"a.street": "road", "a.geo": "place", "m.value.v": "w"},
            widen={"a.geo.x": "bigint", "l.element.p": "bigint", "m.value.v": "bigint"},
            order=["a.city", "a.place.y"],
        )
        administration.alter_table(cluster, TABLE, add=["a.zip string"], order=["a.city", "a.road", "a.place"])
        new = (3, ("c", "r", (2, 2**40, 3), "z"), [(2**40, 5)], {"k": (2**40,)}, (8,))
        pipeline.write(spark.createDataFrame([new], AFTER), TABLE, consistency="ALL")
        # A program that knows neither the fields that were added nor their order, nor that others are wider.
        less = "id bigint, a struct<place:struct<x:int,y:int>,road:string>, l array<struct<p:int>>, "
        less += "m map<string,struct<w:int>>, s struct<other:int>"
        part = (4, ((1, 2), "r"), [(1,)], {"k": (1,)}, (9,))
        pipeline.write(spark.createDataFrame([part], less), TABLE, consistency="ALL")
        expected = [
            (1, (None, "s", (2, 1, None), None), [(1, None), None], {"k": (1,), "n": None}, (None,)),
            nulls,
            new,
            (4, (None, "r", (2, 1, None), None), [(1, None)], {"k": (1,)}, (9,)),
        ]

        def look() -> None:
            read = pipeline.read(TABLE)
            schema = ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in read.schema)
            assert schema == AFTER
            assert sorted(map(tuple, read.collect())) == expected
            assert sorted(row["id"] for row in read.where("a.zip is null").collect()) == [1, 2, 4]
            assert sorted(row["id"] for row in read.where("s is null").collect()) == [2]
            assert sorted(row["id"] for row in read.where("a.place.x > 5").collect()) == [3]
            pruned = read.selectExpr("id", "s.other", "a.zip", "l.r", "a is null as gone").sort("id").collect()
            assert list(map(tuple, pruned)) == [
                (1, None, None, [None, None], False),
                (2, None, None, None, True),
                (3, 8, "z", [5], False),
                (4, 9, None, [None], False),
            ]
            without = cluster.scan(TABLE).read_all().sort_by("id")
            assert without.equals(read.toArrow().cast(without.schema).sort_by("id"))

        for batches in READERS:
            with settings(spark, {"spark.sql.parquet.enableNestedColumnVectorizedReader": batches}):
                look()
        assert compact(cluster, TABLE, spark, policy=EVERYTHING).compacted
        look()
        # This pipeline knew the fields of before, some of which were dropped.
        with pytest.raises(Rejected, match=r"a\.zip by epoch \d+, l\.element\.q by epoch"):
            pipeline.write(spark.createDataFrame([old], BEFORE), TABLE)
        numbers = AFTER.replace("zip:string", "zip:int")
        wrong = spark.createDataFrame([(5, ("c", "r", (2, 2**40, 3), 5), [], {}, (1,))], numbers)
        with pytest.raises(InvalidRequest, match=r"column a is struct<.*a\.zip was dropped by epoch"):
            pipeline.write(wrong, TABLE)
        assert sorted(map(tuple, pipeline.read(TABLE).collect())) == expected
