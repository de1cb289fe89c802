"""Compaction and repair with real rows, written, deleted and read by pipelines, merged by Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from epochlake.jobs.replicas.files import MERGED
from epochlake.jobs.replicas.reading import Scan, read_plan, read_ranked, scan_rows
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.upkeep import compaction
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.placement.hashing import token_of
from epochlake.placement.tokens import MIN_TOKEN, TOKEN

from tests.support import slices
from tests.support.clusters import FOUR, SmallCluster, placed, spark_stages_all, without_zookeeper
from tests.support.compactions import reaching, without_leases

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUICK = Configuration(
    pipeline=PipelineSettings(attempts=2), coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4)
)
TABLE = "air.flights"
ODD = [
    ("id", "bigint", False),
    ("at", "timestamp", True),
    ("amount", "decimal(12,3)", True),
    ("tags", "array<struct<name:string,weight:double>>", True),
    ("more", "map<string,bigint>", True),
    ("raw", "binary", True),
]


@pytest.fixture
def no_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    without_leases(monkeypatch)


def rows(spark: SparkSession, notes: dict[int, str]) -> DataFrame:
    return spark.createDataFrame(list(notes.items()), "id bigint, note string")


def shown(table: SmallCluster, spark: SparkSession, level: str) -> dict[int, str]:
    with table.cluster.pipeline("reader", spark) as pipeline:
        found = [(row.id, row.note) for row in pipeline.read(TABLE, consistency=level).collect()]
    assert len(found) == len(dict(found))
    return dict(found)


@pytest.mark.usefixtures("no_leases")
def test_any_history_of_writes_deletes_compactions_and_repairs_reads_like_a_dict(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw = random.Random(seed)
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, configuration=QUICK)
    model: dict[int, str] = {}
    for number in range(slices.some(10, 6)):
        kind = draw.choice(["write", "write", "delete", "compact", "half", "repair"])
        lost = draw.choice(["", "", "A", "B", "C"]) if kind in ("write", "delete") else ""
        with table.without(lost):
            if kind == "write":
                notes = {draw.randrange(60): f"note {number}" for _ in range(20)}
                with table.cluster.pipeline("writer", spark) as pipeline:
                    pipeline.write(rows(spark, notes), TABLE)
                model |= notes
            elif kind == "delete":
                keys = {draw.randrange(60): "" for _ in range(10)}
                with table.cluster.pipeline("writer", spark) as pipeline:
                    pipeline.delete(rows(spark, keys), TABLE)
                model = {row: note for row, note in model.items() if row not in keys}
            elif kind == "repair":
                assert repair(table.cluster, TABLE).complete
            else:
                some = table.volumes(draw.sample("ABC", draw.randrange(3)) if kind == "half" else "ABC")
                with monkeypatch.context() as patch:
                    patch.setattr(compaction, "commit_files", reaching(some))
                    compact(table.cluster, TABLE, spark, policy=EVERYTHING, tombstone_grace_seconds=0.0)
            assert shown(table, spark, "QUORUM") == model, (number, kind)
    compact(table.cluster, TABLE, spark, policy=EVERYTHING, tombstone_grace_seconds=0.0)
    for lost in ("AB", "BC", "CA"):
        with table.without(lost):
            assert shown(table, spark, "ONE") == model


@pytest.mark.usefixtures("no_leases")
def test_columns_of_every_kind_come_through_a_merge_as_they_were(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_stages_all(monkeypatch)  # a file that tablets share has rows of both
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, configuration=QUICK, columns=ODD, append_only=True)
    frame = spark.range(0, 300, 1, 1).selectExpr(
        "id",
        "if(id % 7 = 0, null, timestamp_micros(id * 1234567)) as at",
        "cast(id / 8 as decimal(12,3)) as amount",
        "array(named_struct('name', cast(id as string), 'weight', id / 2D)) as tags",
        "map('twice', id * 2) as more",
        "cast(cast(id as string) as binary) as raw",
    )
    with table.cluster.pipeline("writer", spark) as pipeline:
        for part in range(3):
            pipeline.write(frame.where(f"id % 3 = {part}"), TABLE)
        before = [row.asDict(recursive=True) for row in pipeline.read(TABLE).orderBy("id").collect()]
    report = compact(table.cluster, TABLE, spark, policy=EVERYTHING)
    assert [(one.files_before, one.files_after, one.rows_after) for one in report.compacted] == [
        (3, 1, one.rows_before) for one in report.compacted
    ]
    with table.cluster.pipeline("reader", spark) as pipeline:
        after = [row.asDict(recursive=True) for row in pipeline.read(TABLE, consistency="ALL").orderBy("id").collect()]
    assert after == before
    assert len(after) == 300
    assert repair(table.cluster, TABLE, check_bytes=True, spark=spark).complete


@pytest.mark.usefixtures("no_leases")
def test_a_named_batch_that_is_written_again_after_its_files_were_compacted_lands_once(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, configuration=QUICK, append_only=True)
    batch = dict.fromkeys(range(30), "batch")
    with table.cluster.pipeline("nightly", spark) as pipeline:
        assert not pipeline.write(rows(spark, batch), TABLE, batch="2013-01").already
        pipeline.write(rows(spark, {100 + row: "other" for row in range(30)}), TABLE)
    for nodes in ("A", "ABC"):
        with monkeypatch.context() as patch:
            patch.setattr(compaction, "commit_files", reaching(table.volumes(nodes)))
            compact(table.cluster, TABLE, spark, policy=EVERYTHING)
        with table.cluster.pipeline("nightly", spark) as pipeline:
            assert pipeline.write(rows(spark, batch), TABLE, batch="2013-01").already
        for level in ("ONE", "QUORUM", "ALL"):
            assert len(shown(table, spark, level)) == 60


@pytest.mark.usefixtures("no_leases")
def test_spark_copies_what_is_missing_and_finds_what_is_damaged(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_stages_all(monkeypatch)  # a file for each tablet
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, configuration=QUICK)
    with table.cluster.pipeline("writer", spark) as pipeline:
        with table.without("C"):
            pipeline.write(rows(spark, dict.fromkeys(range(100), "a")), TABLE)
        pipeline.write(rows(spark, dict.fromkeys(range(50), "b")), TABLE)
    path = next(Path(table.address("A").uri).glob("*/*.parquet"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)
    report = repair(table.cluster, TABLE, check_bytes=True, spark=spark)
    assert [(one.replica, one.healed) for one in report.damaged] == [("A/d1", True)]
    assert [(one.replica, one.files) for one in report.replicas] == [("C/d1", 2)]
    assert report.complete
    held = [sorted(open_snapshot(table.address(node)).all_files) for node in "ABC"]
    assert held[0] == held[1] == held[2]


@pytest.mark.usefixtures("no_leases")
def test_files_that_leave_tokens_out_are_read_in_part_merged_and_ranked(tmp_path: Path, spark: SparkSession) -> None:
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, configuration=QUICK)
    model = dict.fromkeys(range(80), "first")
    with table.cluster.pipeline("writer", spark) as pipeline:
        pipeline.write(rows(spark, model), TABLE)
        pipeline.write(rows(spark, dict.fromkeys(range(20), "second")), TABLE)
    assert compact(table.cluster, TABLE, spark, policy=EVERYTHING).complete
    thin = [
        path
        for path in tmp_path.rglob(f"{MERGED}*.parquet")
        if pq.read_table(path, partitioning=None)[TOKEN].null_count
    ]
    assert thin
    with table.cluster.pipeline("writer", spark) as pipeline:
        pipeline.write(rows(spark, dict.fromkeys(range(10, 40), "third")), TABLE)
    model |= dict.fromkeys(range(20), "second") | dict.fromkeys(range(10, 40), "third")
    with table.cluster.pipeline("reader", spark) as pipeline:
        plan = pipeline.gate.plan_read(table.table)
        assert plan.merged
        ranked = {row.id: row.note for row in read_ranked(spark, table.table, plan).collect()}
        merged = read_plan(spark, table.table, plan)
        assert {row.id: row.note for row in merged.collect()} == ranked == model
        # A part of a file is read by the tokens that it leaves out.
        tokens = {row: token_of([("bigint", str(row))]) for row in model}
        middle = sorted(tokens.values())[len(tokens) // 2]
        paths = [path for scan in plan.merged for path in scan.paths if f"/{MERGED}" in path]
        part = scan_rows(spark, table.table, Scan(tuple(paths), ((MIN_TOKEN, middle),)))
        assert {row.id for row in part.collect()} == {row for row, token in tokens.items() if token <= middle}
    # Spark merges what has none, too.
    assert compact(table.cluster, TABLE, spark, policy=EVERYTHING).complete
    assert shown(table, spark, "ALL") == model
