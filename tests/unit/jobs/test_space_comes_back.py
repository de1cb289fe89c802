"""Space comes back: files of dropped tables and of nodes that were drained, and a directory that is added again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import reusing, unused_files
from epochlake.jobs.administration.nodes import NodeAddition, VolumeSpec
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.tracks import tablets as tablet_track
from epochlake.jobs.replicas.volumes import MARKER_FILE, read_marker
from epochlake.jobs.upkeep import clearing
from epochlake.metastore import announcing
from epochlake.metastore.coordination.leases import Lease
from epochlake.metastore.errors import CoordinationUnavailable, StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.model import NodeState

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.storages import STORAGE


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> list[Lease]:
    """The pipelines that live; none at first."""
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 0.0)
    monkeypatch.setattr(Cluster, "coordination", lambda *_: None)
    living: list[Lease] = []
    for module in (unused_files, reusing):
        monkeypatch.setattr(module, "live_leases", lambda _: living)
    return living


@pytest.fixture
def cluster(tmp_path: Path, leases: list[Lease]) -> SmallCluster:
    cluster = placed(tmp_path, FOUR, "ABC")
    cluster.write(cluster.pipeline())
    return cluster


def drain(cluster: SmallCluster) -> Path:
    """Drain node A; its directory."""
    administration.decommission(cluster.cluster, "A")
    cluster.settle()
    assert cluster.metadata.node("A").state is NodeState.LEFT
    return cluster.directory / "A"


def began(seconds: int) -> Lease:
    """A pipeline that began so many seconds after the epoch of Unix."""
    return Lease("nightly", "p", 1, ("air.flights",), seconds * 1000, "host", 1)


def tables_in(volume: Path) -> list[Path]:
    return sorted(path.parent for path in volume.glob("**/_delta_log"))


def sweep(cluster: SmallCluster, *, older_than: float = 0.0, dry_run: bool = False) -> set[str]:
    done = administration.sweep(cluster.cluster, older_than_seconds=older_than, dry_run=dry_run)
    return {f"{replica.table} on {replica.volume}" for replica in done.replicas if replica.files}


def test_files_of_a_dropped_table_go_after_a_while_when_nobody_can_read_them(
    cluster: SmallCluster, leases: list[Lease]
) -> None:
    administration.create_table(cluster.cluster, "air.kept", [("id", "bigint", False)], ["id"], tablets=1)
    administration.drop_table(cluster.cluster, "air.flights")
    before = [tables_in(cluster.directory / node) for node in "ABC"]
    assert sweep(cluster, older_than=3600) == set()
    leases.append(began(5))
    assert sweep(cluster) == set()
    leases.clear()
    named = {f"air.flights (dropped) on {node}/d1" for node in "ABC"}
    assert sweep(cluster, dry_run=True) == named
    assert [tables_in(cluster.directory / node) for node in "ABC"] == before
    assert sweep(cluster) == named
    left = {path.name for node in "ABCX" for path in tables_in(cluster.directory / node)}
    assert left == {cluster.metadata.table("air.kept").table_id}
    assert sweep(cluster) == set()


def test_a_table_that_is_being_made_is_not_taken_for_a_dropped_one(cluster: SmallCluster) -> None:
    """Its replica tables are there before the epoch that names it."""
    made = cluster.directory / "A" / "air" / "00000000-0000-0000-0000-000000000000" / "_delta_log"
    made.mkdir(parents=True)
    sweep(cluster)
    assert made.exists()


def test_files_of_a_drained_node_go_and_those_of_a_lost_one_stay(cluster: SmallCluster) -> None:
    volume = drain(cluster)
    (volume / "letters").mkdir()
    (volume / "letters" / "mine.txt").write_text("not of the cluster")
    cluster.lose("X")
    volumes = [("d1", str(cluster.directory / "W"), 1 << 30)]
    administration.replace_node(cluster.cluster, "X", "W", volumes)
    cluster.settle()
    cluster.bring_back("X")
    assert sweep(cluster, older_than=3600) == set()
    sweep(cluster)
    assert tables_in(volume) == []
    assert (volume / "letters" / "mine.txt").exists()
    assert (volume / MARKER_FILE).exists()
    assert tables_in(cluster.directory / "X")


def test_a_drained_directory_is_added_again_by_reuse_only(cluster: SmallCluster) -> None:
    volume = drain(cluster)
    (volume / "mine.txt").write_text("not of the cluster")
    again = [VolumeSpec("d1", str(volume), 1 << 30)]
    with pytest.raises(WrongCluster, match="--reuse"):
        administration.add_node(cluster.cluster, "A2", "dc1", "r1", again)
    administration.add_node(cluster.cluster, "A2", "dc1", "r1", again, reuse=True)
    cluster.settle()
    assert cluster.metadata.node("A2").state is NodeState.NORMAL
    assert (volume / "mine.txt").exists()
    cluster.start("X", "A2")
    cluster.until(None)
    acknowledged = cluster.write(cluster.pipeline(), "ALL")
    assert acknowledged in cluster.files_on("A2")
    assert not list(volume.glob(".*"))


def test_what_is_not_provably_given_up_is_never_cleared(cluster: SmallCluster, leases: list[Lease]) -> None:
    volume = drain(cluster)
    specs = [VolumeSpec("d1", str(volume), 1 << 30)]

    def refused(match: str, error: type[Exception] = WrongCluster) -> None:
        before = {path: path.stat().st_mtime_ns for path in volume.rglob("*")}
        with pytest.raises(error, match=match):
            administration.add_node(cluster.cluster, "A2", "dc1", "r1", specs, reuse=True)
        assert {path: path.stat().st_mtime_ns for path in volume.rglob("*")} == before

    leases.append(began(5))
    refused("may still read from it", StorageUnavailable)
    leases.clear()
    marker = volume / MARKER_FILE
    ours = marker.read_bytes()
    for change, match in (
        ({"cluster_id": "another"}, "in another cluster"),
        ({"host_id": "another"}, "does not know"),
        ({"volume_id": 99}, "does not know"),
    ):
        marker.write_bytes(msgspec.json.encode({**msgspec.json.decode(ours), **change}))
        refused(match)
    marker.write_bytes((cluster.directory / "B" / MARKER_FILE).read_bytes())
    refused("is normal")


def test_reuse_needs_to_ask_which_pipelines_live(cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = drain(cluster)
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(reusing, "live_leases", announcing.live_leases)
    with pytest.raises(CoordinationUnavailable):
        administration.add_node(
            cluster.cluster, "A2", "dc1", "r1", [VolumeSpec("d1", str(volume), 1 << 30)], reuse=True
        )
    assert tables_in(volume)


@pytest.mark.parametrize("moment", ["while leases are asked for", "just before the marker goes"])
def test_who_is_late_to_clear_a_place_leaves_the_one_who_has_it_alone(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    volume = drain(cluster)
    specs = [VolumeSpec("d1", str(volume), 1 << 30)]

    with monkeypatch.context() as patched:

        def somebody_is_faster() -> None:
            patched.undo()
            patched.setattr(reusing, "live_leases", lambda _: [])
            administration.add_node(cluster.cluster, "A2", "dc1", "r1", specs, reuse=True)

        def leases(_: object) -> list[Lease]:
            somebody_is_faster()
            return []

        move = cluster.cluster.storage.move_file

        def moved(source: str, target: str) -> bool:
            somebody_is_faster()
            return move(source, target)

        patched.setattr(reusing, "live_leases", lambda _: [])
        if moment == "while leases are asked for":
            patched.setattr(reusing, "live_leases", leases)
        else:
            patched.setattr(cluster.cluster.storage, "move_file", moved)
        with pytest.raises(WrongCluster, match="became another volume"):
            administration.add_node(cluster.cluster, "A3", "dc1", "r1", specs, reuse=True)
    there = read_marker(STORAGE, str(volume))
    node = cluster.cluster.metadata.directory.by_name["A2"]
    assert (there.node, there.host_id, there.volume_id) == ("A2", node.host_id, node.volumes[0].volume_id)
    assert os.listdir(volume) == [MARKER_FILE]


@pytest.mark.parametrize("reuse", [False, True])
def test_a_node_whose_second_place_is_refused_leaves_no_marker_in_the_first(
    cluster: SmallCluster, tmp_path: Path, reuse: bool
) -> None:
    taken = Path(cluster.cluster.metadata.directory.by_name["B"].volumes[0].uri)
    foreign = tmp_path / "foreign"
    shutil.copytree(taken, foreign)
    specs = [VolumeSpec("d1", str(tmp_path / "new"), 1 << 30), VolumeSpec("d2", str(foreign), 1 << 30)]
    change = NodeAddition("m", "dc1", "r1", specs, reuse=reuse)
    for attempt in (cluster.cluster.preview, cluster.cluster.commit):
        with pytest.raises(WrongCluster):
            attempt(change)
        assert not (tmp_path / "new").exists()


def test_clearing_that_was_killed_is_finished_by_the_next_one(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = drain(cluster)
    specs = [VolumeSpec("d1", str(volume), 1 << 30)]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(clearing, "_delete_directory", killed)
        with pytest.raises(KeyboardInterrupt):
            administration.add_node(cluster.cluster, "A2", "dc1", "r1", specs, reuse=True)
    assert not (volume / MARKER_FILE).exists()
    with pytest.raises(WrongCluster, match="--reuse"):
        administration.add_node(cluster.cluster, "A2", "dc1", "r1", specs)
    administration.add_node(cluster.cluster, "A2", "dc1", "r1", specs, reuse=True)
    assert (tables_in(volume), sorted(os.listdir(volume))) == ([], [MARKER_FILE])


def test_a_living_replica_that_has_come_to_the_place_meanwhile_is_put_back(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody was paused between looking and deleting, and the directory is another volume by now."""
    address = cluster.address("B")
    old = msgspec.structs.replace(address, volume_id=99)
    acknowledged = cluster.files_on("B")
    whose = clearing._is_ours
    answers = iter([True])
    monkeypatch.setattr(clearing, "_is_ours", lambda *asked: next(answers, None) or whose(*asked))
    assert clearing.clear(old).files == 0
    assert cluster.files_on("B") == acknowledged
