"""A coordinator that compacts beside endless writes: killed anywhere, followed by another one, and out of the way."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.upkeep.repair import look, repair
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, LogSettings, ZooKeeperSettings
from epochlake.metastore.metadata.model import RequestState

from tests.support.clusters import FOUR, join
from tests.support.compacting_process import start_service
from tests.support.slices import some
from tests.support.zookeeper import Ensemble

TABLE = "air.notes"
KEYS = 60
pytestmark = pytest.mark.timeout(3600)

PATIENCE_SECONDS = 600.0
"""On a machine that does twenty other things a round of compaction takes half a minute."""

KILLS = some(5, 2)


class Upserts:
    """Writes and deletes of random keys, and what of them has to be there afterwards."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.expected: dict[int, str] = {}
        self._chance = chance
        self._number = 0

    def once(self) -> None:
        self._number += 1
        keys = self._chance.sample(range(KEYS), 12)
        if self._number % 5 == 0:
            self.cluster.delete(TABLE, [{"id": key} for key in keys])
            for key in keys:
                self.expected.pop(key, None)
            return
        note = f"{self._number}"
        self.cluster.write(TABLE, [{"id": key, "note": note} for key in keys])
        self.expected |= dict.fromkeys(keys, note)

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            assert time.monotonic() < deadline
            self.once()

    def assert_shown(self) -> None:
        for level in ("ONE", "QUORUM"):
            rows = self.cluster.scan(TABLE, consistency=level).read_all().to_pylist()
            assert sorted((row["id"], row["note"]) for row in rows) == sorted(self.expected.items())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Ensemble(tmp_path / "zookeeper", size=1) as server:
        configuration = Configuration(
            root=str(tmp_path / "root"),
            zookeeper=ZooKeeperSettings(connect=server.connect_string, session_timeout_seconds=2.0),
            coordinator=CoordinatorSettings(backoff_seconds=0.05, compaction_bytes_per_second=0),
            log=LogSettings(poll_seconds=0.1),
        )
        from epochlake.metastore.metastore import init_cluster

        init_cluster(configuration)
        with Cluster(configuration) as cluster:
            for name, (_, rack) in FOUR.items():
                join(cluster, tmp_path / "volumes", name, rack)
            administration.create_keyspace(cluster, "air", {"dc1": 3})
            columns = [("id", "bigint", False), ("note", "string", True)]
            administration.create_table(cluster, TABLE, columns, ("id",), tablets=2)
            yield cluster


def merged(cluster: Cluster) -> set[str]:
    return {
        file.file_id
        for snapshot in look(cluster, TABLE).snapshots.values()
        for file in snapshot.all_files.values()
        if file.is_merged
    }


def most_files(cluster: Cluster) -> int:
    return max(len(snapshot.all_files) for snapshot in look(cluster, TABLE).snapshots.values())


def test_compaction_keeps_up_with_writes_however_often_its_coordinator_is_killed(cluster: Cluster, seed: int) -> None:
    chance = random.Random(seed)
    upserts = Upserts(cluster, chance)
    for _ in range(KILLS):
        doomed = start_service(cluster.configuration, die_at=chance.randint(1, 12))
        upserts.until(lambda doomed=doomed: not doomed.is_alive())
        doomed.join()
        assert doomed.exitcode == -signal.SIGKILL
        upserts.assert_shown()
    before = merged(cluster)
    last = start_service(cluster.configuration)
    try:
        upserts.until(lambda: len(merged(cluster) - before) >= 4)
        upserts.assert_shown()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while most_files(cluster) > 20:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        upserts.assert_shown()
    finally:
        last.kill()
        last.join()
    repair(cluster, TABLE)
    upserts.assert_shown()
    assert verify_replicas(cluster.storage, cluster.catch_up(), cluster.ledger, cluster.receipts).violations == ()


def test_a_node_that_leaves_while_tables_are_compacted_has_left_soon_and_no_row_is_lost(cluster: Cluster) -> None:
    upserts = Upserts(cluster, random.Random(7))
    service = start_service(cluster.configuration)
    try:
        upserts.until(lambda: bool(merged(cluster)))
        request = administration.decommission(cluster, "A").request_id
        upserts.until(lambda: cluster.catch_up().requests[request].state is RequestState.DONE)
        before = merged(cluster)
        upserts.until(lambda: bool(merged(cluster) - before))
        upserts.assert_shown()
    finally:
        service.kill()
        service.join()
    assert cluster.catch_up().node("A").state.value == "left"
