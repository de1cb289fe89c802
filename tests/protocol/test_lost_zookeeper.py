"""Live processes and a ZooKeeper that has lost what it knew: they find their way back by themselves."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.configuration import ClusterSettings, Configuration, LogSettings, ZooKeeperSettings
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.leases import Lease, announce, live_leases
from epochlake.metastore.coordination.lock import CommitLock
from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.following.watcher import Watcher
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.metadata.events import SwitchBalancing
from epochlake.metastore.metastore import init_cluster

from tests.support.storages import STORAGE
from tests.support.waiting import eventually
from tests.support.zookeeper import Ensemble

pytestmark = pytest.mark.timing

OFF, ON = SwitchBalancing(on=False), SwitchBalancing(on=True)


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Ensemble]:
    with Ensemble(tmp_path / "server", size=1) as server:
        yield server


def configured(root: Path, connect: str, poll_seconds: float = 600) -> Configuration:
    configuration = Configuration(
        root=str(root),
        cluster=ClusterSettings(name="test"),
        zookeeper=ZooKeeperSettings(connect=connect, session_timeout_seconds=2.0),
        log=LogSettings(commit_timeout_seconds=60, poll_seconds=poll_seconds),
    )
    init_cluster(configuration)
    return configuration


def delete_all(coordination: Coordination) -> None:
    """What an operator's `deleteall` does."""
    coordination.client.delete(coordination.base, recursive=True)


def test_live_processes_come_back_to_a_zookeeper_that_has_lost_its_data(tmp_path: Path, lost: Ensemble) -> None:
    configuration = configured(tmp_path / "root", lost.connect_string)
    with Cluster(configuration) as committing, Cluster(configuration) as following:
        epoch = committing.commit(OFF).epoch
        lease = announce(committing.coordination(), Lease("load", "p", 1, (), 0, "host", 1))
        following.wait_for_news(epoch - 1, 20)
        eventually(lambda: following.coordination().connected)
        lost.kill()
        shutil.rmtree(lost._home(0) / "data" / "version-2")
        lost.restart()
        assert committing.commit(ON, timeout=60).epoch == epoch + 1
        assert following.wait_for_news(epoch, 60), "by the watch: the log is looked at every ten minutes only"
        eventually(lambda: [one.name for one in live_leases(following.coordination())] == ["load"])
        lease.release()


def test_live_processes_go_on_after_everything_was_deleted_in_zookeeper(tmp_path: Path, zookeeper: str) -> None:
    configuration = configured(tmp_path / "root", zookeeper)
    with Cluster(configuration) as committing, Cluster(configuration) as following:
        epoch = committing.commit(OFF).epoch
        following.wait_for_news(epoch - 1, 20)
        lease = announce(committing.coordination(), Lease("load", "p", 1, (), 0, "host", 1))
        delete_all(following.coordination())
        assert committing.commit(ON, timeout=60).epoch == epoch + 1
        assert following.wait_for_news(epoch, 60)
        assert following.commit(OFF, timeout=60).epoch == epoch + 2
        lease.update(2, ())
        assert [one.epoch for one in live_leases(following.coordination())] == [2]
        lease.release()


def test_a_lock_that_is_waited_for_while_everything_is_deleted_is_given_in_the_end(
    connect: Callable[..., Coordination],
) -> None:
    holder, waiting = connect(), connect()
    held = CommitLock(holder)
    assert held.acquire(20)
    given: list[bool] = []
    thread = threading.Thread(target=lambda: given.append(CommitLock(waiting).acquire(60)))
    thread.start()
    eventually(lambda: len(holder.children(holder.path("lock"))) == 2)
    delete_all(holder)
    thread.join(60)
    assert given == [True]


def test_news_arrive_without_zookeeper_by_looking_at_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = configured(tmp_path / "root", "127.0.0.1:1", poll_seconds=0.05)

    def nobody(self: Cluster, connect_timeout: float = 0.0) -> Coordination:
        with self._connecting:
            time.sleep(0.5)
        raise CoordinationUnavailable("nobody answers")

    monkeypatch.setattr(Cluster, "coordination", nobody)
    with Cluster(configuration) as onlooker:
        assert onlooker.wait_for_news(0, 30)


def test_a_watcher_outlives_what_goes_wrong_while_it_reads(tmp_path: Path) -> None:
    configuration = configured(tmp_path / "root", "127.0.0.1:1")
    with Cluster(configuration) as cluster:
        [file] = list(Path(configuration.root, "log").glob("*.parquet"))
        hidden = file.rename(tmp_path / "hidden")
        follower = Follower(DeltaLog(STORAGE, cluster.root.log))
        failures: list[int] = []
        read = follower.log.read

        def counted(*arguments: object) -> object:
            failures.append(1)
            return read(*arguments)  # type: ignore[arg-type]

        follower.log.read = counted  # type: ignore[method-assign, assignment]
        watcher = Watcher(follower, None, poll_seconds=0.01)
        try:
            eventually(lambda: len(failures) > 3)
            assert follower.metadata.epoch == 0
            hidden.rename(file)
            assert watcher.wait(0, 60)
        finally:
            watcher.stop()
