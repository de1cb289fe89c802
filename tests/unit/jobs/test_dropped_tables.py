"""Tables that are dropped and restored: with all of their rows, until vacuum comes, and by one of the two only."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.dropped import forget_dropped
from epochlake.jobs.administration.given_up import given_up
from epochlake.jobs.administration.unused_files import sweep
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.upkeep import vacuum
from epochlake.metastore.errors import Rejected, StorageUnavailable
from epochlake.placement.rejections import Code

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper

TABLE = "air.flights"
ROWS = [{"id": row, "note": f"note {row}"} for row in range(20)]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr("epochlake.jobs.administration.unused_files.live_leases", lambda cluster: [])
    monkeypatch.setattr(vacuum, "CLOCK_MARGIN_MS", -10_000)
    made = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})
    made.cluster.write(TABLE, ROWS)
    return made


def rows_of(cluster: Cluster, name: str = TABLE) -> list[dict[str, object]]:
    return sorted(cluster.scan(name).read_all().to_pylist(), key=lambda row: row["id"])


def stored(table: SmallCluster) -> int:
    return sum(1 for node in "ABC" for _ in Path(table.address(node).uri).rglob("*.parquet"))


def test_a_vacuum_whose_clock_has_jumped_ahead_leaves_what_is_kept(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = table.cluster
    administration.keep_history(cluster, TABLE, 3600.0)
    before = stored(table)
    administration.drop_table(cluster, TABLE, keep_seconds=3600.0)
    far = time.time_ns() + 30 * 86_400 * 10**9
    with monkeypatch.context() as jumped:
        jumped.setattr(time, "time_ns", lambda: far)
        done = sweep(cluster)
    assert done.keep_newer_than_ms < far // 1_000_000 - 29 * 86_400_000
    assert (done.replicas, stored(table)) == ((), before)
    administration.restore_table(cluster, TABLE)
    assert rows_of(cluster) == ROWS


def test_no_table_is_dropped_by_a_clock_of_long_ago_as_vacuum_would_come_for_it_at_once(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, real = table.cluster, time.time_ns
    with monkeypatch.context() as late:
        late.setattr(time, "time_ns", lambda: real() - 30 * 86_400 * 10**9)
        with pytest.raises(Rejected, match="seconds behind that of") as refused:
            administration.drop_table(cluster, TABLE, keep_seconds=7 * 86_400.0)
        assert refused.value.code == Code.NOT_RESTORABLE
        # Somebody whose clock is right may find this one in front of the log, and be committed by it.
        late.setattr("epochlake.jobs.administration.right_clocks.ahead_of", lambda storage, root: 0)
        administration.drop_table(cluster, TABLE, keep_seconds=7 * 86_400.0)
    sweep(cluster)
    administration.restore_table(cluster, TABLE)
    assert rows_of(cluster) == ROWS


def test_a_dropped_table_comes_back_with_its_rows_its_options_and_its_batches(table: SmallCluster) -> None:
    cluster = table.cluster
    administration.keep_history(cluster, TABLE, 60.0)
    cluster.write(TABLE, [{"id": 99, "note": "named"}], batch="b")
    before = cluster.table(TABLE)
    administration.drop_table(cluster, TABLE)
    with pytest.raises(Rejected):
        rows_of(cluster)
    [one] = cluster.metadata.dropped.tables.values()
    assert (one.table.full_name, one.tablets) == (TABLE, 2)
    administration.restore_table(cluster, TABLE)
    assert not cluster.metadata.dropped.tables
    assert rows_of(cluster) == [*ROWS, {"id": 99, "note": "named"}]
    after = cluster.table(TABLE)
    assert (after.table_id, after.columns, after.options) == (before.table_id, before.columns, before.options)
    assert after.replicas_by_node == before.replicas_by_node
    assert cluster.write(TABLE, [{"id": 99, "note": "named"}], batch="b").already
    cluster.write(TABLE, [{"id": 5, "note": "after"}])
    assert cluster.get(TABLE, 5) == {"id": 5, "note": "after"}


def test_a_log_with_a_dropped_and_a_restored_table_is_replayed_to_the_same_state(table: SmallCluster) -> None:
    cluster = table.cluster
    administration.drop_table(cluster, TABLE, keep_seconds=7.0)
    dropped = cluster.metadata
    administration.restore_table(cluster, TABLE)
    with Cluster(cluster.configuration) as other:
        assert other.catch_up() == cluster.metadata
        assert other.at(dropped.epoch) == dropped
        assert other.at(dropped.epoch).dropped.tables != {}


def test_vacuum_leaves_a_dropped_table_alone_for_as_long_as_was_said(table: SmallCluster) -> None:
    administration.drop_table(table.cluster, TABLE, keep_seconds=3600.0)
    files = stored(table)
    sweep(table.cluster, older_than_seconds=0)
    assert stored(table) == files > 0
    administration.restore_table(table.cluster, TABLE)
    assert rows_of(table.cluster) == ROWS


def test_what_vacuum_has_taken_cannot_be_restored_and_the_log_says_so(table: SmallCluster) -> None:
    administration.drop_table(table.cluster, TABLE)
    assert sum(one.files for one in sweep(table.cluster, older_than_seconds=0, dry_run=True).replicas) > 0
    assert stored(table) > 0
    assert table.cluster.metadata.dropped.tables
    sweep(table.cluster, older_than_seconds=0)
    assert stored(table) == 0
    with pytest.raises(Rejected, match="was dropped that can still") as rejected:
        administration.restore_table(table.cluster, TABLE)
    assert rejected.value.code == "unknown-table"
    assert "ForgetTable" in {one.event for one in table.cluster.history()}


def test_a_table_that_is_there_need_not_be_restored(table: SmallCluster) -> None:
    for table_id in (None, table.table.table_id):
        with pytest.raises(Rejected, match=f"table {TABLE} is there, and no other one") as rejected:
            administration.restore_table(table.cluster, TABLE, table_id=table_id)
        assert rejected.value.code == "table-exists"
    with pytest.raises(Rejected, match="was dropped that can still") as rejected:
        administration.restore_table(table.cluster, TABLE, table_id="another")
    assert rejected.value.code == "unknown-table"


def test_of_vacuum_and_a_restore_at_the_same_time_one_gives_way(table: SmallCluster) -> None:
    cluster = table.cluster
    administration.drop_table(cluster, TABLE)
    seen = list(cluster.metadata.dropped.tables.values())
    administration.restore_table(cluster, TABLE)
    forget_dropped(cluster, seen)  # a vacuum that had looked before
    assert not list(given_up(cluster, cluster.catch_up()))
    sweep(cluster, older_than_seconds=0)
    assert rows_of(cluster) == ROWS
    administration.drop_table(cluster, TABLE)
    assert not list(given_up(cluster, cluster.catch_up())), "nothing may go before the log says so"
    forget_dropped(cluster, seen)
    assert list(given_up(cluster, cluster.catch_up()))


def test_a_table_whose_name_was_taken_comes_back_under_another_one(table: SmallCluster) -> None:
    cluster = table.cluster
    administration.drop_table(cluster, TABLE)
    first = next(iter(cluster.metadata.dropped.tables))
    administration.create_table(cluster, TABLE, [("id", "bigint", False)], ["id"], tablets=1)
    with pytest.raises(Rejected) as rejected:
        administration.restore_table(cluster, TABLE)
    assert rejected.value.code == "table-exists"
    administration.drop_table(cluster, TABLE)
    administration.restore_table(cluster, TABLE)
    assert rows_of(cluster) == []
    administration.restore_table(cluster, TABLE, table_id=first, new_name="old_flights")
    assert rows_of(cluster, "air.old_flights") == ROWS


def test_a_table_of_a_dropped_keyspace_comes_back_where_the_keyspace_is_made_again_as_it_was(
    table: SmallCluster,
) -> None:
    cluster = table.cluster
    administration.drop_table(cluster, TABLE)
    administration.drop_keyspace(cluster, "air")
    with pytest.raises(Rejected) as rejected:
        administration.restore_table(cluster, TABLE)
    assert rejected.value.code == "unknown-keyspace"
    administration.create_keyspace(cluster, "air", {"dc1": 2})
    with pytest.raises(Rejected):
        administration.restore_table(cluster, TABLE)
    administration.drop_keyspace(cluster, "air")
    administration.create_keyspace(cluster, "air", {"dc1": 3})
    administration.restore_table(cluster, TABLE)
    assert rows_of(cluster) == ROWS


def test_a_table_is_not_restored_without_a_majority_of_its_replicas(table: SmallCluster) -> None:
    administration.drop_table(table.cluster, TABLE)
    with table.without("BC"), pytest.raises(StorageUnavailable, match="too few replicas"):
        administration.restore_table(table.cluster, TABLE)
    with table.without("C"):
        administration.restore_table(table.cluster, TABLE)
        assert rows_of(table.cluster) == ROWS


def test_storage_that_was_made_anew_while_a_table_was_dropped_is_no_replica_of_it(table: SmallCluster) -> None:
    cluster = table.cluster
    administration.drop_table(cluster, TABLE)
    shutil.rmtree(table.address("C").uri)
    with table.without("B"), pytest.raises(StorageUnavailable, match="was lost"):
        administration.restore_table(cluster, TABLE)
    administration.restore_table(cluster, TABLE)
    for level in ("ONE", "QUORUM"):
        assert sorted(cluster.scan(TABLE, consistency=level).read_all().to_pylist(), key=lambda row: row["id"]) == ROWS
    with pytest.raises(ConsistencyNotReached, match="was lost"):
        cluster.scan(TABLE, consistency="ALL").read_all()


def test_a_table_comes_back_where_a_node_without_a_replica_of_it_has_left(table: SmallCluster) -> None:
    cluster = table.cluster
    administration.drop_table(cluster, TABLE)
    administration.decommission(cluster, "X")
    table.settle()
    administration.restore_table(cluster, TABLE)
    assert rows_of(cluster) == ROWS


def test_a_table_does_not_come_back_where_a_node_with_a_replica_of_it_has_left(table: SmallCluster) -> None:
    cluster = table.cluster
    administration.drop_table(cluster, TABLE)
    administration.decommission(cluster, "A")
    table.settle()
    with pytest.raises(Rejected) as refused:
        administration.restore_table(cluster, TABLE)
    assert refused.value.code == Code.NOT_RESTORABLE
    assert cluster.metadata.dropped.tables
