"""A root that was restored together with its embedded ZooKeeper: nothing at the root is newer, but the disks are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from epochlake.jobs import administration, cluster
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate import planning
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.upkeep.lost_epochs import accept_loss
from epochlake.metastore.configuration import ClusterSettings, Configuration, LogSettings, ZooKeeperSettings
from epochlake.metastore.coordination.embedded.files import files_of, is_supervised
from epochlake.metastore.errors import LogWentBack
from epochlake.metastore.metadata.events import SwitchBalancing
from epochlake.metastore.metastore import init_cluster

from tests.support.clusters import finish
from tests.support.storages import STORAGE
from tests.support.waiting import eventually

OFF, ON = SwitchBalancing(on=False), SwitchBalancing(on=True)
COLUMNS = [("id", "bigint", False), ("note", "string", True)]


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Configuration]:
    """A cluster of one node whose embedded ZooKeeper ends with its last user."""
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.01)
    configuration = Configuration(
        root=str(tmp_path / "root"),
        cluster=ClusterSettings(name="test"),
        zookeeper=ZooKeeperSettings(embedded_linger_seconds=0.2),
        log=LogSettings(commit_timeout_seconds=60),
    )
    init_cluster(configuration)
    with Cluster(configuration) as lake:
        asked = administration.add_node(lake, "n1", "dc1", "r1", [("d1", str(tmp_path / "disk"), 1 << 30)])
        finish(lake, asked.request_id)
        administration.create_keyspace(lake, "air", {"dc1": 1})
        administration.create_table(lake, "air.old", COLUMNS, ["id"], tablets=1)
    yield configuration
    stopped(configuration)


def stopped(configuration: Configuration) -> None:
    eventually(lambda: not is_supervised(files_of(Path(configuration.root))))


def back_up(configuration: Configuration) -> Path:
    stopped(configuration)
    return Path(shutil.copytree(configuration.root, f"{configuration.root}-backup", symlinks=True))


def restore(configuration: Configuration, backup: Path) -> None:
    stopped(configuration)
    shutil.rmtree(configuration.root)
    shutil.copytree(backup, configuration.root, symlinks=True)


def assert_refused(configuration: Configuration, known_by: str) -> None:
    """Nothing is committed: by one who starts the ZooKeeper, by one who finds it running, by one after both."""
    with Cluster(configuration) as first:
        before = first.catch_up().epoch
        with pytest.raises(LogWentBack, match=known_by):
            first.commit(OFF)
        with Cluster(configuration) as second, pytest.raises(LogWentBack, match=known_by):
            administration.create_table(second, "air.new", COLUMNS, ["id"], tablets=1)
        with pytest.raises(LogWentBack, match=known_by):
            first.commit(OFF)
        assert first.catch_up().epoch == before
    stopped(configuration)
    with Cluster(configuration) as third, pytest.raises(LogWentBack, match=known_by):
        third.commit(OFF)


def assert_goes_on_without_what_is_lost(configuration: Configuration) -> None:
    with Cluster(configuration) as lake:
        end = lake.catch_up().epoch
    accepted = accept_loss(configuration)
    assert (accepted.log_epoch, accepted.incarnation) == (end, 2)
    with Cluster(configuration) as lake:
        assert lake.commit(OFF).epoch == end + 2
    stopped(configuration)
    with Cluster(configuration) as lake:
        assert lake.commit(ON).epoch == end + 3


def test_a_table_that_was_made_since_and_has_rows_is_noticed_before_its_epoch_is_given_again(
    conf: Configuration,
) -> None:
    backup = back_up(conf)
    with Cluster(conf) as lake:
        before = lake.metadata.epoch
        administration.create_table(lake, "air.flights", COLUMNS, ["id"], tablets=1)
        lake.write("air.flights", [{"id": 1, "note": "kept"}])
        assert lake.catch_up().epoch == before + 1  # no epoch but that of the table is lost
    restore(conf, backup)
    assert_refused(conf, rf"epoch {before + 1} was known to the replica table air/.* on n1/d1")
    assert_goes_on_without_what_is_lost(conf)


def test_a_fence_that_was_raised_since_is_noticed(conf: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    backup = back_up(conf)
    with Cluster(conf) as lake:
        lake.commit(OFF)
        metadata = lake.metadata
        [volume] = metadata.directory.volumes
        address = address_of(STORAGE, metadata, metadata.table("air.old"), volume)
        assert raise_fence(address, metadata.fence) == metadata.fence
    restore(conf, backup)
    with Cluster(conf) as lake:
        with pytest.raises(LogWentBack, match=rf"epoch {metadata.epoch} was known to the replica table air.old on n1"):
            lake.commit(OFF)
        # Who only reads or writes rows meets the fence itself.
        monkeypatch.setattr(planning, "CATCH_UP_SECONDS", 0.1)
        with pytest.raises(LogWentBack, match=rf"epoch {metadata.epoch} was known to a replica table"):
            lake.write("air.old", [{"id": 1, "note": "kept"}])


def test_a_root_that_was_restored_and_has_lost_nothing_goes_on_and_so_does_one_whose_tables_were_dropped(
    conf: Configuration,
) -> None:
    with Cluster(conf) as lake:
        lake.write("air.old", [{"id": 1, "note": "kept"}])
        administration.drop_table(lake, "air.old", keep_seconds=0)
        administration.create_table(lake, "air.flights", COLUMNS, ["id"], tablets=1)
        lake.write("air.flights", [{"id": 1, "note": "kept"}])
        epoch = lake.metadata.epoch
    restore(conf, back_up(conf))
    with Cluster(conf) as lake:
        assert lake.commit(OFF).epoch == epoch + 1


def test_an_empty_table_that_the_log_does_not_have_is_taken_for_one_of_a_killed_command(conf: Configuration) -> None:
    backup = back_up(conf)
    with Cluster(conf) as lake:
        epoch = lake.metadata.epoch
        administration.create_table(lake, "air.flights", COLUMNS, ["id"], tablets=1)
    restore(conf, backup)
    with Cluster(conf) as lake:
        assert lake.commit(OFF).epoch == epoch + 1


def test_the_replicas_are_asked_once_for_each_run_of_the_server(
    conf: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Cluster, "_compare_with_replicas", lambda lake: asked.append(lake.root.uri))
    stopped(conf)
    with Cluster(conf) as first, Cluster(conf) as second:
        first.commit(OFF)
        second.commit(ON)
        first.commit(OFF)
        assert len(asked) == 1
    stopped(conf)
    with Cluster(conf) as lake:
        lake.commit(ON)
    assert len(asked) == 2
