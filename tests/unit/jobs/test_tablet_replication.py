"""The replication of a keyspace on tablets is altered: under writes, through kills and changed minds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import epochlake
import pytest
from epochlake.jobs.administration import (
    add_replicas,
    change_replication,
    decommission,
    drop_replicas,
    drop_table,
    restore_table,
    set_maintenance,
)
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.views.status import status
from epochlake.metastore.errors import Rejected
from epochlake.metastore.following.quorums import verify_quorums
from epochlake.testing import LocalCluster, local_cluster

from tests.support.command_line import CommandLine
from tests.support.tablets import EVENTS as TABLE
from tests.support.tablets import ids, nodes_of


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path, nodes=4, replication=1, racks=2) as made:
        epochlake.create_table(made.cluster, TABLE, [("id", "bigint", False)], ["id"], tablets=4)
        yield made


def replica_counts(cluster: Cluster, table: str = TABLE) -> set[int]:
    metadata = cluster.catch_up()
    tablet_map = metadata.tablets.maps[metadata.table(table).table_id]
    return {len(tablet_map.replicas(tablet)) for tablet in range(tablet_map.count)}


def assert_spread(cluster: Cluster) -> None:
    """The replicas of a tablet are on different nodes, and in both racks where there are two."""
    metadata = cluster.catch_up()
    tablet_map = metadata.tablets.maps[metadata.table(TABLE).table_id]
    for tablet in range(tablet_map.count):
        nodes = [metadata.directory.node_of_volume[volume] for volume in tablet_map.replicas(tablet)]
        assert len({node.name for node in nodes}) == len(nodes)
        assert len({node.rack for node in nodes}) == min(2, len(nodes))


def one_round(lake: LocalCluster) -> None:
    """A round of a coordinator that nobody has seen before, and that is not there any more afterwards."""
    epochlake.Coordinator(lake.participant("coordinator")).run(until_idle=False, most_rounds=1)


def is_altering(cluster: Cluster) -> bool:
    return bool(status(cluster).replications)


def test_more_and_fewer_replicas_under_writes_with_another_coordinator_for_each_round(lake: LocalCluster) -> None:
    cluster = lake.cluster
    written = 0
    for wanted in (3, 2):
        change_replication(cluster, "test", {"dc1": wanted}, reason="safer")
        assert [one.tablets_left for one in status(cluster).replications] == [4 if wanted == 3 else 5]
        epochlake.create_table(cluster, f"test.new{wanted}", [("id", "bigint", False)], ["id"], tablets=1)
        assert replica_counts(cluster, f"test.new{wanted}") == {wanted}
        for number in range(60):
            cluster.write(TABLE, [{"id": written}], consistency="QUORUM" if number % 2 else "ALL")
            written += 1
            one_round(lake)
            assert ids(cluster, "QUORUM") == [*range(written)]
            if not is_altering(cluster):
                break
        assert not is_altering(cluster)
        assert replica_counts(cluster) == {wanted}
        assert_spread(cluster)
        assert ids(cluster, "ALL") == [*range(written)]
    assert verify_quorums(cluster.log()) == (), "some reader may miss some writer between two stages"


def test_rows_of_replicas_that_go_one_after_the_other_stay_on_a_majority_of_the_rest(tmp_path: Path) -> None:
    names = [f"n{number + 1}" for number in range(5)]
    with local_cluster(tmp_path, nodes=5, replication=5, racks=1) as lake:
        cluster = lake.cluster
        epochlake.create_table(cluster, TABLE, [("id", "bigint", False)], ["id"], tablets=1)
        for number, away in enumerate(combinations(names, 2)):
            with lake.away(away[0]), lake.away(away[1]):
                cluster.write(TABLE, [{"id": number}], consistency="QUORUM")
        change_replication(cluster, "test", {"dc1": 3})
        lake.coordinate()
        for name in nodes_of(cluster, 0):
            with lake.away(name):
                assert ids(cluster, "QUORUM") == [*range(10)]


def test_a_replica_is_given_up_only_where_all_that_stay_have_got_its_rows(lake: LocalCluster) -> None:
    cluster = lake.cluster
    change_replication(cluster, "test", {"dc1": 3})
    lake.coordinate()
    cluster.write(TABLE, [{"id": number} for number in range(20)], consistency="ALL")
    epochlake.pause_balancing(cluster, reason="by hand")
    leaving, heir, third = nodes_of(cluster, 0)
    drop_replicas(cluster, TABLE, (0,), leaving)
    metadata = cluster.catch_up()
    [transition] = metadata.tablets.transitions.values()
    staying = {metadata.directory.node_of_volume[volume].name for volume in transition.receiving}
    assert staying == {heir, third}
    beside = metadata.directory.node_of_volume[transition.receiving[1]].name
    with lake.away(beside):
        report = lake.coordinate()
        assert not report.idle
        assert any(beside in why for why in report.blocked), report
        assert len(nodes_of(cluster, 0)) == 3
    lake.coordinate()
    assert len(nodes_of(cluster, 0)) == 3  # it was taken back
    drop_replicas(cluster, TABLE, (0,), leaving)
    lake.coordinate()
    assert {*nodes_of(cluster, 0)} == staying
    assert ids(cluster, "ALL") == [*range(20)]


def test_who_changes_his_mind_on_the_way_gets_what_he_said_last(
    lake: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = lake.cluster
    cluster.write(TABLE, [{"id": number} for number in range(100)], consistency="ALL")
    line = CommandLine(Path(str(cluster.root.uri)), capsys)
    line.done("keyspace", "alter", "test", "--replication", "dc1=3")
    for _ in range(4):
        one_round(lake)
    assert "replication  test is to have dc1=3: 4 tablets left" in line.text("status").out
    line.done("keyspace", "alter", "test", "--replication", "dc1=1")
    lake.coordinate()
    assert replica_counts(cluster) == {1}
    assert not is_altering(cluster)
    assert ids(cluster, "ALL") == [*range(100)]


class Killed(BaseException):
    """What nothing catches."""


def test_a_coordinator_that_is_killed_at_any_step_is_followed_by_one_that_goes_on(
    lake: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lake.cluster
    cluster.write(TABLE, [{"id": number} for number in range(50)], consistency="ALL")
    change_replication(cluster, "test", {"dc1": 2})
    kills = 0
    participant = lake.participant("coordinator")
    commit = participant.commit

    def dying(event: object, **options: object) -> object:
        nonlocal kills
        kills += 1
        if kills % 3 == 1:
            raise Killed
        done = commit(event, **options)  # type: ignore[call-overload]
        if kills % 3 == 2:
            raise Killed
        return done

    monkeypatch.setattr(participant, "commit", dying)
    for _ in range(60):
        try:
            epochlake.Coordinator(participant).run(until_idle=True)
        except Killed:
            assert ids(cluster, "QUORUM") == [*range(50)]
        if not is_altering(cluster):
            break
    assert kills > 6
    assert replica_counts(cluster) == {2}
    assert ids(cluster, "ALL") == [*range(50)]


def test_a_node_leaves_while_tablets_get_replicas_and_none_leaves_that_they_need(lake: LocalCluster) -> None:
    cluster = lake.cluster
    cluster.write(TABLE, [{"id": number} for number in range(50)], consistency="ALL")
    change_replication(cluster, "test", {"dc1": 3})
    one_round(lake)
    decommission(cluster, "n4")
    with pytest.raises(Rejected) as refused:
        change_replication(cluster, "test", {"dc1": 4})
    assert str(refused.value.code) == "replication-too-high"
    lake.coordinate()
    assert replica_counts(cluster) == {3}
    assert ids(cluster, "ALL") == [*range(50)]
    change_replication(cluster, "test", {"dc1": 2})
    with pytest.raises(Rejected) as refused:
        decommission(cluster, "n3")
    assert str(refused.value.code) == "too-few-nodes"
    lake.coordinate()
    decommission(cluster, "n3")
    lake.coordinate()
    assert replica_counts(cluster) == {2}
    assert ids(cluster, "ALL") == [*range(50)]


def test_nothing_is_given_up_while_another_replica_is_away(lake: LocalCluster) -> None:
    cluster = lake.cluster
    change_replication(cluster, "test", {"dc1": 3})
    lake.coordinate()
    change_replication(cluster, "test", {"dc1": 2})
    metadata = cluster.catch_up()
    away = metadata.directory.node_of_volume[metadata.tablets.maps[metadata.table(TABLE).table_id].replicas(0)[0]].name
    with lake.away(away):
        report = lake.coordinate()
        assert not report.idle
        assert len(cluster.catch_up().tablets.maps[metadata.table(TABLE).table_id].replicas(0)) == 3
        assert any("no other replica is given up" in why for why in report.blocked)
    lake.coordinate()
    assert replica_counts(cluster) == {2}


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"dc1": 5}, "replication-too-high"),
        ({"dc1": 1}, "nothing-to-do"),
        ({"dc1": 1, "dc9": 1}, "wrong-datacenter"),
        ({"dc1": 0}, "no-replicas"),
        ({"dc1": -1}, "invalid-replication"),
        ({"replication_factor": 2}, "unsupported-placement"),
    ],
    ids=str,
)
def test_what_cannot_be_placed_is_refused(lake: LocalCluster, wanted: dict[str, int], code: str) -> None:
    epoch = lake.cluster.catch_up().epoch
    with pytest.raises(Rejected) as refused:
        change_replication(lake.cluster, "test", wanted)
    assert (str(refused.value.code), lake.cluster.catch_up().epoch) == (code, epoch)


def test_a_node_that_rests_is_no_place_for_more(lake: LocalCluster) -> None:
    set_maintenance(lake.cluster, "n1", True)
    with pytest.raises(Rejected) as refused:
        change_replication(lake.cluster, "test", {"dc1": 4})
    assert str(refused.value.code) == "replication-too-high"
    assert "3 node(s) can take" in refused.value.text


def test_a_table_that_was_dropped_before_is_restored_while_its_keyspace_is_altered(lake: LocalCluster) -> None:
    cluster = lake.cluster
    cluster.write(TABLE, [{"id": number} for number in range(50)], consistency="ALL")
    metadata = cluster.catch_up()
    held = metadata.tablets.maps[metadata.table(TABLE).table_id].replicas(0)
    other = next(volume for volume in metadata.directory.volumes if volume not in held)
    epochlake.pause_balancing(cluster, reason="by hand")
    add_replicas(cluster, TABLE, (0,), metadata.directory.node_of_volume[other].name)
    lake.coordinate()
    drop_table(cluster, TABLE, keep_seconds=3600.0)
    change_replication(cluster, "test", {"dc1": 2})
    lake.coordinate()
    assert not is_altering(cluster)
    with pytest.raises(Rejected) as refused:
        restore_table(cluster, TABLE)
    assert str(refused.value.code) == "invalid-tablets"
    assert "keyspace alter" in refused.value.hint
    change_replication(cluster, "test", {"dc1": 3})
    restore_table(cluster, TABLE)
    lake.coordinate()
    assert replica_counts(cluster) == {3}
    assert ids(cluster, "ALL") == [*range(50)]


def test_what_would_be_done_is_said_before(lake: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    line = CommandLine(Path(str(lake.cluster.root.uri)), capsys)
    epoch = lake.cluster.catch_up().epoch
    dry = line.done("keyspace", "alter", "test", "--replication", "dc1=2", "--dry-run")
    assert (dry["event"], dry["what"]) == ("AlterTabletReplication", "keyspace test is to have dc1=2")
    assert lake.cluster.catch_up().epoch == epoch
