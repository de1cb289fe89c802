"""`spark.read.format("epochlake")` shows what a pipeline's read shows, and says by Spark's errors what it cannot do."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import epochlake
import pyarrow as pa
import pytest
from epochlake.jobs.datasource.log_streaming import LogStream
from epochlake.jobs.datasource.options import read_options
from epochlake.jobs.datasource.source import EpochlakeDataSource
from epochlake.jobs.upkeep.change_generations import keep_divided
from epochlake.jobs.views.change_streams import stream_statuses
from epochlake.metastore import configuration as configurations
from epochlake.placement.dataframes.frames import schema_of
from pyspark.errors import AnalysisException, PySparkException, PySparkRuntimeError
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from tests.support.lakes import COLUMNS, FLIGHTS, Lake, some, write
from tests.support.replicas import flip_in_a_page
from tests.support.session_settings import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.connect

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


def test_rows_that_have_expired_are_not_shown(lake: Lake) -> None:
    columns = [("id", "bigint", False), ("seen", "timestamp", True)]
    epochlake.create_table(lake.cluster, "air.visits", columns, ["id"], tablets=1, ttl=("seen", 86_400))
    now = datetime.now(UTC)
    moments = [now, now - timedelta(days=2), None]
    lake.cluster.write("air.visits", [{"id": key, "seen": seen} for key, seen in enumerate(moments)])
    assert sorted(row.id for row in lake.load("air.visits").collect()) == [0, 2]
    assert lake.load("air.visits").where("id = 1").count() == 0
    assert [row.id for row in lake.load("air.visits", where="id >= 1").select("id").collect()] == [2]


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


def test_options_say_which_rows_are_read(lake: Lake) -> None:
    with lake.cluster.pipeline("look", lake.spark) as pipeline:
        everything = pipeline.read(FLIGHTS).localCheckpoint()
    for where, same in (
        ("carrier = AA and number = 7", "carrier = 'AA' and number = 7"),
        ("carrier = 'UA' AND number >= 90 and day is not null", "carrier = 'UA' and number >= 90 and day is not null"),
        ("carrier = ' and ' and number < 3", "false"),
        ("day < 2026-01-09 and fare != 5", "day < date'2026-01-09' and fare != 5"),
    ):
        assert lines(lake.load(where=where)) == lines(everything.where(same)), where
        narrow = lake.load(where=where, columns="fare")
        assert lines(narrow) == lines(everything.where(same).select("fare")), where
    keys = '[{"carrier": "AA", "number": 7}, {"number": 9, "carrier": "AA"}, {"carrier": "UA", "number": 31}]'
    chosen = everything.where("(carrier = 'AA' and number in (7, 9)) or (carrier = 'UA' and number = 31)")
    assert lines(lake.load(keys=keys)) == lines(chosen)
    assert chosen.count() == 2, "a deleted one is none"
    assert lines(lake.load(keys=keys, where="number > 7")) == lines(chosen.where("number > 7"))
    assert lake.load(keys="[]").count() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"where": "number >"}, "'' is no int"),
        ({"where": "nothing = 3"}, "has no column nothing"),
        ({"where": "number = 1 or number = 2"}, "its value '1 or number = 2' looks like one more filter"),
        ({"startingEpoch": "3"}, "'startingEpoch' is for the stream of system.log, and not for air.flights"),
        ({"where": "carrier = O'Neil and carrier = 'AA'"}, "has a quote"),
        ({"keys": "7"}, "is no key of air.flights"),
        ({"keys": "[{"}, "are no JSON"),
        ({"keys": '[{"carrier": "AA"}]'}, "is no key of air.flights"),
        ({"keys": '[{"carrier": "AA", "number": "x"}]'}, "'x' is no int"),
        ({"keys": '[{"carrier": "AA", "number": null}]'}, "a key is never null"),
    ],
)
def test_options_that_cannot_be_meant_say_so(lake: Lake, options: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException) as caught:
        lake.load(**options).collect()
    assert said in str(caught.value)


def test_a_table_without_rows_is_read_as_one(lake: Lake) -> None:
    epochlake.create_table(lake.cluster, "air.empty", [("id", "bigint", False)], ["id"], tablets=2)
    assert lake.load("air.empty").collect() == []
    assert lake.load("air.empty").where("id = 3").count() == 0


@pytest.mark.skipif(
    "connect" in os.environ.get("EPOCHLAKE_TEST_SPARK", ""), reason="the session is started by the test"
)
def test_spark_finds_the_format_by_itself_where_it_is_installed(lake: Lake, tmp_path: Path) -> None:
    """As pip installs it: Spark does not look into editable installations."""
    shutil.copytree(Path(__file__).parents[2] / "pyspark_epochlake", tmp_path / "pyspark_epochlake")
    program = f"""
import epochlake
spark = epochlake.session("found")
flights = spark.read.format("epochlake").option("conf", {str(lake.conf)!r})
print("rows", flights.load({FLIGHTS!r}).count())
epochlake.register(spark)
epochlake.register(spark)
print("again", flights.option("keys", '[{{"carrier": "AA", "number": 7}}]').load({FLIGHTS!r}).count())
spark.stop()
"""
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "rows 399" in run.stdout, run.stderr
    assert "again 1" in run.stdout, run.stderr


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
        (FLIGHTS, {"datacenter": "dc9"}, "no datacenter 'dc9' (datacenters: dc1). Did you mean 'dc1'?"),
        (FLIGHTS, {"keys": "x"}, "EPOCHLAKE_INVALID_REQUEST"),
        ("system.tablets", {"epoch": "many"}, "'many', which is no epoch"),
        ("system.tablets", {"epoch": "0"}, "the first epoch is 1"),
        ("system.tablets", {"epoch": "-1"}, "the first epoch is 1"),
        ("system.tablets", {"epoch": "999999"}, "Ask for one from 1 to"),
        ("system.tablets", {"epoch": "9" * 30}, "is no epoch"),
        ("system.tablets", {"consistency": "ONE"}, "is for tables of rows"),
        (FLIGHTS, {"before": "true"}, "'before' is for changes"),
        (FLIGHTS, {"changes": "true", "before": "yes"}, "Give true or false"),
    ],
)
def test_what_it_cannot_do_it_says_with_a_code_and_a_hint(
    lake: Lake, table: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(AnalysisException, match=re.escape(said)) as raised:
        lake.load(table, **options).schema  # noqa: B018 (Connect asks when it has to)
    assert "EPOCHLAKE_" in str(raised.value)


@pytest.mark.parametrize(
    ("table", "schema", "options", "said"),
    [
        (FLIGHTS, "carrier string, number string", {}, "is int, and the schema that was given says string. Leave"),
        (FLIGHTS, "carrier string, numbr int", {}, "no column numbr"),
        ("system.nodes", "node int", {}, "column node of system.nodes is string, and the schema that was given"),
        ("system.nodes", "node string", {}, "is read with all of its columns"),
        ("system.nodes", "nodes string", {}, "has no column nodes"),
        (FLIGHTS, "carrier string", {"changes": "true"}, "end with the columns _change, _written_at"),
    ],
)
def test_a_schema_that_is_given_and_is_not_the_tables_is_refused_as_such(
    lake: Lake, table: str, schema: str, options: dict[str, str], said: str
) -> None:
    reader = lake.spark.read.format("epochlake").options(conf=str(lake.conf), **options).schema(schema)
    with pytest.raises(AnalysisException, match=re.escape(said)):
        reader.load(table).collect()


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ("system.log", {"epoch": "3"}, 'option("startingEpoch", 3)'),
        ("system.log", {"startingEpoch": "-1"}, "is no epoch"),
        (FLIGHTS, {"changes": "true", "upTo": "3"}, "a stream goes on"),
    ],
)
def test_options_that_say_nothing_to_a_stream_are_refused_by_it(
    lake: Lake, table: str, options: dict[str, str], said: str
) -> None:
    stream = lake.spark.readStream.format("epochlake").options(conf=str(lake.conf), **options)
    with pytest.raises(Exception, match=re.escape(said)):
        stream.load(table).writeStream.format("noop").trigger(availableNow=True).start().awaitTermination(60)


def test_rows_are_inserted_replaced_and_deleted_by_their_keys_and_a_batch_lands_once(lake: Lake, sales: str) -> None:
    write(lake, some(lake, 0, 300, "old"), sales)
    write(lake, some(lake, 200, 400, "new"), sales, batch="b", consistency="ALL")
    write(lake, some(lake, 200, 400, "new"), sales, batch="b")
    write(lake, lake.spark.range(0, 100), sales, delete="true")
    found = lake.cluster.scan(sales).read_all().to_pydict()
    assert sorted(zip(found["id"], found["note"], strict=True)) == [
        *((number, "old") for number in range(100, 200)),
        *((number, "new") for number in range(200, 400)),
    ]
    with lake.cluster.pipeline("look", lake.spark) as pipeline:  # the batch is that of every other engine
        assert pipeline.write(some(lake, 200, 400, "new"), sales, batch="b").already
    spills = lake.directory / "root" / "spills"
    assert not [path for path in spills.rglob("*") if path.is_file()]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_check_of_the_table_is_one_for_rows_of_a_dataframe_too(lake: Lake, sales: str, mode: str) -> None:
    epochlake.alter_table(lake.cluster, sales, add_checks={"low": "id < 250 or note = 'high'"})
    write(lake, some(lake, 0, 200), sales)
    with pytest.raises(Exception, match=r"check 'low' .* is false"):
        write(lake, some(lake, 200, 300), sales, mode)
    assert lake.cluster.count(sales) == 200
    write(lake, some(lake, 200, 300, "high"), sales, mode)
    assert lake.cluster.count(sales) == (300 if mode == "append" else 100)


def test_overwriting_leaves_the_new_rows_alone_in_the_table_or_in_a_part_of_it(lake: Lake, sales: str) -> None:
    write(lake, some(lake, 0, 300, "old"), sales)
    write(lake, some(lake, 90, 120, "part"), sales, "overwrite", replaceWhere="id >= 50 and id < 200", batch="p")
    write(lake, some(lake, 90, 120, "part"), sales, "overwrite", replaceWhere="id >= 50 and id < 200", batch="p")
    found = lake.cluster.scan(sales).read_all().to_pydict()
    assert sorted(zip(found["id"], found["note"], strict=True)) == [
        *((number, "old") for number in range(50)),
        *((number, "part") for number in range(90, 120)),
        *((number, "old") for number in range(200, 300)),
    ]
    with pytest.raises(Exception, match="5 of the rows"):
        write(lake, some(lake, 195, 205), sales, "overwrite", replaceWhere="id >= 200")
    view = f"CREATE OR REPLACE TEMPORARY VIEW overwritten USING epochlake OPTIONS (conf '{lake.conf}', path '{sales}')"
    lake.spark.sql(view)
    lake.spark.sql("INSERT OVERWRITE overwritten SELECT id, 'sql' AS note, date'2026-02-02' AS day FROM range(20)")
    assert lake.cluster.count(sales) == 20
    write(lake, some(lake, 0, 0), sales, "overwrite")
    assert lake.cluster.count(sales) == 0
    assert not [path for path in (lake.directory / "root" / "spills").rglob("*") if path.is_file()]


def test_a_write_that_fails_in_a_task_leaves_nothing(lake: Lake, sales: str) -> None:
    bad = some(lake, 0, 50).selectExpr("if(id = 7, null, id) as id", "note", "day")
    with pytest.raises(Exception, match="EPOCHLAKE_INVALID_REQUEST"):
        write(lake, bad, sales)
    with pytest.raises(Exception, match=r"(?s)same primary key"):
        write(lake, some(lake, 0, 5).union(some(lake, 4, 6)), sales)
    assert lake.cluster.count(sales) == 0
    assert not [path for path in (lake.directory / "root" / "spills").rglob("*") if path.is_file()]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an option": ({"batc": "x"}, "Did you mean 'batch'"),
    "a level": ({"consistency": "MOST"}, "Use one of ONE"),
    "a deletion": ({"delete": "perhaps"}, "Give true or false"),
    "a part, appended to": ({"replaceWhere": "id < 9"}, "the mode is not overwrite"),
    "a part of no column": ({"mode": "overwrite", "replaceWhere": "no < 9"}, "has no column no"),
    "deletes that overwrite": ({"mode": "overwrite", "delete": "true"}, "either overwrites or deletes"),
    "metadata": ({"table": "system.tablets"}, "changed by committing epochs"),
    "no such table": ({"table": "air.none"}, "EPOCHLAKE_REJECTED"),
    "a datacenter": ({"datacenter": "nowhere"}, "there is no datacenter 'nowhere'"),
    "a level of none": ({"consistency": "LOCAL_QUORUM"}, "counts in one datacenter"),
    "columns": ({"columns": ["id", "'x' as day"]}, "column day is date, not string"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_write_that_cannot_be_says_why_before_any_task_runs(lake: Lake, sales: str, what: str) -> None:
    options, said = REFUSED[what]
    frame = some(lake, 0, 5).selectExpr(*options.pop("columns", ["*"]))
    with pytest.raises(Exception, match=r"EPOCHLAKE_") as told:
        write(lake, frame, **{"table": sales, **options})
    assert said in str(told.value)
    assert "Traceback" not in str(told.value)
    assert not re.search("Failed to (commit|generate)", str(told.value)), "tasks have run"
    assert lake.cluster.count(sales) == 0


def test_the_log_is_a_stream_of_epochs_each_once(lake: Lake, tmp_path: Path) -> None:
    def play(table: str) -> list[int]:
        log = lake.spark.readStream.format("epochlake").options(conf=str(lake.conf), startingEpoch=3).load("system.log")
        query = (
            log.select("epoch").writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        running = query.trigger(availableNow=True).start(str(tmp_path / "epochs"))
        assert running.awaitTermination(120)
        return sorted(row.epoch for row in lake.spark.read.parquet(str(tmp_path / "epochs")).collect())

    before = lake.cluster.catch_up().epoch
    assert play("first") == [*range(3, before + 1)]
    lake.cluster.log_place.delta().compact()
    epochlake.pause_balancing(lake.cluster)
    epochlake.resume_balancing(lake.cluster)
    assert play("second") == [*range(3, before + 3)]


def test_a_stream_of_the_log_goes_on_with_its_own_history_only(lake: Lake, tmp_path: Path) -> None:
    """The checkpoint of one cluster, and the root of another one, or of this one after a reset."""
    mine, other = (LogStream(read_options({"root": str(root), "path": "system.log"})) for root in roots(lake, tmp_path))
    limit: Any = None
    newest = mine.latestOffset({"epoch": 2}, limit)
    assert newest["epoch"] == lake.cluster.catch_up().epoch
    [epochs] = mine.partitions({"epoch": 2}, newest)
    assert next(mine.read(epochs))["epoch"][0].as_py() == 3
    assert other.latestOffset({"epoch": 1}, limit)["epoch"] == 1, "a checkpoint of earlier versions has no hash"
    assert other.latestOffset({"epoch": 9}, limit) == {"epoch": 9}, "epochs to come may be asked for"
    first = mine.latestOffset({"epoch": 0}, limit) | {"epoch": 1}
    for start in (newest, first):
        with pytest.raises(PySparkException, match="another history"):
            other.latestOffset(start, limit)
    with pytest.raises(PySparkException, match="another history"):
        list(other.read(other.partitions({"epoch": 0}, first)[0]))


def roots(lake: Lake, tmp_path: Path) -> tuple[str, str]:
    """Of the cluster, and of another one, with one epoch."""
    epochlake.init_cluster(epochlake.Configuration(root=str(tmp_path / "root")))
    return lake.cluster.configuration.root, str(tmp_path / "root")


def test_a_stream_is_written_once_across_restarts(lake: Lake, sales: str, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"

    def play() -> None:
        rows = lake.spark.readStream.schema("id bigint, note string, day date").parquet(str(source))
        writing = rows.writeStream.format("epochlake").option("checkpointLocation", str(checkpoint))
        running = writing.options(conf=str(lake.conf), batch="s").trigger(availableNow=True).start(sales)
        assert running.awaitTermination(120)

    some(lake, 0, 100).write.parquet(str(source))
    play()
    some(lake, 100, 150).write.mode("append").parquet(str(source))
    play()
    assert lake.cluster.count(sales) == 150
    # Killed after the batch had landed and before Spark had noted that: the batch comes again.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    lake.cluster.delete(sales, [{"id": 149}])
    play()
    assert lake.cluster.count(sales) == 149, "a batch that had landed is not written again"
    assert not [path for path in (lake.directory / "root" / "spills").rglob("*") if path.is_file()]
    rows = lake.spark.readStream.schema("id bigint, note string, day date").parquet(str(source))
    unnamed = rows.writeStream.format("epochlake").option("checkpointLocation", str(tmp_path / "other"))
    unnamed = unnamed.options(conf=str(lake.conf)).trigger(availableNow=True)
    with pytest.raises(Exception, match=r'option\("batch", NAME\)'):
        unnamed.start(sales).awaitTermination(120)


def test_a_micro_batch_is_what_its_tasks_have_made_whichever_writer_commits_it(lake: Lake, sales: str) -> None:
    """Spark makes a writer for the tasks, and another one in the process that commits."""
    given = pa.schema([("id", pa.int64()), ("note", pa.string()), ("day", pa.date32())])
    options = {"conf": str(lake.conf), "batch": "s", "path": sales}

    def writer() -> DataSourceStreamArrowWriter:
        made = EpochlakeDataSource(options).streamWriter(schema_of(given), overwrite=False)
        assert isinstance(made, DataSourceStreamArrowWriter)
        return made

    def stored(number: int) -> WriterCommitMessage:
        rows = pa.record_batch([[number], ["n"], [None]], schema=given)
        return writer().write(iter([rows]))

    first = stored(1)
    epochlake.alter_table(lake.cluster, sales, add=[("more", "int", True)])
    writer().commit([first, None], 0)
    [row] = lake.cluster.scan(sales).read_all().to_pylist()
    assert row == {"id": 1, "note": "n", "day": None, "more": None}
    epochlake.alter_table(lake.cluster, sales, drop=["more"])
    writer().abort([stored(2), None], 1)
    late = stored(3)
    epochlake.drop_table(lake.cluster, sales)
    epochlake.create_table(
        lake.cluster, sales, [("id", "bigint", False), ("note", "string", True), ("day", "date", True)], ["id"]
    )
    with pytest.raises(PySparkException, match="was dropped and made anew"):
        writer().commit([late], 2)
    assert lake.cluster.count(sales) == 0
    assert not [path for path in (lake.directory / "root" / "spills").rglob("*") if path.is_file()]


def test_a_write_that_began_under_the_old_name_of_a_keyspace_lands_and_later_ones_are_told_the_new_name(
    lake: Lake,
) -> None:
    cluster, conf = lake.cluster, str(lake.conf)
    epochlake.create_keyspace(cluster, "land", {"dc1": 3})
    epochlake.create_table(cluster, "land.cars", [("id", "bigint", False)], ["id"], tablets=2)
    write(lake, lake.spark.range(3), "land.cars")
    assert "land.cars" in epochlake.attach(lake.spark, cluster)

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with epochlake.open_cluster(configurations.load(Path(conf), environ={})) as own:
            epochlake.rename_keyspace(own, "land", "country")
        yield from batches

    rows = lake.spark.range(3, 6).coalesce(1)
    with cluster.pipeline("from before", lake.spark) as pipeline:
        write(lake, rows.mapInArrow(renamed, "id bigint"), "land.cars", batch="b")
        for ask in (lambda: pipeline.write(rows, "land.cars"), lambda: pipeline.delete(rows, "land.cars")):
            with pytest.raises(epochlake.Rejected, match=r"use country\.cars"):
                ask()
        assert pipeline.write(rows, "country.cars", batch="b").already
    assert sorted(cluster.scan("country.cars").read_all()["id"].to_pylist()) == [*range(6)]
    write(lake, rows, "country.cars", batch="b")  # it is the same batch
    for ask in (lambda: write(lake, rows, "land.cars"), lambda: lake.load("land.cars").collect()):
        with pytest.raises(PySparkException, match=r"Keyspace land was renamed to country: use country\.cars"):
            ask()
    with pytest.raises(epochlake.InvalidRequest, match="renamed to country: use country"):
        epochlake.attach(lake.spark, cluster, ["land"])
    views = epochlake.attach(lake.spark, cluster)
    assert ("land.cars" in views, "country.cars" in views) == (False, True)
    assert lake.spark.sql("SELECT count(*) AS n FROM `country.cars`").collect()[0].n == 6
    with pytest.raises(epochlake.Rejected, match="use country"):
        cluster.sql("SELECT * FROM land.cars")


def test_what_is_no_session_no_cluster_and_no_list_is_said_at_once(lake: Lake) -> None:
    spark: Any = lake.spark
    cluster: Any = lake.cluster
    for wrong, said in (
        (lambda: epochlake.register(cluster), "is no session of Spark. Give the notebook's"),
        (lambda: epochlake.attach(cluster, spark), "is no session of Spark. Give the notebook's"),
        (lambda: epochlake.attach(spark, None), "None is no open cluster. Give what epochlake.open_cluster() gives"),
        (lambda: epochlake.attach(spark, cluster, "air"), "a list of names. Write keyspaces=['air']"),
    ):
        with pytest.raises(epochlake.InvalidRequest, match=re.escape(said)):
            wrong()


# Spark's own words, by its own errors: whoever types these finds nothing changed.
STATEMENTS = {
    "UPDATE {} SET note = 'x' WHERE id = 1": "does not support UPDATE",
    "DELETE FROM {} WHERE id = 1": "does not support deletes",
    "MERGE INTO {} t USING (SELECT 1L AS id) s ON s.id = t.id WHEN MATCHED THEN DELETE": "does not support MERGE",
    "INSERT INTO {} REPLACE WHERE id > 1 SELECT 2L, 'x', date'2026-01-01'": "does not support overwrite by filter",
    "INSERT INTO {} VALUES (1)": "NOT_ENOUGH_DATA_COLUMNS",
    "INSERT INTO {} VALUES ('a', 'b', date'2026-01-01')": "CANNOT_SAFELY_CAST",
    "INSERT INTO {} (note) VALUES ('no key')": "'id' is a column of the primary key, and it is null",
    "INSERT INTO {} (no_column) VALUES (1)": "UNRESOLVED_COLUMN",
    "TRUNCATE TABLE {}": "expects a table",
    "ALTER TABLE {} ADD COLUMN more int": "expects a table",
    "SELECT * FROM {} TIMESTAMP AS OF '2026-01-01'": "TIME_TRAVEL",
    "CREATE TABLE air.made (id bigint) USING epochlake": "SCHEMA_NOT_FOUND",
    "SHOW TABLES IN air": "SCHEMA_NOT_FOUND",
    "SELECT * FROM epochlake.`air.flights`": "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY",
}


def test_statements_that_it_has_not_are_refused_and_change_nothing(lake: Lake, sales: str) -> None:
    write(lake, some(lake, 0, 5), sales)
    epochlake.attach(lake.spark, lake.cluster)
    before = lake.cluster.catch_up().epoch
    for statement, said in STATEMENTS.items():
        with pytest.raises(PySparkException) as told:
            lake.spark.sql(statement.format(f"`{sales}`")).collect()
        assert said in str(told.value), statement
    # The view goes, and not the table.
    lake.spark.sql(f"DROP VIEW `{sales}`")
    assert lake.cluster.catch_up().epoch == before
    assert sorted(lake.cluster.scan(sales).read_all()["id"].to_pylist()) == [0, 1, 2, 3, 4]


def test_changes_are_a_batch_between_positions_and_a_stream_that_has_each_once(lake: Lake, tmp_path: Path) -> None:
    epochlake.create_table(lake.cluster, "air.gates", [("id", "int", False), ("gate", "string", True)], ["id"])
    position = epochlake.keep_changes(lake.cluster, "air.gates").position
    stream = lake.spark.readStream.format("epochlake").options(conf=str(lake.conf), changes=True, reader="spark")
    for number, rows in enumerate([{1: "A", 2: "B"}, {1: "C"}, {3: "D"}]):
        lake.cluster.write("air.gates", [{"id": key, "gate": gate} for key, gate in rows.items()])
        if number == 1:
            lake.cluster.delete("air.gates", [{"id": 2}])
        query = stream.load("air.gates").writeStream.format("parquet")
        options = {"path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "checkpoint")}
        query.options(**options).trigger(availableNow=True).start().awaitTermination()
    found = lake.spark.read.parquet(str(tmp_path / "out")).orderBy("_position", "id").collect()
    told = [(row["_change"], row["id"], row["gate"]) for row in found]
    upserts = [("upsert", 1, "A"), ("upsert", 2, "B"), ("upsert", 1, "C")]
    assert told == [*upserts, ("delete", 2, None), ("upsert", 3, "D")]
    between = lake.load("air.gates", changes="true", after=str(position), upTo=str(position + 1))
    assert sorted(row["gate"] for row in between.collect()) == ["A", "B"]
    given = {"conf": str(lake.conf), "path": "air.gates", "changes": "true", "after": "100"}
    with pytest.raises(PySparkRuntimeError, match=r"after position 100 cannot be read\. They end at \d"):
        EpochlakeDataSource(given).streamReader(between.schema).initialOffset()
    [status] = stream_statuses(lake.cluster, lake.cluster.catch_up())
    # Spark tells a source that a micro-batch is done when it begins the next one.
    assert [(reader.name, reader.behind) for reader in status.readers] == [("spark", 1)]


def test_one_stream_of_a_generation_is_a_batch_and_a_stream(lake: Lake, tmp_path: Path) -> None:
    """What it ends with, and what is refused: tests/unit/jobs/test_change_parts_for_spark.py."""
    table = "air.parted"
    epochlake.create_table(lake.cluster, table, [("id", "int", False), ("gate", "string", True)], ["id"], tablets=2)
    epochlake.keep_changes(lake.cluster, table)
    stream_id = lake.cluster.catch_up().table(table).table_id
    assert keep_divided(lake.cluster, lake.cluster.catch_up().change_streams.by_table[stream_id]).published
    lake.cluster.write(table, [{"id": key, "gate": "A"} for key in range(8)])
    first, second = ({"changes": "true", "generation": "1", "stream": number} for number in ("0", "1"))
    between = lake.load(table, **first).collect()
    streamed = lake.spark.readStream.format("epochlake").options(conf=str(lake.conf), **second).load(table)
    options = {"path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "checkpoint")}
    streamed.writeStream.format("parquet").options(**options).trigger(availableNow=True).start().awaitTermination()
    found = [row["id"] for row in (*between, *lake.spark.read.parquet(str(tmp_path / "out")).collect())]
    assert sorted(found) == [*range(8)]
    assert 0 < len(between) < 8


def test_changes_are_read_with_the_rows_before_them_as_a_batch_and_as_a_stream(lake: Lake, tmp_path: Path) -> None:
    columns = [("id", "int", False), ("gate", "string", True), ("seen", "array<struct<at:timestamp,by:string>>", True)]
    epochlake.create_table(lake.cluster, "air.moved", columns, ["id"], tablets=2)
    first = [{"at": datetime(2026, 1, 2, tzinfo=UTC), "by": "Ada"}]
    lake.cluster.write("air.moved", [{"id": 1, "gate": "A", "seen": first}, {"id": 2, "gate": "B", "seen": None}])
    epochlake.keep_changes(lake.cluster, "air.moved")
    lake.cluster.write("air.moved", [{"id": 1, "gate": "C", "seen": None}, {"id": 3, "gate": "D", "seen": []}])
    lake.cluster.write("air.moved", [{"id": 1, "gate": "E", "seen": None}])
    lake.cluster.delete("air.moved", [{"id": 2}])
    asked = {"changes": "true", "before": "true"}
    between = lake.load("air.moved", **asked).orderBy("_position", "id")
    stream = lake.spark.readStream.format("epochlake").options(conf=str(lake.conf), **asked).load("air.moved")
    options = {"path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "checkpoint")}
    query = stream.writeStream.format("parquet").options(**options).trigger(availableNow=True)
    query.start().awaitTermination()
    streamed = lake.spark.read.parquet(str(tmp_path / "out")).orderBy("_position", "id")
    for found in (between.collect(), streamed.collect()):
        told = [(row["id"], row["gate"], row["_before"] and row["_before"]["gate"]) for row in found]
        assert told == [(1, "C", "A"), (3, "D", None), (1, "E", "C"), (2, None, "B")]
        assert found[0]["_before"]["seen"][0]["by"] == "Ada"
    assert lake.load("air.moved", columns="gate", **asked).schema["_before"].dataType.fieldNames() == ["gate"]
    with settings(lake.spark, {"spark.sql.timestampType": "TIMESTAMP_NTZ"}):
        assert lake.load("air.moved", **asked).schema == between.schema, "moments have their zone in any session"


def test_a_pipeline_and_the_format_read_rows_as_they_were(lake: Lake) -> None:
    table = "air.past"
    epochlake.create_table(lake.cluster, table, [("id", "bigint", False), ("note", "string", True)], ["id"], tablets=1)
    lake.cluster.write(table, [{"id": 1, "note": "old"}, {"id": 2, "note": "old"}])
    before = datetime.now(UTC)
    lake.cluster.write(table, [{"id": 1, "note": "new"}, {"id": 3, "note": "new"}])
    lake.cluster.delete(table, [{"id": 2}])
    assert epochlake.compact(lake.cluster, table).complete
    with lake.cluster.pipeline("look back", lake.spark) as pipeline:
        assert Counter(row.note for row in pipeline.read(table, as_of=before).collect()) == {"old": 2}
        assert pipeline.read(table, columns=["note"], keys=[{"id": 2}], as_of=before).collect()[0].note == "old"
        assert pipeline.count(table, as_of=before) == 2
        assert Counter(row.note for row in pipeline.read(table).collect()) == {"new": 2}
    assert {row.id for row in lake.load(table, timestampAsOf=before.isoformat()).collect()} == {1, 2}
    with pytest.raises(PySparkException, match="no zone"):
        lake.load(table, timestampAsOf="2013-01-01").collect()
