"""Spark shows of a table with a time to live what a read without Spark shows, and drops the same by compaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest
from epochlake.jobs import administration
from epochlake.jobs.gate import expiry
from epochlake.jobs.upkeep import compaction
from epochlake.jobs.upkeep.compacting import EVERYTHING

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.compactions import without_leases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "air.flights"
COLUMNS = [("id", "bigint", False), ("seen", "timestamp", True), ("note", "string", True)]
NOW = datetime.now(UTC).replace(microsecond=0)
DAY = 86_400


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    without_leases(monkeypatch)
    made = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, columns=COLUMNS, primary_key=["id"])
    for note, keys in (("first", range(60)), ("second", range(0, 60, 2)), ("third", range(0, 60, 3))):
        rows = [{"id": key, "seen": seen(key, note), "note": note} for key in keys]
        made.cluster.write(TABLE, rows)
    administration.set_ttl(made.cluster, TABLE, "seen", timedelta(days=30))
    return made


def seen(key: int, note: str) -> datetime | None:
    """Of each version of a row another moment: none, just now, a year ago, or in a year."""
    chosen = (key + len(note)) % 4
    return None if chosen == 0 else NOW + timedelta(days=(0, -365, 365)[chosen - 1])


EXPECTED = {
    key: note
    for key in range(60)
    for note in ["third" if key % 3 == 0 else "second" if key % 2 == 0 else "first"]
    if (moment := seen(key, note)) is None or moment > NOW - timedelta(days=30)
}


def test_every_read_of_spark_shows_the_rows_that_have_not_expired(table: SmallCluster, spark: SparkSession) -> None:
    cluster = table.cluster
    assert 0 < len(EXPECTED) < 60
    assert {row["id"]: row["note"] for row in cluster.scan(TABLE).read_all().to_pylist()} == EXPECTED
    firsts = {key for key, note in EXPECTED.items() if note == "first"}
    with cluster.pipeline("reader", spark) as pipeline:
        frame = pipeline.read(TABLE)
        assert {row.id: row.note for row in frame.collect()} == EXPECTED
        assert frame.columns == ["id", "seen", "note"]
        assert {row.id for row in frame.where("note = 'first'").select("id").collect()} == firsts
        assert {row.id for row in pipeline.read(TABLE, columns=["id"]).collect()} == set(EXPECTED)
        assert {row.id for row in pipeline.read(TABLE, where=pc.field("note") == "first").collect()} == firsts
        keys = [{"id": key} for key in range(10)]
        assert {row.id for row in pipeline.read(TABLE, keys=keys).collect()} == {key for key in EXPECTED if key < 10}
        assert pipeline.count(TABLE) == frame.count() == len(EXPECTED)


def test_a_frame_shows_the_same_rows_whenever_it_is_executed(
    table: SmallCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.cluster.pipeline("reader", spark) as pipeline:
        frames = [pipeline.read(TABLE), pipeline.read(TABLE, columns=["id"])]
        monkeypatch.setattr(expiry.time, "time_ns", lambda: int((NOW + timedelta(days=90)).timestamp()) * 10**9)
        assert [{row.id for row in frame.collect()} for frame in frames] == [set(EXPECTED)] * 2
        later = {key for key, note in EXPECTED.items() if seen(key, note) in (None, NOW + timedelta(days=365))}
        assert {row.id for row in pipeline.read(TABLE).collect()} == later < set(EXPECTED)


def test_compaction_by_spark_drops_what_has_expired(
    table: SmallCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = int((datetime.now(UTC) + timedelta(hours=2)).timestamp()) * 10**9
    monkeypatch.setattr(expiry.time, "time_ns", lambda: later)
    monkeypatch.setattr(compaction, "behind", lambda storage, root: None)  # it is two hours later there, too
    done = compaction.compact(table.cluster, TABLE, spark, policy=EVERYTHING, tombstone_grace_seconds=0.0)
    assert sum(one.rows_after for one in done.compacted) == len(EXPECTED)
    assert {row["id"]: row["note"] for row in table.cluster.scan(TABLE).read_all().to_pylist()} == EXPECTED
