"""Tablets that get a replica more or one less by hand, and tablets that the balancer leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import epochlake
import pytest
from epochlake.jobs.administration import (
    add_replicas,
    decommission,
    drop_replicas,
    drop_table,
    move_tablets,
    pin_tablets,
    restore_table,
    set_maintenance,
    unpin_tablets,
)
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.views.explanation import explain
from epochlake.jobs.views.status import status
from epochlake.metastore.errors import Rejected
from epochlake.metastore.following.quorums import verify_quorums
from epochlake.metastore.metadata.components.pins import Pin
from epochlake.metastore.tables.metadata import PARTS
from epochlake.testing import LocalCluster, local_cluster

from tests.support.command_line import CommandLine
from tests.support.tablets import EVENTS as TABLE
from tests.support.tablets import ids, nodes_of


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path, nodes=4, replication=2, racks=2) as made:
        epochlake.create_table(made.cluster, TABLE, [("id", "bigint", False)], ["id"])
        yield made


def free_node(cluster: Cluster, tablet: int) -> str:
    held = nodes_of(cluster, tablet)
    return next(node.name for node in cluster.metadata.directory.members() if node.name not in held)


def code_of(refused: pytest.ExceptionInfo[Rejected]) -> str:
    return str(refused.value.code)


def test_a_tablet_gets_a_replica_more_and_gives_one_up_and_keeps_its_rows(lake: LocalCluster) -> None:
    cluster = lake.cluster
    epochlake.pause_balancing(cluster, reason="by hand")
    cluster.write(TABLE, [{"id": number} for number in range(200)], consistency="ALL")
    first, _ = nodes_of(cluster, 1)
    target = free_node(cluster, 1)
    add_replicas(cluster, TABLE, (1,), target, reason="hot")
    cluster.write(TABLE, [{"id": number} for number in range(200, 250)], consistency="QUORUM")
    lake.coordinate()
    assert len(nodes_of(cluster, 1)) == 3
    assert target in nodes_of(cluster, 1)
    cluster.write(TABLE, [{"id": number} for number in range(250, 300)], consistency="ALL")
    drop_replicas(cluster, TABLE, (1,), first)
    lake.coordinate()
    assert first not in nodes_of(cluster, 1)
    assert len(nodes_of(cluster, 1)) == 2
    for level in ("ALL", "QUORUM", "ONE"):
        assert ids(cluster, level) == [*range(300)]
    assert not cluster.catch_up().tablets.transitions
    assert verify_quorums(cluster.log()) == (), "some reader may miss some writer between two stages"


def test_what_only_the_replica_that_goes_has_acknowledged_is_handed_over_first(lake: LocalCluster) -> None:
    cluster = lake.cluster
    epochlake.pause_balancing(cluster, reason="by hand")
    going = nodes_of(cluster, 1)[0]
    with ExitStack() as away:
        for node in cluster.metadata.directory.members():
            if node.name != going:
                away.enter_context(lake.away(node.name))
        written = [number for number in range(200) if one_tablet(cluster, number) == 1]
        cluster.write(TABLE, [{"id": number} for number in written], consistency="ONE")
    drop_replicas(cluster, TABLE, (1,), going)
    lake.coordinate()
    assert going not in nodes_of(cluster, 1)
    assert written
    assert ids(cluster, "ALL") == written


def one_tablet(cluster: Cluster, number: int) -> int:
    found = explain(cluster.metadata, TABLE, key={"id": str(number)}).tablet
    assert found is not None
    return found


def test_a_handover_that_fails_goes_back_and_takes_nothing_from_the_replica_that_stays(lake: LocalCluster) -> None:
    cluster = lake.cluster
    epochlake.pause_balancing(cluster, reason="by hand")
    cluster.write(TABLE, [{"id": number} for number in range(100)], consistency="ALL")
    before = nodes_of(cluster, 1)
    drop_replicas(cluster, TABLE, (1,), before[0])
    with lake.away(before[0]):
        for _ in range(12):
            lake.coordinate()
    lake.coordinate()
    assert ids(cluster, "ALL") == [*range(100)]
    assert before[1] in nodes_of(cluster, 1)
    assert not cluster.catch_up().tablets.transitions


@pytest.mark.parametrize("bad", ["held", "unknown tablet", "unknown node", "maintenance", "leaving", "twice"])
def test_no_replica_is_added_where_the_balancer_would_put_none(lake: LocalCluster, bad: str) -> None:
    cluster = lake.cluster
    target, tablets, code = free_node(cluster, 1), (1,), ""
    match bad:
        case "held":
            target, code = nodes_of(cluster, 1)[0], "is-a-replica"
        case "unknown tablet":
            tablets, code = (99,), "unknown-tablet"
        case "unknown node":
            target, code = "nobody", "unknown-node"
        case "maintenance":
            set_maintenance(cluster, target, True)
            code = "in-maintenance"
        case "leaving":
            decommission(cluster, target)
            code = "request-in-the-way"
        case "twice":
            tablets, code = (1, 1), "transition-in-the-way"
    epoch = cluster.catch_up().epoch
    with pytest.raises(Rejected) as refused:
        add_replicas(cluster, TABLE, tablets, target)
    assert (code_of(refused), cluster.catch_up().epoch) == (code, epoch)


def test_the_last_replica_of_a_datacenter_is_not_given_up(lake: LocalCluster) -> None:
    cluster = lake.cluster
    epochlake.pause_balancing(cluster, reason="by hand")
    first, second = nodes_of(cluster, 1)
    drop_replicas(cluster, TABLE, (1,), first)
    with pytest.raises(Rejected) as refused:
        drop_replicas(cluster, TABLE, (1,), second)
    assert code_of(refused) == "transition-in-the-way"
    lake.coordinate()
    with pytest.raises(Rejected) as refused:
        drop_replicas(cluster, TABLE, (1,), second)
    assert code_of(refused) == "too-few-replicas"
    with pytest.raises(Rejected) as refused:
        drop_replicas(cluster, TABLE, (1,), first)
    assert code_of(refused) == "not-a-replica"


def test_a_table_whose_tablets_differ_is_dropped_and_restored(lake: LocalCluster) -> None:
    cluster = lake.cluster
    epochlake.pause_balancing(cluster, reason="by hand")
    cluster.write(TABLE, [{"id": number} for number in range(50)], consistency="ALL")
    add_replicas(cluster, TABLE, (1,), free_node(cluster, 1))
    lake.coordinate()
    held = nodes_of(cluster, 1)
    drop_table(cluster, TABLE, keep_seconds=3600.0)
    restore_table(cluster, TABLE)
    assert nodes_of(cluster, 1) == held
    assert ids(cluster, "ALL") == [*range(50)]


def test_the_balancer_leaves_pinned_tablets_where_they_are_and_takes_the_others(
    lake: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = lake.cluster
    epochlake.pause_balancing(cluster, reason="to crowd a node")
    count = cluster.catch_up().tablets.maps[cluster.metadata.table(TABLE).table_id].count
    crowded = "n1"
    for tablet in range(count):
        source = next((node for node in nodes_of(cluster, tablet) if same_rack(cluster, node, crowded)), None)
        if source is not None and crowded not in nodes_of(cluster, tablet):
            move_tablets(cluster, TABLE, (tablet,), source, crowded)
            lake.coordinate()
    held = [tablet for tablet in range(count) if crowded in nodes_of(cluster, tablet)]
    assert len(held) == count
    pin_tablets(cluster, TABLE, tuple(held), reason="the fast disk")
    assert status(cluster).pinned_tablets == count
    assert {row["reason"] for row in PARTS["pins"](cluster.metadata).to_pylist()} == {"the fast disk"}
    epochlake.resume_balancing(cluster)
    lake.coordinate()
    assert [tablet for tablet in range(count) if crowded in nodes_of(cluster, tablet)] == held
    line = CommandLine(Path(str(cluster.root.uri)), capsys)
    assert "the tablet is pinned" in line.text("plan", "balance").out
    assert f"pinned       {count} tablets" in line.text("status").out
    line.done("tablet", "unpin", TABLE, *map(str, held[2:]))
    lake.coordinate()
    left = [tablet for tablet in range(count) if crowded in nodes_of(cluster, tablet)]
    assert {*held[:2]} <= {*left} < {*held}
    # A node that goes takes no notice of pins.
    decommission(cluster, crowded)
    lake.coordinate()
    assert all(crowded not in nodes_of(cluster, tablet) for tablet in range(count))
    with pytest.raises(Rejected) as refused:
        unpin_tablets(cluster, TABLE, (held[-1],))
    assert code_of(refused) == "nothing-to-do"


def same_rack(cluster: Cluster, one: str, other: str) -> bool:
    return cluster.metadata.node(one).rack == cluster.metadata.node(other).rack


def test_a_pin_covers_what_its_tablet_is_split_into_and_merged_to() -> None:
    pin = Pin("t", 4, 2, "", 1)
    assert [tablet for tablet in range(8) if pin.covers(tablet, 8)] == [4, 5]
    assert [tablet for tablet in range(4) if pin.covers(tablet, 4)] == [2]
    assert [tablet for tablet in range(2) if pin.covers(tablet, 2)] == [1]
    assert pin.covers(0, 1)


def test_the_commands_add_and_drop_and_pin(lake: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    line = CommandLine(Path(str(lake.cluster.root.uri)), capsys)
    target = free_node(lake.cluster, 1)
    dry = line.done("tablet", "add-replica", TABLE, "1", "--to", target, "--dry-run")
    assert (dry["event"], dry["what"]) == ("ChangeReplicas", "1 tablet gets a replica: by hand")
    assert line.json("tablet", "drop-replica", TABLE, "1", "--from", target).code == 3
    line.done("tablet", "add-replica", TABLE, "1", "--to", f"{target}/d1")
    line.done("tablet", "pin", TABLE, "0", "1", "--reason", "hot")
    assert line.json("tablet", "pin", TABLE, "0").code == 3
    assert line.json("tablet", "pin", TABLE, "99").code == 3
