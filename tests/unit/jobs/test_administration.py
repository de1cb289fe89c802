"""Changes as plain functions: what they leave in the log and on the volumes, also when tries race, die or repeat."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import nodes, schema, unused_files
from epochlake.jobs.administration.columns import parse_columns
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.volumes import MARKER_FILE, read_marker
from epochlake.metastore.committing.changes import Call
from epochlake.metastore.committing.committer import Committer
from epochlake.metastore.coordination.leases import Lease
from epochlake.metastore.errors import (
    CommitUnknown,
    CoordinationUnavailable,
    Rejected,
    StorageUnavailable,
    WrongCluster,
)
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import RegisterNode
from epochlake.metastore.metadata.model import Column, NodeState, RequestState
from epochlake.placement.errors import EpochlakeError, InvalidRequest

from tests.support.clusters import COLUMNS, begin, finish, grow, join, without_zookeeper
from tests.support.replicas import store
from tests.support.storages import STORAGE


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)


def volume(path: Path, name: str = "d1") -> list[tuple[str, str, int | None]]:
    return [(name, str(path), 1 << 30)]


def test_adding_a_node_marks_its_volumes_as_the_log_numbers_them(tmp_path: Path) -> None:
    cluster = begin(tmp_path)
    places = [("d1", str(tmp_path / "a"), 1 << 30), ("d2", str(tmp_path / "b"), None)]
    administration.add_node(cluster, "n1", "dc1", "r1", places)
    node = cluster.metadata.node("n1")
    assert node.volumes[1].capacity > 0
    for volume in node.volumes:
        marker = read_marker(STORAGE, volume.uri)
        assert (marker.host_id, marker.volume_id, marker.volume) == (node.host_id, volume.volume_id, volume.name)


def test_a_repeated_request_adds_the_node_once_and_touches_no_marker(tmp_path: Path) -> None:
    cluster = begin(tmp_path)
    first = administration.add_node(cluster, "n1", "dc1", "r1", volume(tmp_path / "a"), request_id="once")
    marker = (tmp_path / "a" / MARKER_FILE).read_bytes()
    again = administration.add_node(cluster, "n1", "dc1", "r1", volume(tmp_path / "a"), request_id="once")
    assert (again.epoch, again.already) == (first.epoch, True)
    assert (tmp_path / "a" / MARKER_FILE).read_bytes() == marker


def test_the_next_try_takes_over_the_marker_of_one_that_died_before_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = begin(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Committer, "commit", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            administration.add_node(cluster, "n1", "dc1", "r1", volume(tmp_path / "a"))
    left = read_marker(STORAGE, str(tmp_path / "a"))
    join(cluster, tmp_path / "others", "n2", "r2")  # takes the volume number that was planned
    administration.add_node(cluster, "n1", "dc1", "r1", volume(tmp_path / "a"))
    node, marker = cluster.metadata.node("n1"), read_marker(STORAGE, str(tmp_path / "a"))
    assert (marker.host_id, marker.volume_id) == (left.host_id, node.volumes[0].volume_id)
    assert node.host_id == left.host_id


def test_nodes_that_are_added_at_once_get_numbers_and_markers_that_agree(tmp_path: Path) -> None:
    cluster = begin(tmp_path)
    errors: list[BaseException] = []

    def add(name: str) -> None:
        try:
            administration.add_node(cluster, name, "dc1", "r1", volume(tmp_path / name))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(f"n{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for node in cluster.metadata.directory.nodes.values():
        assert read_marker(STORAGE, node.volumes[0].uri).volume_id == node.volumes[0].volume_id


def test_a_stale_number_in_a_marker_is_put_right_after_the_registration(tmp_path: Path) -> None:
    cluster = begin(tmp_path)
    administration.add_node(cluster, "n1", "dc1", "r1", volume(tmp_path / "a"))
    wrong = msgspec.structs.replace(read_marker(STORAGE, str(tmp_path / "a")), volume_id=77)
    (tmp_path / "a" / MARKER_FILE).write_bytes(msgspec.json.encode(wrong))
    with pytest.raises(Rejected, match="node-exists"):
        administration.add_node(cluster, "n1", "dc1", "r1", volume(tmp_path / "a"))
    assert read_marker(STORAGE, str(tmp_path / "a")).volume_id == cluster.metadata.node("n1").volumes[0].volume_id


def test_a_volume_of_another_cluster_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    other, mine = begin(tmp_path / "other"), begin(tmp_path / "mine")
    administration.add_node(other, "n1", "dc1", "r1", volume(tmp_path / "disk"))
    before = (tmp_path / "disk" / MARKER_FILE).read_bytes()
    with pytest.raises(WrongCluster, match="cannot become volume"):
        administration.add_node(mine, "n1", "dc1", "r1", volume(tmp_path / "disk"))
    assert (tmp_path / "disk" / MARKER_FILE).read_bytes() == before
    assert mine.catch_up().epoch == 1


def test_a_rejected_node_leaves_no_marker_behind(tmp_path: Path) -> None:
    cluster = begin(tmp_path)
    join(cluster, tmp_path / "volumes", "n1", "r1")
    with pytest.raises(Rejected, match="node-exists"):
        administration.add_node(cluster, "n1", "dc1", "r1", volume(tmp_path / "b"))
    with pytest.raises(Rejected, match="epoch-moved"):
        administration.add_node(cluster, "n2", "dc1", "r1", volume(tmp_path / "b"), expect_epoch=1)
    assert not (tmp_path / "b").exists()


def overtaken(
    monkeypatch: pytest.MonkeyPatch, first: Callable[[], object], error: EpochlakeError | None = None
) -> None:
    """Do `first` between the preparing of the next registration and its commit, which fails with `error` if given."""
    proper = Committer.commit

    def commit(committer: Committer, *arguments: object, **options: object) -> object:
        monkeypatch.setattr(Committer, "commit", proper)
        first()
        if error is not None:
            raise error
        return proper(committer, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Committer, "commit", commit)


def test_who_loses_a_name_takes_its_own_markers_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = begin(tmp_path)
    overtaken(monkeypatch, lambda: administration.add_node(cluster, "n1", "dc1", "r1", volume(tmp_path / "a")))
    with pytest.raises(Rejected, match="node-exists"):
        administration.add_node(cluster, "n1", "dc1", "r1", volume(tmp_path / "b"))
    assert list((tmp_path / "b").iterdir()) == []
    assert read_marker(STORAGE, str(tmp_path / "a")).host_id == cluster.metadata.node("n1").host_id
    administration.add_node(cluster, "n2", "dc1", "r1", volume(tmp_path / "b"))


def test_a_marker_that_another_try_may_rely_on_or_whose_outcome_is_unknown_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = begin(tmp_path)

    def register(name: str, place: str) -> object:
        return administration.add_node(cluster, name, "dc1", "r1", volume(tmp_path / place))

    # A second try of the same registration, on the same volume, relies on the marker that the first has written.
    overtaken(monkeypatch, lambda: register("n1", "a"))
    with pytest.raises(Rejected, match="node-exists"):
        register("n1", "a")
    assert read_marker(STORAGE, str(tmp_path / "a")).host_id == cluster.metadata.node("n1").host_id
    overtaken(monkeypatch, lambda: register("n2", "b"), CommitUnknown("r", "nobody knows"))
    with pytest.raises(CommitUnknown):
        register("n2", "c")
    left = read_marker(STORAGE, str(tmp_path / "c"))
    overtaken(monkeypatch, lambda: None, Rejected("epoch-moved", "Look again"))
    with pytest.raises(Rejected):
        register("n3", "d")
    assert (left.node, read_marker(STORAGE, str(tmp_path / "d")).node) == ("n2", "n3")


def test_a_preview_shows_a_node_without_a_host_and_marks_nothing(tmp_path: Path) -> None:
    cluster = begin(tmp_path)
    change = nodes.NodeAddition("n1", "dc1", "r1", volume(tmp_path / "a"))
    preview = cluster.preview(change, request_id="mine")
    assert isinstance(preview.event, RegisterNode)
    assert (preview.event.host_id, preview.event.request_id) == ("(new)", "mine")
    assert (preview.after.node("n1").rack, cluster.catch_up().epoch) == ("r1", 1)
    assert not (tmp_path / "a").exists()
    cluster.commit(change)
    assert read_marker(STORAGE, str(tmp_path / "a")).host_id == cluster.metadata.node("n1").host_id != "(new)"


def test_a_table_that_is_created_again_tells_what_its_newest_plan_has_found(tmp_path: Path) -> None:
    cluster = grow(tmp_path)
    join(cluster, tmp_path / "volumes", "n4", "r1")
    marker = tmp_path / "volumes" / "n4" / MARKER_FILE
    marker.rename(tmp_path / "aside")
    change = schema.TableCreation("air.flights", COLUMNS, ["id"], tablets=4)
    cluster.preview(change)
    assert list(change.unreachable) == ["n4/d1"]
    (tmp_path / "aside").rename(marker)
    cluster.commit(change)
    assert (change.unreachable, len(change.planned)) == ({}, 2)


def test_volumes_at_one_place_are_refused_however_it_is_spelt(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="given twice"):
        nodes.measured(STORAGE, [("d1", f"{tmp_path}/a", 1), ("d2", f"file://{tmp_path}/a/", 1)])
    with pytest.raises(InvalidRequest, match="capacity"):
        nodes.measured(STORAGE, [("d1", "s3://bucket/a", None)])


def test_a_replacement_takes_the_place_of_the_lost_node(tmp_path: Path) -> None:
    cluster = grow(tmp_path)
    administration.replace_node(cluster, "n2", "n4", volume(tmp_path / "n4"))
    new = cluster.metadata.node("n4")
    assert (new.datacenter, new.rack, new.replaces) == ("dc1", "r2", cluster.metadata.node("n2").node_id)


def test_a_request_is_cancelled_by_its_id_or_by_its_node(tmp_path: Path) -> None:
    cluster = grow(tmp_path)
    join(cluster, tmp_path / "volumes", "n4", "r1")
    first = administration.decommission(cluster, "n4", reason="old disks")
    administration.cancel_request(cluster, first.request_id)
    second = administration.remove_node(cluster, "n4")
    administration.cancel_request(cluster, "n4")
    states = {key: request.state for key, request in cluster.metadata.requests.items()}
    assert states[first.request_id] is states[second.request_id] is RequestState.CANCELLED
    assert cluster.metadata.requests[first.request_id].reason == "old disks"
    for unknown in ("n4", "n9"):
        with pytest.raises(Rejected, match="unknown-request"):
            administration.cancel_request(cluster, unknown)


def test_a_table_has_its_replica_tables_before_it_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = grow(tmp_path)
    seen: list[int] = []
    commit = Committer.commit

    def watched(committer: Committer, what: object, **options: object) -> object:
        metadata = cluster.metadata
        table = what(metadata).table  # type: ignore[operator]
        for node in metadata.directory.nodes.values():
            address = ReplicaAddress(
                STORAGE,
                metadata.identity.cluster_id,
                node.volumes[0].volume_id,
                node.volumes[0].uri,
                "air",
                table.table_id,
            )
            seen.append(open_snapshot(address).fence)
        return commit(committer, what, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Committer, "commit", watched)
    planned_on = cluster.metadata.epoch
    created = administration.create_table(cluster, "air.flights", COLUMNS, ["id"], tablets=8)
    assert seen == [planned_on] * 3
    assert cluster.metadata.tablets.maps[created.table_id].count == 8


def test_key_columns_become_not_nullable(tmp_path: Path) -> None:
    cluster = grow(tmp_path)
    administration.create_table(cluster, "air.flights", [("id", "bigint", True), ("note", "string", True)], ["id"])
    columns = cluster.metadata.table("air.flights").columns
    assert columns == (Column("id", "bigint", False), Column("note", "string", True))


def test_a_volume_that_does_not_answer_gets_no_tablet_and_is_named(tmp_path: Path) -> None:
    cluster = grow(tmp_path)
    join(cluster, tmp_path / "volumes", "n4", "r1")
    (tmp_path / "volumes" / "n4" / MARKER_FILE).unlink()
    created = administration.create_table(cluster, "air.flights", COLUMNS, ["id"])
    assert list(created.unreachable) == ["n4/d1"]
    assert "marker" in created.unreachable["n4/d1"]
    away = cluster.metadata.node("n4").volumes[0].volume_id
    assert not len(cluster.metadata.tablets.maps[created.table_id].tablets_on([away]))


def test_a_node_that_was_declared_lost_gets_no_tablet_of_a_new_table_though_it_answers(tmp_path: Path) -> None:
    """Its removal waits for the coordinator, and until then it is a normal node."""
    cluster = grow(tmp_path)
    join(cluster, tmp_path / "volumes", "n4", "r4")
    administration.remove_node(cluster, "n3")
    gone = cluster.metadata.node("n3")
    assert (gone.state, gone.lost) == (NodeState.NORMAL, True)
    before = sorted((tmp_path / "volumes" / "n3").rglob("*"))
    table = administration.create_table(cluster, "air.flights", COLUMNS, ["id"], tablets=2)
    replicas = cluster.metadata.tablets.maps[table.table_id].to_array()
    assert not {*replicas.ravel().tolist()} & {one.volume_id for one in gone.volumes}
    assert sorted((tmp_path / "volumes" / "n3").rglob("*")) == before


def test_too_few_reachable_volumes_fail_with_their_names_and_change_nothing(tmp_path: Path) -> None:
    cluster = grow(tmp_path)
    epoch = cluster.metadata.epoch
    (tmp_path / "volumes" / "n2" / MARKER_FILE).unlink()
    with pytest.raises(StorageUnavailable, match=r"do not answer: n2/d1\. `epochlake status`"):
        administration.create_table(cluster, "air.flights", COLUMNS, ["id"])
    assert cluster.catch_up().epoch == epoch
    assert not list((tmp_path / "volumes" / "n1").glob("air/*"))


def test_a_repeated_table_request_finds_the_same_table(tmp_path: Path) -> None:
    cluster = grow(tmp_path)
    first = administration.create_table(cluster, "air.flights", COLUMNS, ["id"], tablets=4, request_id="t")
    again = administration.create_table(cluster, "air.flights", COLUMNS, ["id"], tablets=4, request_id="t")
    assert (again.table_id, again.tablets, again.committed.already) == (first.table_id, 4, True)


def test_a_plan_that_went_stale_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = begin(tmp_path)
    plan, planned = nodes.NodeAddition.plan, []

    def overtaken(change: nodes.NodeAddition, metadata: ClusterMetadata, call: Call) -> RegisterNode:
        event = plan(change, metadata, call)
        if change.name == "slow":
            planned.append(event.node_id)
            if len(planned) == 1:
                administration.add_node(cluster, "fast", "dc1", "r1", volume(tmp_path / "fast"))
        return event

    monkeypatch.setattr(nodes.NodeAddition, "plan", overtaken)
    administration.add_node(cluster, "slow", "dc1", "r1", volume(tmp_path / "slow"))
    assert planned == [1, 2]
    assert read_marker(STORAGE, str(tmp_path / "slow")).volume_id == 2


def test_a_node_that_has_left_comes_back_under_its_name_with_other_volumes(tmp_path: Path) -> None:
    cluster = grow(tmp_path)
    join(cluster, tmp_path / "volumes", "n4", "r1")
    finish(cluster, administration.decommission(cluster, "n4").request_id)
    assert cluster.metadata.node("n4").state is NodeState.LEFT
    with pytest.raises(WrongCluster, match="--reuse"):
        administration.add_node(cluster, "n4", "dc1", "r1", volume(tmp_path / "volumes" / "n4"))
    join(cluster, tmp_path / "new", "n4", "r1")
    assert cluster.metadata.node("n4").state is NodeState.NORMAL


def test_switches_are_switched_and_say_when_there_is_nothing_to_do(tmp_path: Path) -> None:
    cluster = begin(tmp_path)
    administration.pause_balancing(cluster, reason="load")
    administration.pause_changes(cluster, reason="upgrade")
    assert (cluster.metadata.switches.balancing_reason, cluster.metadata.switches.changes_reason) == ("load", "upgrade")
    with pytest.raises(Rejected, match="upgrade"):
        administration.resume_balancing(cluster)
    administration.resume_changes(cluster)
    administration.resume_balancing(cluster)
    with pytest.raises(Rejected, match="nothing-to-do"):
        administration.resume_balancing(cluster)
    snapshot = administration.take_snapshot(cluster)
    assert cluster.snapshots.epochs() == [snapshot.epoch]


def test_nothing_is_swept_while_the_live_pipelines_cannot_be_asked_for(tmp_path: Path) -> None:
    cluster = grow(tmp_path)
    with pytest.raises(CoordinationUnavailable):
        administration.sweep(cluster)


@pytest.mark.parametrize(("lease_age_hours", "deleted"), [(None, 1), (1, 1), (5, 0)])
def test_sweeping_deletes_what_is_old_enough_and_no_live_pipeline_can_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease_age_hours: int | None, deleted: int
) -> None:
    cluster = grow(tmp_path)
    administration.create_table(cluster, "air.flights", COLUMNS, ["id"], tablets=4)
    table, volume = cluster.metadata.table("air.flights"), cluster.metadata.node("n1").volumes[0]
    address = address_of(STORAGE, cluster.metadata, table, volume.volume_id)
    old, young = (Path(address.uri) / store(address).path for _ in range(2))
    three_hours_ago = time.time() - 3 * 3600
    os.utime(old, (three_hours_ago, three_hours_ago))
    leases = []
    if lease_age_hours is not None:
        started_at = int((time.time() - lease_age_hours * 3600) * 1000)
        leases = [Lease("nightly", "p", 1, ("air.flights",), started_at, "host", 1)]
    monkeypatch.setattr(Cluster, "coordination", lambda *_: None)
    monkeypatch.setattr(unused_files, "live_leases", lambda _: leases)

    would = administration.sweep(cluster, dry_run=True)
    assert (sum(r.files for r in would.replicas), old.exists()) == (deleted, True)
    done = administration.sweep(cluster)
    assert sum(r.files for r in done.replicas) == deleted
    assert (old.exists(), young.exists()) == (not deleted, True)
    assert (done.dry_run, would.dry_run, done.leases) == (False, True, len(leases))


REJECTED: list[tuple[str, type[EpochlakeError], Callable[[Cluster], object]]] = [
    ("unknown keyspace", Rejected, lambda c: administration.create_table(c, "no.t", COLUMNS, ["id"])),
    ("no keyspace in the name", InvalidRequest, lambda c: administration.create_table(c, "t", COLUMNS, ["id"])),
    ("unknown key column", InvalidRequest, lambda c: administration.create_table(c, "air.t", COLUMNS, ["x"])),
    ("no key", InvalidRequest, lambda c: administration.create_table(c, "air.t", COLUMNS, [])),
    ("a float key", Rejected, lambda c: administration.create_table(c, "air.t", [("x", "float", False)], ["x"])),
    ("unknown type", InvalidRequest, lambda c: administration.create_table(c, "air.t", [("x", "bigin", False)], ["x"])),
    ("3 tablets", InvalidRequest, lambda c: administration.create_table(c, "air.t", COLUMNS, ["id"], tablets=3)),
    ("too many replicas", Rejected, lambda c: administration.create_keyspace(c, "k", {"dc1": 4})),
    ("unknown datacenter", Rejected, lambda c: administration.create_keyspace(c, "k", {"dc9": 1})),
    ("keyspace exists", Rejected, lambda c: administration.create_keyspace(c, "air", {"dc1": 1})),
    ("unknown keyspace dropped", Rejected, lambda c: administration.drop_keyspace(c, "no")),
    ("unknown table dropped", Rejected, lambda c: administration.drop_table(c, "air.no")),
    ("unknown node", Rejected, lambda c: administration.decommission(c, "n9")),
    ("too few nodes left", Rejected, lambda c: administration.decommission(c, "n1")),
]


@pytest.mark.parametrize(("kind", "change"), [case[1:] for case in REJECTED], ids=[case[0] for case in REJECTED])
def test_what_cannot_be_meant_is_one_error_and_changes_nothing(
    tmp_path: Path, kind: type[EpochlakeError], change: Callable[[Cluster], object]
) -> None:
    cluster = grow(tmp_path)
    epoch = cluster.metadata.epoch
    with pytest.raises(kind):
        change(cluster)
    assert cluster.catch_up().epoch == epoch


COLUMN_TEXTS: list[tuple[list[str], list[Column]]] = [
    (["flight bigint not null"], [Column("flight", "bigint", False)]),
    (["a int, b decimal(10, 2) NULL"], [Column("a", "int"), Column("b", "decimal(10, 2)")]),
    (["m map<string, array<int>> , k bigint"], [Column("m", "map<string, array<int>>"), Column("k", "bigint", False)]),
    (["`odd-name`  struct<a: int, b: string>"], [Column("odd-name", "struct<a: int, b: string>")]),
]


@pytest.mark.parametrize(("texts", "columns"), COLUMN_TEXTS, ids=[texts[0] for texts, _ in COLUMN_TEXTS])
def test_columns_are_read_as_people_write_them(texts: list[str], columns: list[Column]) -> None:
    assert list(parse_columns(texts, ["k"])) == columns


@pytest.mark.parametrize("text", ["a", "a int,,b int", "k int null", "a no_such_type", "a int not", ""])
def test_a_column_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(InvalidRequest, match="column"):
        parse_columns([text], ["k"])


def test_the_id_of_a_table_follows_from_cluster_and_request(tmp_path: Path) -> None:
    one, other = begin(tmp_path / "1").metadata, begin(tmp_path / "2").metadata
    assert schema.table_id_of(one, "r") == schema.table_id_of(one, "r")
    assert len({schema.table_id_of(m, r) for m in (one, other) for r in "ab"}) == 4


def test_markers_are_small_json_that_people_can_read(tmp_path: Path) -> None:
    cluster = begin(tmp_path)
    administration.add_node(cluster, "n1", "dc1", "r1", volume(tmp_path / "a"))
    marker = json.loads((tmp_path / "a" / MARKER_FILE).read_text())
    assert (marker["cluster"], marker["node"], marker["volume"]) == ("epochlake", "n1", "d1")
