"""Pipelines and jobs that ZooKeeper does not know of are seen by vacuum all the same: by a lease at the root."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.metastore import announcing
from epochlake.metastore.announcing import EXPIRE_SECONDS, FORGET_SECONDS, announced, forget_expired, stored_leases
from epochlake.metastore.errors import CoordinationUnavailable, UnknownFormat
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import begin, without_zookeeper
from tests.support.storages import STORAGE


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    without_zookeeper(monkeypatch)
    return begin(tmp_path)


def names(cluster: Cluster) -> list[str]:
    return [lease.name for lease in stored_leases(STORAGE, cluster.root.leases)]


def pipeline(cluster: Cluster, name: str = "load") -> Pipeline:
    return Pipeline(cluster, name, None)  # type: ignore[arg-type]


def aged(cluster: Cluster, seconds: float) -> None:
    for file in Path(cluster.root.leases).iterdir():
        os.utime(file, (time.time() - seconds,) * 2)


def test_without_zookeeper_pipelines_and_jobs_are_announced_at_the_root_until_they_end(cluster: Cluster) -> None:
    with pipeline(cluster) as load, announced(cluster, "repair", "air.flights"):
        [lease, repair] = sorted(stored_leases(STORAGE, cluster.root.leases), key=lambda lease: lease.name)
        assert (lease.name, repair.name) == ("load", "repair")
        assert (lease.pipeline_id, lease.epoch, lease.pid) == (load.pipeline_id, 1, os.getpid())
        assert (repair.tables, abs(lease.started_at / 1000 - time.time()) < 60) == (("air.flights",), True)
    assert names(cluster) == []


def test_without_zookeeper_and_root_nothing_begins_that_vacuum_would_not_see(cluster: Cluster) -> None:
    load = pipeline(cluster)
    shutil.rmtree(Path(cluster.root.uri))
    with pytest.raises(CoordinationUnavailable, match="load was not begun, as nothing would keep vacuum"):
        load.__enter__()
    with pytest.raises(CoordinationUnavailable), announced(cluster, "repair"):
        pytest.fail("it ran unannounced")


def test_the_lease_is_renewed_while_its_process_lives_and_expires_after_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(announcing, "RENEW_SECONDS", 0.05)
    with pipeline(cluster):
        aged(cluster, EXPIRE_SECONDS + 60)
        deadline = time.monotonic() + 300
        while names(cluster) != ["load"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    abandoned = announcing.Presence(cluster, "abandoned", "p", 1)
    monkeypatch.setattr(abandoned, "_keep", lambda: None)  # as in a process that was killed
    abandoned.begin()
    assert names(cluster) == ["abandoned"]
    aged(cluster, EXPIRE_SECONDS + 60)
    assert names(cluster) == []
    forget_expired(STORAGE, cluster.root.leases)
    assert len(list(Path(cluster.root.leases).iterdir())) == 1
    aged(cluster, FORGET_SECONDS + 60)
    forget_expired(STORAGE, cluster.root.leases)
    assert list(Path(cluster.root.leases).iterdir()) == []


def test_a_lease_counts_for_whoever_has_a_clock_that_has_jumped_ahead(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is renewed by the clock of the root, and would look as if it had not been for weeks."""
    real, real_ns, ahead = time.time, time.time_ns, 30 * 86_400
    with pipeline(cluster):
        with monkeypatch.context() as jumped:
            jumped.setattr(time, "time", lambda: real() + ahead)
            jumped.setattr(time, "time_ns", lambda: real_ns() + ahead * 10**9)
            forget_expired(STORAGE, cluster.root.leases)
            assert names(cluster) == ["load"]
            aged(cluster, ahead + FORGET_SECONDS + 60)
            assert names(cluster) == []
            forget_expired(STORAGE, cluster.root.leases)
        assert list(Path(cluster.root.leases).iterdir()) == []


def test_a_stored_lease_that_cannot_be_read_is_not_overlooked(cluster: Cluster) -> None:
    Path(cluster.root.leases).mkdir()
    (Path(cluster.root.leases) / "newer.json").write_text('{"format": 2}')
    with pytest.raises(UnknownFormat, match=r"newer\.json"):
        stored_leases(STORAGE, cluster.root.leases)


def test_a_pipeline_outside_its_with_raises_and_says_what_to_do(cluster: Cluster) -> None:
    load = pipeline(cluster)
    for use in (load.read, lambda table: load.write(None, table), lambda table: load.delete(None, table)):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=r"'load' has not begun.*with cluster.pipeline\('load', spark\)"):
            use("air.flights")
    with load, pytest.raises(InvalidRequest, match="was begun before"):
        load.__enter__()
    for use in (load.read, lambda table: load.write(None, table)):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="has ended with its `with`"):
            use("air.flights")
    with pytest.raises(InvalidRequest, match="was begun before"):
        load.__enter__()
    assert names(cluster) == []


def test_a_pipeline_whose_cluster_was_closed_raises(cluster: Cluster) -> None:
    with pipeline(cluster) as load:
        cluster.close()
        with pytest.raises(InvalidRequest, match="cluster 'epochlake' was closed"):
            load.read("air.flights")
    for use in (cluster.require_open, lambda: cluster.pipeline("x", None)):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="was closed"):
            use()
