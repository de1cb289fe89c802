"""The gate on tables whose ranges are not the same for ever: on the ring, and tablets that are split and merged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.events import DecideResize, FinishResize
from epochlake.placement.ring.state import Step
from epochlake.placement.tablets.resizing import Resize

from tests.support.clusters import FOUR as NODES
from tests.support.clusters import SmallCluster, SmallTable, placed, spark_stages_all, without_zookeeper
from tests.support.rings import FOUR, assert_settled, ringed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUICK = Configuration(
    pipeline=PipelineSettings(attempts=2), coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4)
)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    spark_stages_all(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)


def rows(spark: SparkSession, ids: range, note: str) -> DataFrame:
    return spark.range(ids.start, ids.stop, ids.step, 1).selectExpr("id", f"'{note}' as note")


def notes(frame: DataFrame) -> dict[int, str]:
    found = [(row.id, row.note) for row in frame.collect()]
    assert len(found) == len(dict(found))
    return dict(found)


@pytest.mark.connect
def test_rows_on_the_ring_are_written_replaced_deleted_and_read_while_a_node_joins_and_another_is_away(
    tmp_path: Path, spark: SparkSession
) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK, rows={})
    held = ring.pipeline("held", spark)
    with ring.without("B"):
        written = held.write(rows(spark, range(0, 40), "old"), "air.flights")
    assert (written.rows, written.tablets) == (40, len(ring.metadata.placements(ring.table.table_id).lows))
    assert set(written.missing) == {"B/d1"}
    expected = dict.fromkeys(range(40), "old")
    ring.add("X", ("dc1", "r2", (0,)))
    for number, step in enumerate((Step.START, None)):
        ring.until(step)
        ids = range(10 * number, 10 * number + 20)
        with ring.without("AX"[number]):
            held.write(rows(spark, ids, f"after {step}"), "air.flights")
            held.delete(rows(spark, ids[:3], ""), "air.flights")
            expected |= dict.fromkeys(ids, f"after {step}")
            expected = {row: note for row, note in expected.items() if row not in ids[:3]}
            assert notes(ring.pipeline("reader", spark).read("air.flights")) == expected
    ring.settle()
    for away in "CX":
        with ring.without(away):
            assert notes(held.read("air.flights", consistency="QUORUM")) == expected


def test_rows_go_to_the_volume_of_a_node_that_their_token_is_on(tmp_path: Path, spark: SparkSession) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK, rows={}, volumes=2)
    pipeline = ring.pipeline("load", spark)
    pipeline.write(rows(spark, range(200), "spread"), "air.flights", consistency="ALL")
    assert notes(pipeline.read("air.flights")) == dict.fromkeys(range(200), "spread")
    used = {path.parents[2] for path in ring.directory.glob("*/air/*/_tablet=*")}
    assert len(used) == 8


def resize(cluster: SmallCluster, kind: Resize) -> None:
    number = cluster.metadata.tablets.maps[cluster.table.table_id].resize_seq_number + 1
    cluster.cluster.commit(DecideResize(cluster.table.table_id, kind, number))
    cluster.cluster.commit(FinishResize(cluster.table.table_id, number))


def die_before_landing(
    table: SmallTable, spark: SparkSession, batch: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(self: CommitPhase, number: int) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CommitPhase, "_round", dying)
        with pytest.raises(KeyboardInterrupt):
            table.pipeline("load", spark).write(batch, "air.flights", batch="2013-01")


@pytest.mark.parametrize("kind", [Resize.SPLIT, Resize.MERGE])
def test_a_batch_is_staged_again_for_the_tokens_that_are_lost_only_whatever_tablets_there_are_by_then(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kind: Resize
) -> None:
    cluster = placed(tmp_path, NODES, {0: "ABC", 1: "ABC"}, append_only=True, configuration=QUICK)
    die_before_landing(cluster, spark, rows(spark, range(40), "same"), monkeypatch)
    staged = {path.stem: path for path in cluster.directory.glob("A/air/*/_tablet=*/*.parquet")}
    lost = {name for name, path in staged.items() if path.parent.name == "_tablet=1-1"}
    for path in cluster.directory.glob("*/air/*/_tablet=1-1/*.parquet"):
        path.unlink()
    resize(cluster, kind)
    retry = cluster.pipeline("load", spark)
    written = retry.write(rows(spark, range(40), "same"), "air.flights", batch="2013-01")
    assert (written.rows, written.already) == (40, False)
    assert notes(retry.read("air.flights", consistency="ALL")) == dict.fromkeys(range(40), "same")
    landed = origins(cluster)
    assert lost
    assert landed & {*staged} == {*staged} - lost, "what was not lost was staged again"
    with pytest.raises(Rejected, match="batch-used"):
        retry.write(rows(spark, range(40), "other"), "air.flights", batch="2013-01")
    again = cluster.pipeline("load", spark).write(rows(spark, range(40), "same"), "air.flights", batch="2013-01")
    assert again.already
    assert origins(cluster) == landed


def origins(cluster: SmallCluster) -> set[str]:
    """Of the live files on A."""
    return {file.origin for file in cluster.files_within("A", -(2**63), 2**63 - 1)}


def test_a_batch_on_the_ring_that_was_staged_before_a_join_lands_once_after_it(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK, rows={})
    die_before_landing(ring, spark, rows(spark, range(60), "same"), monkeypatch)
    ring.add("X", ("dc1", "r2", (0,)))
    ring.until(None)
    ring.settle()
    retry = ring.pipeline("load", spark)
    assert not retry.write(rows(spark, range(60), "same"), "air.flights", batch="2013-01").already
    assert retry.write(rows(spark, range(60), "same"), "air.flights", batch="2013-01").already
    assert notes(retry.read("air.flights")) == dict.fromkeys(range(60), "same")
    assert_settled(ring, range(60))
