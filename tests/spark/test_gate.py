"""The gate with real rows: write, read, delete; bad input; clocks; placement that moves. Also on Spark Connect."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from epochlake.jobs.gate import planning
from epochlake.jobs.gate.errors import ConsistencyNotReached, ReadDisturbed
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.metastore.errors import Rejected
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from epochlake.placement.tablets.transitions import Stage

from tests.support.clusters import FOUR, SmallCluster, placed, spark_stages_all, without_zookeeper

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUICK = Configuration(
    pipeline=PipelineSettings(attempts=2), coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4)
)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    spark_stages_all(monkeypatch)
    return placed(tmp_path, FOUR, {0: "ABC", 1: "ABC"}, configuration=QUICK)


@pytest.fixture
def append_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    spark_stages_all(monkeypatch)
    return placed(tmp_path, FOUR, {0: "ABC", 1: "ABC"}, append_only=True, configuration=QUICK)


@pytest.fixture
def pipeline(cluster: SmallCluster, spark: SparkSession) -> Iterator[Pipeline]:
    with cluster.pipeline("test", spark) as opened:
        yield opened


def rows(spark: SparkSession, ids: range, note: str) -> DataFrame:
    return spark.range(ids.start, ids.stop, ids.step, 1).selectExpr("id", f"'{note}' as note")


def notes(frame: DataFrame) -> dict[int, str]:
    found = [(row.id, row.note) for row in frame.collect()]
    assert len(found) == len(dict(found))
    return dict(found)


@pytest.mark.connect
def test_rows_are_written_replaced_deleted_and_read(pipeline: Pipeline, spark: SparkSession) -> None:
    written = pipeline.write(rows(spark, range(0, 10), "old"), "air.flights")
    assert (written.rows, written.tablets, written.already, written.missing) == (10, 2, False, {})
    pipeline.write(rows(spark, range(5, 15), "new"), "air.flights", consistency="ALL")
    pipeline.delete(rows(spark, range(8, 12), ""), "air.flights")
    expected = dict.fromkeys(range(5), "old") | dict.fromkeys((5, 6, 7, 12, 13, 14), "new")
    for level in ("ONE", "QUORUM", "ALL"):
        assert notes(pipeline.read("air.flights", consistency=level)) == expected


@pytest.mark.connect
def test_a_read_shows_what_was_there_when_it_was_opened(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession
) -> None:
    pipeline.write(rows(spark, range(4), "old"), "air.flights")
    before = pipeline.read("air.flights")
    pipeline.write(rows(spark, range(2, 6), "new"), "air.flights")
    cluster.start("A", "X")
    cluster.until(None)
    assert notes(before) == dict.fromkeys(range(4), "old")
    assert notes(pipeline.read("air.flights")) == {0: "old", 1: "old", **dict.fromkeys(range(2, 6), "new")}


@pytest.mark.connect
def test_pipelines_held_at_old_epochs_and_a_tablet_that_moves(cluster: SmallCluster, spark: SparkSession) -> None:
    """Coordinators 1 to 4 of seed 002 with rows: each reaches two replicas only."""
    held = {"100": cluster.pipeline("three", spark)}
    cluster.start("A", "X")
    cluster.start("A", "X", tablet=1)
    cluster.until(Stage.WRITE_BOTH_READ_OLD)
    held["101"] = cluster.pipeline("one", spark)
    cluster.until(Stage.WRITE_BOTH_READ_NEW)
    held["102"] = cluster.pipeline("four", spark)
    cluster.until(Stage.CLEANUP)
    held["103"] = cluster.pipeline("two", spark)
    with cluster.without("AB"):
        held["103"].write(rows(spark, range(0, 9), "by two"), "air.flights")
    with cluster.without("CX"), pytest.raises(ConsistencyNotReached):
        held["101"].read("air.flights").count()
    with cluster.without("CX"), pytest.raises(ConsistencyNotReached):
        held["100"].write(rows(spark, range(9), "by three"), "air.flights")
    with cluster.without("A"):
        written = held["100"].write(rows(spark, range(9), "by three, again"), "air.flights")
    assert written.epoch == cluster.metadata.epoch
    for away in "BCX":
        with cluster.without(away):
            for pipeline in held.values():
                assert set(notes(pipeline.read("air.flights")).values()) == {"by three, again"}


BAD: dict[str, tuple[Callable[[Pipeline, SparkSession], object], type[EpochlakeError], str]] = {
    "unknown table": (
        lambda p, s: p.write(rows(s, range(1), ""), "air.planes"),
        Rejected,
        r"no table 'air.planes' \(tables: air.flights\)",
    ),
    "unknown column": (
        lambda p, s: p.write(s.sql("select 1L id, 'x' note, 2 tail"), "air.flights"),
        InvalidRequest,
        "no column tail",
    ),
    "missing column": (lambda p, s: p.write(s.sql("select 1L id"), "air.flights"), InvalidRequest, "note .* missing"),
    "column twice": (
        lambda p, s: p.write(s.sql("select 1L id, 'x' note, 'y' note"), "air.flights"),
        InvalidRequest,
        "they have note twice",
    ),
    "wrong type": (
        lambda p, s: p.write(s.sql("select 'one' id, 'x' note"), "air.flights"),
        InvalidRequest,
        "column id is bigint, not string",
    ),
    "null in the key": (
        lambda p, s: p.write(s.sql("select cast(null as bigint) id, 'x' note"), "air.flights"),
        InvalidRequest,
        "'id' is a column of the primary key, and it is null",
    ),
    "one key twice": (
        lambda p, s: p.write(s.sql("select 7L id, 'x' note union all select 7L, 'y'"), "air.flights"),
        InvalidRequest,
        "same primary key {'id': 7}",
    ),
    "unknown level": (
        lambda p, s: p.write(rows(s, range(1), ""), "air.flights", consistency="MOST"),
        InvalidRequest,
        "unknown consistency level 'MOST'",
    ),
    "a local quorum from nowhere": (
        lambda p, s: p.write(rows(s, range(1), ""), "air.flights", consistency="LOCAL_QUORUM"),
        InvalidRequest,
        "Say so with datacenter",
    ),
    "null in a key to delete": (
        lambda p, s: p.delete(s.sql("select cast(null as bigint) id"), "air.flights"),
        InvalidRequest,
        "it is null",
    ),
    "deleting without the key": (
        lambda p, s: p.delete(s.sql("select 'x' note"), "air.flights"),
        InvalidRequest,
        "column id .* missing",
    ),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.connect
def test_bad_input_is_one_clear_error_and_commits_nothing(
    cluster: SmallCluster, pipeline: Pipeline, spark: SparkSession, case: str
) -> None:
    attempt, kind, message = BAD[case]
    before = [open_snapshot(cluster.address(node)).version for node in "ABC"]
    with pytest.raises(kind, match=message):
        attempt(pipeline, spark)
    assert [open_snapshot(cluster.address(node)).version for node in "ABC"] == before


def test_rows_of_an_append_only_table_cannot_be_deleted(append_only: SmallCluster, spark: SparkSession) -> None:
    with pytest.raises(InvalidRequest, match="append-only: its rows cannot be deleted"):
        append_only.pipeline("test", spark).delete(rows(spark, range(1), ""), "air.flights")


def test_a_table_that_is_dropped_while_it_is_written_is_an_error(cluster: SmallCluster, spark: SparkSession) -> None:
    from epochlake.jobs import administration

    pipeline = cluster.pipeline("test", spark)
    administration.drop_table(cluster.cluster, "air.flights")
    with pytest.raises(Rejected, match=r"air\.flights was dropped"):
        pipeline.write(rows(spark, range(1), ""), "air.flights")


class Clock:
    """The clock of a driver, so many seconds off."""

    def __init__(self, seconds: float) -> None:
        self._off = seconds

    def time_ns(self) -> int:
        return time.time_ns() + int(self._off * 1e9)

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


def test_the_later_write_wins_when_clocks_disagree(
    cluster: SmallCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, behind = cluster.pipeline("ahead", spark), cluster.pipeline("behind", spark)
    for number, (pipeline, off) in enumerate([(ahead, 3600.0), (behind, -3600.0), (ahead, 3600.0), (behind, -7200.0)]):
        monkeypatch.setattr(planning, "time", Clock(off))
        with cluster.without("ABC"[number % 3]):
            pipeline.write(rows(spark, range(3), f"write {number}"), "air.flights")
    for away in "ABC":
        with cluster.without(away):
            assert set(notes(behind.read("air.flights")).values()) == {"write 3"}


def test_the_later_write_wins_also_when_the_replicas_that_know_of_the_earlier_were_away_at_first(
    cluster: SmallCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only C answers when the clock is set, and C has missed the earlier write, whose clock was an hour ahead."""
    monkeypatch.setattr(planning, "time", Clock(3600.0))
    with cluster.without("C"):
        cluster.pipeline("ahead", spark).write(rows(spark, range(3), "earlier"), "air.flights")
    monkeypatch.setattr(planning, "time", time)
    later = cluster.pipeline("later", spark)
    plans = later.gate.planning
    opened = plans.open_for_write

    def only_c_at_first(table):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(plans, "open_for_write", opened)
        with cluster.without("AB"):
            return opened(table)

    monkeypatch.setattr(plans, "open_for_write", only_c_at_first)
    later.write(rows(spark, range(3), "later"), "air.flights")
    assert set(notes(later.read("air.flights")).values()) == {"later"}


def test_pipelines_write_one_table_from_several_threads_while_its_tablets_move(
    cluster: SmallCluster, spark: SparkSession
) -> None:
    from epochlake.jobs import administration

    failures: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            with cluster.pipeline(f"writer {writer}", spark) as pipeline:
                for batch in range(2):
                    ids = range(100 * writer + 10 * batch, 100 * writer + 10 * batch + 10)
                    pipeline.write(rows(spark, ids, f"by {writer}"), "air.flights")
        except BaseException as error:
            failures.append(error)

    administration.decommission(cluster.cluster, "A")
    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    cluster.settle()
    for thread in threads:
        thread.join()
    assert not failures
    found = notes(cluster.pipeline("reader", spark).read("air.flights", consistency="ALL"))
    assert found == {100 * w + n: f"by {w}" for w in range(3) for n in range(20)}


@pytest.mark.connect
def test_a_flipped_bit_is_never_read_as_another_value_and_the_next_read_goes_elsewhere(
    cluster: SmallCluster, spark: SparkSession
) -> None:
    with cluster.pipeline("writer", spark) as writing:
        writing.write(rows(spark, range(200), "as it was written"), "air.flights", consistency="ALL")
    for path in Path(cluster.address("A").uri).rglob("*.parquet"):
        data = bytearray(path.read_bytes())
        data[data.index(b"\x28\xb5\x2f\xfd") + 12] ^= 1  # within the first page, which is compressed by zstd
        path.write_bytes(data)
    disturbed = 0
    for number in range(6):
        try:
            with cluster.pipeline(f"reader {number}", spark) as reading:
                shown = notes(reading.read("air.flights", consistency="ALL"))
        except ReadDisturbed as error:
            disturbed += "A/d1" in str(error)
        else:
            assert shown == dict.fromkeys(range(200), "as it was written")
    assert 1 <= disturbed <= 2, "each of the two damaged files disturbs one read at most"
