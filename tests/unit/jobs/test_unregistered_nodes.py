"""Nodes that have left are taken out of the metadata: when nothing of them is needed, and what stays known of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import reusing, unused_files
from epochlake.jobs.administration.nodes import VolumeSpec
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.tracks import tablets as tablet_track
from epochlake.jobs.views.awaited import request_ended
from epochlake.jobs.views.nodes import node_rows
from epochlake.jobs.views.requests import request_rows
from epochlake.jobs.views.status import node_statuses
from epochlake.jobs.views.summaries import summary
from epochlake.metastore.errors import Rejected, WrongCluster
from epochlake.metastore.following.history import entries
from epochlake.metastore.metadata.differences import diff
from epochlake.metastore.metadata.digest import digest_of
from epochlake.metastore.metadata.model import NodeState

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.storages import STORAGE


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    """Nodes A, B, C with rows, and X."""
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 0.0)
    monkeypatch.setattr(Cluster, "coordination", lambda *_: None)
    for module in (unused_files, reusing):
        monkeypatch.setattr(module, "live_leases", lambda _: [])
    cluster = placed(tmp_path, FOUR, "ABC")
    cluster.write(cluster.pipeline())
    return cluster


def drain(cluster: SmallCluster, name: str = "A") -> Path:
    """Drain a node; its directory."""
    administration.decommission(cluster.cluster, name, request_id=f"drain-{name}")
    cluster.settle()
    assert cluster.metadata.node(name).state is NodeState.LEFT
    return cluster.directory / name


def sweep(cluster: SmallCluster) -> None:
    administration.sweep(cluster.cluster, older_than_seconds=0)


def refused(cluster: SmallCluster, *names: str) -> str:
    with pytest.raises(Rejected) as rejected:
        administration.unregister_nodes(cluster.cluster, *names)
    return str(rejected.value.code)


def names(cluster: SmallCluster) -> list[str]:
    return [node.name for node in node_rows(STORAGE, cluster.metadata, everything=True)]


def test_a_drained_node_goes_when_vacuum_has_deleted_what_it_left(cluster: SmallCluster) -> None:
    assert refused(cluster, "A") == "wrong-state"
    drain(cluster)
    before = cluster.metadata
    assert refused(cluster, "A") == "storage-left"
    assert refused(cluster, "A", "B") == "wrong-state"
    assert cluster.metadata is before
    sweep(cluster)
    administration.unregister_nodes(cluster.cluster, "A")
    assert names(cluster) == ["B", "C", "X"]
    assert refused(cluster, "A") == "unknown-node"
    assert names_at(cluster, before.epoch) == ["A", "B", "C", "X"]
    cluster.write(cluster.pipeline())
    sweep(cluster)
    assert digest_of(Cluster(cluster.cluster.configuration).catch_up()) == digest_of(cluster.metadata)


def names_at(cluster: SmallCluster, epoch: int) -> list[str]:
    return [node.name for node in node_rows(STORAGE, cluster.cluster.at(epoch), everything=True)]


def test_a_drained_node_whose_disk_is_away_goes_by_force_only(cluster: SmallCluster) -> None:
    shutil.rmtree(drain(cluster))
    assert refused(cluster, "A") == "storage-left"
    administration.unregister_nodes(cluster.cluster, "A", force=True)
    assert "A" not in names(cluster)


def test_files_that_were_left_by_force_are_never_swept_and_their_place_is_used_again_by_reuse_only(
    cluster: SmallCluster,
) -> None:
    volume = drain(cluster)
    left = sorted(volume.glob("**/_delta_log"))
    administration.unregister_nodes(cluster.cluster, "A", force=True)
    sweep(cluster)
    assert sorted(volume.glob("**/_delta_log")) == left != []
    # The name is free, but the marker is not taken for one of an earlier try of the new node.
    again = [VolumeSpec("d1", str(volume), 1 << 30)]
    with pytest.raises(WrongCluster, match="--reuse"):
        administration.add_node(cluster.cluster, "A", "dc1", "r1", again)
    administration.add_node(cluster.cluster, "A", "dc1", "r1", again, reuse=True)
    cluster.settle()
    node = cluster.metadata.node("A")
    gone = cluster.metadata.directory.unregistered[1]
    assert node.state is NodeState.NORMAL
    assert (gone.name, node.node_id > 4, node.host_id != gone.host_id) == ("A", True, True)
    assert node.volumes[0].volume_id > max(volume.volume_id for volume in gone.volumes)
    assert sorted(volume.glob("**/_delta_log")) != left


def test_a_node_that_was_replaced_goes_though_its_disk_has_files_and_the_other_one_tells_of_it(
    cluster: SmallCluster,
) -> None:
    cluster.lose("A")
    volumes = [VolumeSpec("d1", str(cluster.directory / "W"), 1 << 30)]
    asked = administration.replace_node(cluster.cluster, "A", "W", volumes, request_id="replace-A")
    assert refused(cluster, "A") == "wrong-state"
    cluster.settle()
    administration.unregister_nodes(cluster.cluster, "A")
    metadata = cluster.metadata
    status = next(node for node in node_statuses(STORAGE, metadata) if node.name == "W")
    assert status.replaces == "A"
    [row] = [row for row in request_rows(metadata, everything=True) if row.request_id == "replace-A"]
    assert row.about == "W for A"
    entry = entries(cluster.cluster.log(), asked.epoch, asked.epoch)[0]
    assert "replace node A" in summary(entry.decode(), metadata)
    cluster.bring_back("A")
    cluster.write(cluster.pipeline())
    sweep(cluster)
    assert sorted((cluster.directory / "A").glob("**/_delta_log"))


def test_what_was_asked_of_it_is_answered_as_before(cluster: SmallCluster) -> None:
    administration.rebuild_node(cluster.cluster, "A", request_id="cancelled")
    administration.cancel_request(cluster.cluster, "cancelled")
    drain(cluster)
    administration.unregister_nodes(cluster.cluster, "A", force=True)
    known = {row.request_id: row for row in request_rows(cluster.metadata, everything=True)}
    assert "drain-A" not in known
    assert (known["cancelled"].about, known["cancelled"].state) == ("A", "cancelled")
    assert request_ended(cluster.cluster, "drain-A").met
    assert refused_request(cluster, "drain-A") == "request-id-used"


def refused_request(cluster: SmallCluster, request_id: str) -> str:
    with pytest.raises(Rejected) as rejected:
        administration.decommission(cluster.cluster, "B", request_id=request_id)
    return str(rejected.value.code)


def test_a_node_whose_name_was_used_again_is_named_as_lists_name_it(cluster: SmallCluster) -> None:
    volume = drain(cluster)
    again = [VolumeSpec("d1", str(volume), 1 << 30)]
    administration.add_node(cluster.cluster, "A", "dc1", "r1", again, reuse=True)
    cluster.settle()
    assert refused(cluster, "A") == "wrong-state"
    assert "A#1" in names(cluster)
    administration.unregister_nodes(cluster.cluster, "A#1")  # its place is somebody else's: nothing of it is there
    assert sorted(names(cluster)) == ["A", "B", "C", "X"]
    assert cluster.metadata.node("A").state is NodeState.NORMAL


def test_differences_to_earlier_epochs_name_it_and_a_snapshot_keeps_it(cluster: SmallCluster) -> None:
    first = cluster.metadata.epoch
    drain(cluster)
    left = cluster.metadata.epoch
    administration.unregister_nodes(cluster.cluster, "A", force=True)
    epoch = administration.take_snapshot(cluster.cluster).epoch
    snapshots = cluster.cluster.snapshots
    snapshots.write(cluster.metadata, cluster.cluster.follower.position)
    assert snapshots.read(epoch)[0] == cluster.metadata
    assert snapshots.read(epoch)[0].directory.unregistered.keys() == {1}
    at = cluster.cluster.at
    went = {(one.component, one.name) for one in diff(at(left), at(left + 1))}
    assert {("node", "A"), ("volume", "A/d1"), ("unregistered node", "A")} <= went
    [moved] = [one for one in diff(at(first), at(epoch)) if one.component == "tablet"]
    assert "A/d1" in moved.before
