"""`spark.read.format("epochlake")` shows what a pipeline's read shows, and says by Spark's errors what it cannot do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import epochlake
import pytest
from epochlake.metastore import configuration as configurations

from tests.support.replicas import flip_in_a_page

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
WHERES = [
    "carrier = 'AA' and number = 7",
    "carrier in ('AA', 'UA') and number in (1, 2, 3, 777)",
    "carrier = 'AA'",
    "number > 90",
    "delay > 20",  # NaN is greater than everything to Spark
    "delay = double('NaN')",
    "not (delay > 20)",
    "fare between 1.25 and 30",
    "fare = 5",
    "day >= date'2026-02-01' and number < 60",
    "day is null",
    "day <=> date'2026-01-07'",
    "carrier like 'U%'",
    "seats[0] = 'x' or number = 3",
    "carrier = 'AA' and carrier = 'UA' and number = 1",
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


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Lake]:
    directory = tmp_path_factory.mktemp("source")
    conf = directory / "epochlake.toml"
    conf.write_text(f'root = "{directory / "root"}"\n[zookeeper]\nembedded_linger_seconds = 0\n', encoding="utf-8")
    configuration = configurations.load(conf, environ={})
    epochlake.init_cluster(configuration)
    with epochlake.open_cluster(configuration) as cluster:
        for number, node in enumerate("ABC"):
            epochlake.add_node(cluster, node, "dc1", f"r{number}", [("d1", str(directory / node), 1 << 30)])
        assert epochlake.Coordinator(cluster).run(until_idle=True).idle
        epochlake.create_keyspace(cluster, "air", {"dc1": 3})
        epochlake.create_table(cluster, FLIGHTS, COLUMNS, ["carrier", "number"], tablets=4)
        epochlake.register(spark)
        with cluster.pipeline("load", spark) as pipeline:
            for upper in (400, 200, 40):
                pipeline.write(flights(spark, upper), FLIGHTS)
            pipeline.delete(spark.sql("select 'AA' as carrier, 9 as number"), FLIGHTS)
        yield Lake(cluster, spark, conf, directory)


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


def lines(frame: DataFrame) -> Counter[str]:
    return Counter(map(repr, frame.collect()))


def test_it_shows_what_a_pipeline_reads_with_any_filter_and_columns(lake: Lake, seed: int) -> None:
    dice = random.Random(seed)
    with lake.cluster.pipeline("look", lake.spark) as pipeline:
        everything = pipeline.read(FLIGHTS).localCheckpoint()
    loaded = lake.load()
    assert loaded.schema == everything.schema
    assert lines(loaded) == lines(everything)
    assert loaded.count() == 399
    for where in WHERES:
        columns = dice.sample([column[0] for column in COLUMNS], 3)
        assert lines(loaded.where(where).select(columns)) == lines(everything.where(where).select(columns)), where
    two = lake.load(columns="fare, number", consistency="ALL")
    assert two.columns == ["fare", "number"]
    assert lines(two) == lines(everything.select("fare", "number"))
    joined = loaded.join(lake.spark.sql("select 'AA' as carrier, 'American' as name"), "carrier")
    assert joined.count() == everything.where("carrier = 'AA'").count()


def test_a_load_shows_what_is_committed_when_it_is_first_planned(lake: Lake) -> None:
    assert lake.load().where("carrier = 'late'").count() == 0
    row = {"carrier": "late", "number": 1, "day": None, "delay": None, "fare": None, "seats": None}
    lake.cluster.write(FLIGHTS, [row])
    assert lake.load().where("carrier = 'late'").count() == 1
    lake.cluster.delete(FLIGHTS, [{"carrier": "late", "number": 1}])
    assert lake.load().where("carrier = 'late'").count() == 0


def test_a_filter_of_one_query_is_none_of_another(lake: Lake) -> None:
    """Spark 4.2 keeps one plan for all queries of a frame: a source that took filters would lose rows here."""
    frame = lake.load()
    number = frame.count()
    one, other = frame.where("carrier = 'AA' and number = 7"), frame.where("carrier = 'UA' and number = 3")
    assert (one.count(), other.count(), frame.count()) == (1, 1, number)
    assert one.union(other).count() == 2
    assert one.crossJoin(frame.select("day")).count() == number
    frame.createOrReplaceTempView("filtered")
    assert lake.spark.sql("select * from filtered where carrier = 'AA' and number = 7").count() == 1
    assert lake.spark.sql("select * from filtered").count() == number


def test_sql_reads_it_by_a_view(lake: Lake) -> None:
    lake.load().createOrReplaceTempView("flights")
    [row] = lake.spark.sql("select count(*) as n, max(number) as most from flights where carrier = 'UA'").collect()
    assert (row.n, row.most) == (100, 99)


def test_metadata_and_the_log_are_tables_as_of_any_epoch(lake: Lake) -> None:
    newest = lake.cluster.catch_up().epoch
    tablets = lake.load("system.tablets")
    frames = epochlake.MetadataFrames(lake.spark, lake.cluster)
    assert tablets.schema == frames.tablets.schema
    assert lines(tablets) == lines(frames.tablets)
    assert lake.load("system.nodes", epoch=1).count() == 0
    assert {row.node for row in lake.load("system.nodes").collect()} == set("ABC")
    log = lake.load("system.log")
    assert [row.epoch for row in log.sort("epoch").collect()] == list(range(1, newest + 1))
    assert lines(log.select("epoch", "summary", "hash", "committed_at")) == lines(
        frames.history.select("epoch", "summary", "hash", "committed_at")
    )
    assert lake.load("system.log", epoch=3).count() == 3


def test_damage_fails_the_read_that_meets_it_and_the_next_one_goes_round_it(lake: Lake) -> None:
    epochlake.create_table(
        lake.cluster, "air.rotten", [("id", "bigint", False), ("n", "string", True)], ["id"], tablets=1
    )
    lake.cluster.write(
        "air.rotten", [{"id": number, "n": f"a note {number}"} for number in range(2000)], consistency="ALL"
    )
    table_id = lake.cluster.catch_up().table("air.rotten").table_id
    for node in "AB":
        [path] = (lake.directory / node / "air" / table_id).rglob("*.parquet")
        flip_in_a_page(path)
    found, errors = [], []
    for _ in range(3):
        try:
            found.append(tuple(lake.load("air.rotten").selectExpr("sum(id)", "count(n)").collect()[0]))
        except Exception as error:
            errors.append(str(error))
    assert set(found) == {(1999000, 2000)}
    assert all("[EPOCHLAKE_" in error for error in errors)


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ("air.nowhere", {}, "EPOCHLAKE_REJECTED"),
        (FLIGHTS, {"consistencies": "ONE"}, "no option 'consistencies'. Did you mean 'consistency'?"),
        (FLIGHTS, {"consistency": "MOST"}, "EPOCHLAKE_INVALID_REQUEST"),
        (FLIGHTS, {"consistency": "LOCAL_QUORUM"}, "Say so with datacenter="),
        (FLIGHTS, {"columns": "fare,price"}, "it has no column price"),
        (FLIGHTS, {"root": ".epochlake"}, "Give the whole path"),
        (FLIGHTS, {"epoch": "3"}, "a version of the metadata, not of rows"),
        (FLIGHTS, {"root": "/nowhere/at/all"}, "EPOCHLAKE_"),
        (FLIGHTS, {"conf": "/nowhere.toml"}, "EPOCHLAKE_CONFIGURATION_ERROR"),
        ("system.tablet", {}, "There are system."),
        ("system.tablets", {"epoch": "many"}, "'many' is no number"),
        ("system.tablets", {"epoch": "999999"}, "EPOCHLAKE_INVALID_REQUEST"),
        ("system.tablets", {"consistency": "ONE"}, "is for tables of rows"),
    ],
)
def test_what_it_cannot_do_it_says_with_a_code_and_a_hint(
    lake: Lake, table: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=said.replace("(", r"\(").replace("?", r"\?")) as raised:
        lake.load(table, **options).collect()
    assert "EPOCHLAKE_" in str(raised.value)
    assert type(raised.value).__module__.startswith("pyspark.")


def test_a_write_is_refused_and_says_where_to_write(lake: Lake) -> None:
    rows = lake.load().limit(0)
    with pytest.raises(Exception, match=r"cluster\.pipeline\(name, spark\)\.write"):
        rows.write.format("epochlake").options(conf=str(lake.conf)).mode("append").save(FLIGHTS)
