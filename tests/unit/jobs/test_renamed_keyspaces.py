"""Keyspaces that get another name: tables follow, no file moves, and who planned before catches up or is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.unused_files import sweep
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.writing import Writing
from epochlake.jobs.upkeep import vacuum
from epochlake.metastore.errors import Rejected
from epochlake.placement.rejections import Code

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.compactions import reaching

OLD, NEW = "air.flights", "sky.flights"
ROWS = [{"id": row, "note": f"note {row}"} for row in range(8)]
MORE = {"id": 99, "note": "more"}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr("epochlake.jobs.administration.unused_files.live_leases", lambda cluster: [])
    monkeypatch.setattr(vacuum, "CLOCK_MARGIN_MS", -10_000)
    made = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})
    made.cluster.write(OLD, ROWS, batch="first")
    return made


def rows_of(cluster: Cluster, name: str = NEW) -> list[dict[str, object]]:
    return sorted(cluster.scan(name).read_all().to_pylist(), key=lambda row: row["id"])


def rename(cluster: Cluster, name: str = "air", new_name: str = "sky") -> None:
    administration.rename_keyspace(cluster, name, new_name)


def test_tables_follow_their_keyspace_and_no_file_moves(table: SmallCluster) -> None:
    cluster = table.cluster
    before = cluster.table(OLD)
    uris = [table.address(node).uri for node in "ABC"]
    rename(cluster)
    after = cluster.table(NEW)
    assert (after.table_id, after.version) == (before.table_id, before.version)
    assert rows_of(cluster) == ROWS
    assert cluster.write(NEW, ROWS, batch="first").already
    cluster.write(NEW, [MORE])
    assert rows_of(cluster) == [*ROWS, MORE]
    assert all(Path(uri, "_delta_log").is_dir() for uri in uris)
    assert not any(Path(uri).parent.with_name("sky").exists() for uri in uris)
    sweep(cluster, older_than_seconds=0)
    assert rows_of(cluster) == [*ROWS, MORE]


def test_the_old_name_is_refused_with_the_new_one(table: SmallCluster) -> None:
    cluster = table.cluster
    rename(cluster)
    rename(cluster, "sky", "heavens")
    for old in ("air", "sky"):
        with pytest.raises(Rejected) as refused:
            cluster.write(f"{old}.flights", [MORE])
        assert (refused.value.code, "use heavens.flights" in refused.value.hint) == (Code.UNKNOWN_TABLE, True)
        with pytest.raises(Rejected) as refused:
            administration.drop_keyspace(cluster, old)
        assert (refused.value.code, "use heavens" in refused.value.hint) == (Code.UNKNOWN_KEYSPACE, True)
    rename(cluster, "heavens", "air")
    assert cluster.metadata.keyspace("air").former_names == ("sky", "heavens")
    assert rows_of(cluster, OLD) == ROWS


def test_a_keyspace_that_gets_the_old_name_shares_nothing_with_the_renamed_one(table: SmallCluster) -> None:
    cluster = table.cluster
    rename(cluster)
    administration.create_keyspace(cluster, "air", {"dc1": 3})
    administration.create_table(cluster, OLD, [("id", "bigint", False)], ["id"], tablets=1)
    cluster.write(OLD, [{"id": 1}])
    assert (rows_of(cluster, OLD), rows_of(cluster)) == ([{"id": 1}], ROWS)
    administration.drop_table(cluster, OLD)
    sweep(cluster, older_than_seconds=0)
    sweep(cluster, older_than_seconds=0)
    assert rows_of(cluster) == ROWS
    administration.drop_keyspace(cluster, "air")
    rename(cluster, "sky", "air")
    assert rows_of(cluster, OLD) == ROWS


def in_between(monkeypatch: pytest.MonkeyPatch, of: type, name: str, cluster: Cluster) -> list[int]:
    """Once, just before a method is called, somebody else renames the keyspace."""
    proper, done = getattr(of, name), []

    def called(self: object, *asked: object, **options: object) -> object:
        if not done:
            done.append(1)
            with Cluster(cluster.configuration) as other:
                rename(other)
            cluster.catch_up()
        return proper(self, *asked, **options)

    monkeypatch.setattr(of, name, called)
    return done


@pytest.mark.parametrize("batch", [None, "b"])
@pytest.mark.parametrize(("of", "name"), [(Writing, "_stage"), (Writing, "land"), (CommitPhase, "_round")])
def test_a_write_that_was_planned_before_lands_in_the_renamed_table(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, of: type, name: str, batch: str | None
) -> None:
    cluster = table.cluster
    done = in_between(monkeypatch, of, name, cluster)
    cluster.write(OLD, [MORE], batch=batch)
    assert done
    assert rows_of(cluster) == [*ROWS, MORE]


def test_a_write_that_plans_its_rounds_again_after_the_rename_knows_its_keyspace(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas are fenced above what the write was planned on, so that it catches up while it lands."""
    cluster, done, proper = table.cluster, [], CommitPhase._round

    def fenced(self: CommitPhase, number: int) -> int:
        if not done:
            done.append(1)
            with Cluster(cluster.configuration) as other:
                rename(other)
                administration.alter_table(other, NEW, add=["more string"])
        return proper(self, number)

    monkeypatch.setattr(CommitPhase, "_round", fenced)
    cluster.write(OLD, [MORE])
    assert done
    assert [row["id"] for row in rows_of(cluster)] == [*range(8), 99]


def test_a_batch_that_had_not_landed_before_the_rename_lands_once_after_it(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = table.cluster
    with monkeypatch.context() as patch:
        patch.setattr(commit_phase, "commit_files", reaching({1}))
        with pytest.raises(ConsistencyNotReached):
            cluster.write(OLD, [MORE], batch="b")
    rename(cluster)
    cluster.write(NEW, [MORE], batch="b")
    assert cluster.write(NEW, [MORE], batch="b").already
    assert rows_of(cluster) == [*ROWS, MORE]


def test_a_dropped_table_follows_and_is_restored_under_the_new_name(table: SmallCluster) -> None:
    cluster = table.cluster
    administration.drop_table(cluster, OLD)
    rename(cluster)
    with pytest.raises(Rejected) as refused:
        administration.restore_table(cluster, OLD)
    assert f"use {NEW}" in refused.value.hint
    administration.restore_table(cluster, NEW)
    assert rows_of(cluster) == ROWS


def test_a_dropped_table_of_a_keyspace_that_is_gone_follows_no_other_one_that_had_its_name(
    table: SmallCluster,
) -> None:
    cluster = table.cluster
    administration.drop_table(cluster, OLD)
    administration.drop_keyspace(cluster, "air")
    administration.create_keyspace(cluster, "spare", {"dc1": 1})
    rename(cluster, "spare", "air")
    with pytest.raises(Rejected) as refused:
        administration.restore_table(cluster, OLD)
    assert refused.value.code is Code.INVALID_TABLETS
    rename(cluster, "air", "far")
    assert [one.table.full_name for one in cluster.catch_up().dropped.tables.values()] == [OLD]
    administration.create_keyspace(cluster, "air", {"dc1": 3})
    administration.restore_table(cluster, OLD)
    assert rows_of(cluster, OLD) == ROWS


def test_a_dropped_table_of_a_renamed_keyspace_is_swept_where_it_is(table: SmallCluster) -> None:
    cluster = table.cluster
    uri = table.address("A").uri
    administration.drop_table(cluster, OLD)
    rename(cluster)
    sweep(cluster, older_than_seconds=0)
    assert not Path(uri).exists()


def test_a_stream_of_changes_goes_on(table: SmallCluster) -> None:
    cluster = table.cluster
    administration.keep_changes(cluster, OLD)
    stream = cluster.metadata.change_streams.by_table
    rename(cluster)
    cluster.write(NEW, [MORE])
    assert cluster.metadata.change_streams.by_table == stream
    assert rows_of(cluster) == [*ROWS, MORE]


@pytest.mark.parametrize(
    ("name", "new_name", "code"),
    [
        ("no", "sky", Code.UNKNOWN_KEYSPACE),
        ("air", "air", Code.NOTHING_TO_DO),
        ("air", "../x", Code.INVALID_NAME),
        ("air", "", Code.INVALID_NAME),
        ("air", "sea", Code.KEYSPACE_EXISTS),
    ],
)
def test_what_is_no_new_name_is_refused(table: SmallCluster, name: str, new_name: str, code: Code) -> None:
    cluster = table.cluster
    administration.create_keyspace(cluster, "sea", {"dc1": 1})
    epoch = cluster.metadata.epoch
    with pytest.raises(Rejected) as refused:
        rename(cluster, name, new_name)
    assert (refused.value.code, cluster.catch_up().epoch) == (code, epoch)
