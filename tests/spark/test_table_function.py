"""`epochlake_read`: SQL says in the query which rows are read, and each query is planned anew."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import epochlake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.metastore import configuration as configurations
from pyspark.errors import AnalysisException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

TABLE = "air.everything"
COLUMNS = [
    ("id", "bigint", False),
    ("t", "tinyint", True),
    ("i", "int", True),
    ("f", "float", True),
    ("d", "double", True),
    ("n", "decimal(20,3)", True),
    ("b", "boolean", True),
    ("s", "string", True),
    ("raw", "binary", True),
    ("day", "date", True),
    ("at", "timestamp", True),
    ("wall", "timestamp_ntz", True),
    ("list", "array<string>", True),
    ("map", "map<string,int>", True),
    ("part", "struct<x:int,y:array<timestamp>>", True),
]


class Lake(NamedTuple):
    cluster: epochlake.Cluster
    conf: Path
    spark: SparkSession

    def ask(self, arguments: str = "", table: str = TABLE) -> list[Any]:
        more = f", {arguments}" if arguments else ""
        return self.spark.sql(f"SELECT * FROM epochlake_read('{table}', conf => '{self.conf}'{more})").collect()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Lake]:
    directory = tmp_path_factory.mktemp("function")
    conf = directory / "epochlake.toml"
    conf.write_text(f'root = "{directory / "root"}"\n[zookeeper]\nembedded_linger_seconds = 0\n', encoding="utf-8")
    configuration = configurations.load(conf, environ={})
    epochlake.init_cluster(configuration)
    with epochlake.open_cluster(configuration) as cluster:
        for number, node in enumerate("ABC"):
            epochlake.add_node(cluster, node, "dc1", f"r{number}", [("d1", str(directory / node), 1 << 30)])
        assert epochlake.Coordinator(cluster).run(until_idle=True).idle
        epochlake.create_keyspace(cluster, "air", {"dc1": 3})
        epochlake.create_table(cluster, TABLE, COLUMNS, ["id"], tablets=4)
        cluster.write(TABLE, [row(number) for number in range(500)])
        epochlake.register(spark)
        yield Lake(cluster, conf, spark)


def row(number: int) -> dict[str, Any]:
    if number % 5 == 4:
        return {"id": number} | dict.fromkeys([name for name, _, _ in COLUMNS[1:]])
    at = datetime(2026, 3, 29, number % 24, 30, 0, 123456, tzinfo=UTC)  # a day on which clocks change in Europe
    return {
        "id": number,
        "t": number % 100,
        "i": -number,
        "f": float("nan") if number % 5 == 3 else 0.5,
        "d": -0.0,
        "n": Decimal(number) / 8,
        "b": number % 2 == 0,
        "s": f"a 'quoted' {number}",
        "raw": bytes([number % 256]),
        "day": at.date(),
        "at": at,
        "wall": at.replace(tzinfo=None),
        "list": ["x", None],
        "map": {"one": number, "none": None},
        "part": {"x": number, "y": [at, None]},
    }


def test_it_shows_what_the_format_shows_of_every_type(lake: Lake) -> None:
    by_format = lake.spark.read.format("epochlake").option("conf", str(lake.conf)).load(TABLE)
    function = lake.spark.sql(f"SELECT * FROM epochlake_read('{TABLE}', conf => '{lake.conf}')")
    assert function.schema == by_format.schema
    assert sorted(map(repr, function.collect())) == sorted(map(repr, by_format.collect()))
    assert function.count() == 500


def test_keys_and_filters_of_a_query_are_its_own(lake: Lake) -> None:
    """Beside each other in one query, where a source that is told the filters of a view would mix them up."""
    assert [found.id for found in lake.ask("keys => '[7]'")] == [7]
    assert {found.id for found in lake.ask("where => 'id < 9 and t > 5'")} == {6, 7, 8}
    both = lake.spark.sql(
        f"SELECT one.id AS one, two.id AS two FROM epochlake_read('{TABLE}', conf => '{lake.conf}', keys => '[7, 8]') "
        f"one JOIN epochlake_read('{TABLE}', conf => '{lake.conf}', columns => 'id, i', where => 'i < -490') two"
        " ON two.id = one.id + 488"
    )
    assert sorted(both.collect()) == [(7, 495), (8, 496)]
    assert lake.ask("columns => 's,id', keys => '[3]'")[0].asDict() == {"s": "a 'quoted' 3", "id": 3}
    assert lake.ask("keys => '[]'") == []


def test_a_lookup_reads_one_tablet(lake: Lake) -> None:
    """The files of the three others may be torn: it does not look at them."""
    epochlake.create_table(lake.cluster, "air.torn", [("id", "bigint", False)], ["id"], tablets=4)
    lake.cluster.write("air.torn", pa.table({"id": pa.array(range(300_000), pa.int64())}), consistency="ALL")
    table = lake.cluster.metadata.table("air.torn")
    volumes = [volume for node in lake.cluster.metadata.directory.nodes.values() for volume in node.volumes]
    places = [path for volume in volumes for path in Path(volume.uri).glob(f"air/{table.table_id}/**/*.parquet")]
    assert len({path.name for path in places}) == 4
    for path in places:
        if 7 not in pq.read_table(path)["id"].to_pylist():
            path.write_bytes(b"torn")
    assert lake.ask("keys => '[7]'", "air.torn") == [(7,)]
    with pytest.raises(Exception, match="EPOCHLAKE_") as told:
        lake.ask(table="air.torn")
    assert "Traceback" not in str(told.value), "the reason and the hint, without frames of Spark's processes"


def test_each_query_is_planned_anew_and_those_over_a_view_of_it_as_well(lake: Lake) -> None:
    epochlake.create_table(lake.cluster, "air.growing", [("id", "bigint", False)], ["id"], tablets=2)
    call = f"epochlake_read('air.growing', conf => '{lake.conf}')"
    lake.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW growing AS SELECT * FROM {call}")
    for number in range(3):
        lake.cluster.write("air.growing", [{"id": number}])
        assert lake.spark.sql("SELECT count(*) AS n FROM growing").collect()[0].n == number + 1
    epochlake.drop_table(lake.cluster, "air.growing")
    with pytest.raises(Exception, match=r"no table 'air\.growing'"):
        lake.spark.sql("SELECT * FROM growing").collect()


def test_after_attach_the_cluster_need_not_be_named(lake: Lake) -> None:
    spark = lake.spark
    epochlake.attach(spark, lake.cluster)
    epochlake.register(spark)
    assert spark.sql(f"SELECT id FROM epochlake_read('{TABLE}', keys => '7')").collect() == [(7,)]
    assert spark.sql("SELECT node FROM epochlake_read('system.nodes') ORDER BY 1").collect() == [("A",), ("B",), ("C",)]
    assert spark.sql("SELECT node FROM epochlake_read('system.nodes', epoch => 1)").collect() == []
    asked = spark.sql(f"SELECT id FROM epochlake_read('{TABLE}', keys => concat('[', 5, ', ', 6, ']'))")
    assert sorted(asked.collect()) == [(5,), (6,)]
    with pytest.raises(AnalysisException, match="has no option 'keyz'"):
        spark.sql(f"SELECT id FROM epochlake_read('{TABLE}', keyz => '7')")


WRONG = {
    "no table": ("epochlake_read()", "takes one table"),
    "two tables": (f"epochlake_read('{TABLE}', '{TABLE}')", "takes one table"),
    "unknown table": ("epochlake_read('air.no', CONF)", "EPOCHLAKE_REJECTED"),
    "unknown option": (f"epochlake_read('{TABLE}', CONF, key => '[7]')", "Did you mean 'keys'?"),
    "no constant": (f"range(3) r, LATERAL epochlake_read('{TABLE}', CONF, keys => string(r.id))", "is no constant"),
    "nothing": (f"epochlake_read('{TABLE}', CONF, keys => NULL)", "is no constant"),
    "no key": (f"epochlake_read('{TABLE}', CONF, keys => '{{\"no\": 1}}')", "is no key of"),
    "no filter": (f"epochlake_read('{TABLE}', CONF, where => 'id < 1 or id > 5')", "there is only `and`"),
    "wrong type": (f"epochlake_read('{TABLE}', CONF, where => 'id < x')", "'x' is no bigint"),
    "level": (f"epochlake_read('{TABLE}', CONF, consistency => 'MOST')", "EPOCHLAKE_INVALID_REQUEST"),
    "short path": (f"epochlake_read('{TABLE}', root => 'lake')", "Give the whole path"),
    "an option of writes": (f"epochlake_read('{TABLE}', CONF, batch => 'x')", "the option 'batch' is for a write"),
    "epoch": ("epochlake_read('system.nodes', CONF, epoch => 0)", "is no epoch"),
    "epoch to come": ("epochlake_read('system.nodes', CONF, epoch => 99999)", "Ask for one from 1 to"),
    "datacenter": (f"epochlake_read('{TABLE}', CONF, datacenter => 'dc9')", "Did you mean 'dc1'?"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_it_cannot_do_it_says_with_a_code_and_a_hint(lake: Lake, what: str) -> None:
    call, said = WRONG[what]
    named = f"conf => '{lake.conf}'"
    with pytest.raises(Exception, match="EPOCHLAKE_") as told:
        lake.spark.sql(f"SELECT * FROM {call.replace('CONF', named)}").collect()
    assert said in str(told.value)
    assert "Traceback" not in str(told.value)
    assert isinstance(told.value, AnalysisException), "nothing of it has run"
