"""What replica tables know of epochs that the log does not have: only what is certain is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.upkeep.known_to_replicas import newest_beyond
from epochlake.metastore.log.in_memory import InMemoryLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import AcceptLoss, ForgetTable
from epochlake.metastore.metadata.fence import Fence
from epochlake.testing import local_cluster

COLUMNS = [("id", "bigint", False)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with local_cluster(tmp_path, nodes=1, replication=1) as lake:
        administration.create_table(lake.cluster, "test.old", COLUMNS, ["id"], tablets=1)
        yield lake.cluster


def beyond(cluster: Cluster, metadata: ClusterMetadata) -> tuple[str, Fence] | None:
    """What replicas know beyond a log that ends with `metadata`."""
    short = InMemoryLog()
    short.shared.entries.extend(cluster.log().read(0)[: metadata.epoch])
    return newest_beyond(cluster.storage, metadata, lambda: short)


def test_rows_of_a_table_that_is_in_no_epoch_tell_in_which_one_it_was(cluster: Cluster) -> None:
    before = cluster.metadata
    administration.create_table(cluster, "test.new", COLUMNS, ["id"], tablets=1)
    table_id = cluster.metadata.table("test.new").table_id
    assert beyond(cluster, before) is None  # an empty table may be of a command that was killed
    cluster.write("test.new", [{"id": 1}])
    assert beyond(cluster, before) == (f"test/{table_id} on n1/d1", Fence(before.epoch + 1))
    assert beyond(cluster, cluster.metadata) is None
    # What goes on in another incarnation has accepted that.
    assert beyond(cluster, before.apply(AcceptLoss(2), "s")) is None


def test_a_table_that_was_planned_at_a_lost_epoch_tells_of_it_though_it_is_empty(cluster: Cluster) -> None:
    before = cluster.metadata
    planned = administration.pause_balancing(cluster).epoch
    administration.create_table(cluster, "test.new", COLUMNS, ["id"], tablets=1)
    found = beyond(cluster, before)
    assert found is not None
    assert found[1] == Fence(planned)


def test_a_table_that_was_dropped_is_known_to_the_log(cluster: Cluster) -> None:
    cluster.write("test.old", [{"id": 1}])
    table_id = cluster.metadata.table("test.old").table_id
    administration.drop_table(cluster, "test.old")
    assert beyond(cluster, cluster.metadata) is None
    cluster.commit(ForgetTable(table_id, "test.old"))
    assert not cluster.metadata.dropped.tables
    assert beyond(cluster, cluster.metadata) is None


def test_a_fence_beyond_the_log_tells_of_the_highest_epoch(cluster: Cluster) -> None:
    before = cluster.metadata
    administration.pause_balancing(cluster)
    now = cluster.metadata
    [volume] = now.directory.volumes
    raise_fence(address_of(cluster.storage, now, now.table("test.old"), volume), now.fence)
    assert beyond(cluster, before) == ("test.old on n1/d1", now.fence)
    assert beyond(cluster, now) is None
