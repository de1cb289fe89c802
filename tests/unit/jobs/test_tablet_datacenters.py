"""Datacenters that come and go for a keyspace on tablets: under writes, with a coordinator killed each round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import epochlake
import pytest
from epochlake.jobs.administration import change_replication, drop_table, restore_table
from epochlake.metastore.errors import Rejected
from epochlake.metastore.following.quorums import verify_quorums
from epochlake.testing import LocalCluster, local_cluster

from tests.support.tablets import EVENTS as TABLE
from tests.support.tablets import ids
from tests.unit.jobs.test_tablet_replication import is_altering, one_round


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes in dc1, with two replicas of two tablets, and two more in dc2."""
    with local_cluster(tmp_path, nodes=2, replication=2, racks=1) as made:
        epochlake.create_table(made.cluster, TABLE, [("id", "bigint", False)], ["id"], tablets=2)
        for name in ("m1", "m2"):
            epochlake.add_node(made.cluster, name, "dc2", "r1", [("d1", str(made.volume(name)), None)])
        made.coordinate()
        yield made


def datacenters(lake: LocalCluster, tablet: int) -> dict[str, int]:
    metadata = lake.cluster.catch_up()
    replicas = metadata.tablets.maps[metadata.table(TABLE).table_id].replicas(tablet)
    return dict(Counter(map(metadata.directory.datacenter_of, replicas)))


def local_ids(lake: LocalCluster, datacenter: str) -> list[int]:
    found = lake.cluster.scan(TABLE, consistency="LOCAL_QUORUM", datacenter=datacenter).read_all()
    return sorted(found["id"].to_pylist())


def test_rows_move_to_another_datacenter_while_they_are_read_and_written(lake: LocalCluster) -> None:
    cluster, written = lake.cluster, 0
    local: set[int] = set()
    each: list[int] = []
    for wanted in ({"dc1": 2, "dc2": 2}, {"dc2": 2}):
        change_replication(cluster, "test", wanted)
        for number in range(60):
            cluster.write(TABLE, [{"id": written}], consistency="EACH_QUORUM" if number % 2 else "QUORUM")
            each += [written] if number % 2 else []
            written += 1
            datacenter = "dc2" if number % 2 else "dc1"
            # Refused for as long as some tablet has no replica there; whatever is acknowledged is there for good.
            with suppress(epochlake.InvalidRequest):
                cluster.write(TABLE, [{"id": 1000 + written}], consistency="LOCAL_QUORUM", datacenter=datacenter)
                local.add(1000 + written)
                assert {*each} <= {*local_ids(lake, datacenter)}
            one_round(lake)
            if number % 3 == 0:
                assert [one for one in ids(cluster, "QUORUM") if one < 1000] == [*range(written)]
            if not is_altering(cluster):
                break
        assert not is_altering(cluster)
        assert [datacenters(lake, tablet) for tablet in range(2)] == [wanted, wanted]
    everything = sorted([*range(written), *local])
    for away in ("m1", "m2"):
        with lake.away(away):
            assert sorted(cluster.scan(TABLE, consistency="ONE").read_all()["id"].to_pylist()) == everything
    assert local_ids(lake, "dc2") == everything
    with pytest.raises(epochlake.InvalidRequest, match="LOCAL_QUORUM in datacenter 'dc1'"):
        local_ids(lake, "dc1")
    assert verify_quorums(cluster.log()) == ()
    decommissioned = epochlake.decommission(cluster, "n1")
    assert lake.coordinate().requests_finished == 1
    assert decommissioned.epoch


def test_a_datacenter_that_has_come_half_way_goes_again(lake: LocalCluster) -> None:
    cluster = lake.cluster
    cluster.write(TABLE, [{"id": number} for number in range(40)], consistency="ALL")
    change_replication(cluster, "test", {"dc1": 1, "dc2": 2})
    for _ in range(5):
        one_round(lake)
    with pytest.raises(Rejected) as refused:
        epochlake.decommission(cluster, "m2")
    assert str(refused.value.code) == "too-few-nodes"
    change_replication(cluster, "test", {"dc1": 2})
    lake.coordinate()
    assert [datacenters(lake, tablet) for tablet in range(2)] == [{"dc1": 2}, {"dc1": 2}]
    assert ids(cluster, "ALL") == [*range(40)]
    assert local_ids(lake, "dc1") == [*range(40)]


def test_no_datacenter_goes_while_what_should_take_over_is_away(lake: LocalCluster) -> None:
    cluster = lake.cluster
    cluster.write(TABLE, [{"id": number} for number in range(40)], consistency="ALL")
    change_replication(cluster, "test", {"dc2": 2})
    with lake.away("m2"):
        report = lake.coordinate()
        assert not report.idle
        assert all(datacenters(lake, tablet)["dc1"] == 2 for tablet in range(2))
    lake.coordinate()
    assert [datacenters(lake, tablet) for tablet in range(2)] == [{"dc2": 2}, {"dc2": 2}]
    assert ids(cluster, "ALL") == [*range(40)]


def test_a_table_that_was_dropped_before_is_not_restored_where_its_datacenter_is_gone(lake: LocalCluster) -> None:
    cluster = lake.cluster
    cluster.write(TABLE, [{"id": number} for number in range(40)], consistency="ALL")
    drop_table(cluster, TABLE, keep_seconds=3600.0)
    change_replication(cluster, "test", {"dc2": 1})
    lake.coordinate()
    with pytest.raises(Rejected) as refused:
        restore_table(cluster, TABLE)
    assert str(refused.value.code) == "invalid-tablets"
    assert "keyspace alter" in refused.value.hint
    change_replication(cluster, "test", {"dc2": 2})
    restore_table(cluster, TABLE)
    lake.coordinate()
    assert [datacenters(lake, tablet) for tablet in range(2)] == [{"dc2": 2}, {"dc2": 2}]
    assert ids(cluster, "ALL") == [*range(40)]
