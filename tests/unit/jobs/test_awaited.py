"""What sensors wait for: when it is so, when it is not so yet, and when it cannot become so any more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import epochlake
import pytest
from epochlake.jobs.administration import cancel_request
from epochlake.jobs.views.awaited import (
    batch_landed,
    cluster_settled,
    epoch_committed,
    request_ended,
    table_written,
)
from epochlake.testing import LocalCluster, local_cluster

TABLE = "test.events"
LONG_AGO = datetime(2013, 1, 1, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path) as made:
        epochlake.create_table(made.cluster, TABLE, [("id", "bigint", False)], ["id"], tablets=2)
        yield made


def write(lake: LocalCluster, number: int, consistency: str = "ALL", batch: str | None = None) -> None:
    lake.cluster.write(TABLE, [{"id": number}], consistency=consistency, batch=batch)


def test_an_epoch_is_there_when_the_log_has_reached_it(lake: LocalCluster) -> None:
    assert epoch_committed(lake.cluster, lake.epoch).met
    assert not epoch_committed(lake.cluster, lake.epoch + 1).met


def test_a_request_has_ended_when_it_is_carried_out_and_never_when_it_was_cancelled(lake: LocalCluster) -> None:
    assert not request_ended(lake.cluster, "n4").met
    for name in ("n4", "n5"):
        place = str(lake.volume(name))
        epochlake.add_node(lake.cluster, name, "dc1", "r1", [("d1", place, 1 << 30)], request_id=name)
    open_ = request_ended(lake.cluster, "n4")
    assert (open_.met, open_.impossible, open_.epoch) == (False, False, lake.epoch)
    assert "request n4 is pending" in open_.detail
    cancel_request(lake.cluster, "n5")
    assert lake.coordinate().idle
    assert request_ended(lake.cluster, "n4").met
    cancelled = request_ended(lake.cluster, "n5")
    assert (cancelled.met, cancelled.impossible) == (False, True)
    epochlake.create_keyspace(lake.cluster, "sea", {"dc1": 1}, request_id="sea")
    assert request_ended(lake.cluster, "sea").met


def test_a_cluster_is_settled_when_a_coordinator_has_nothing_to_do(lake: LocalCluster) -> None:
    assert cluster_settled(lake.cluster).met
    epochlake.add_node(lake.cluster, "n4", "dc1", "r1", [("d1", str(lake.volume("n4")), 1 << 30)])
    while True:
        idle = all(track.idle(lake.cluster.catch_up()) for track in epochlake.Coordinator(lake.cluster).tracks)
        found = cluster_settled(lake.cluster)
        assert found.met == idle, found.detail
        if idle:
            break
        epochlake.Coordinator(lake.participant("coordinator")).run(until_idle=False, most_rounds=1)
    assert found.detail == "nothing is in motion"


def test_a_table_is_as_fresh_as_what_enough_replicas_have(lake: LocalCluster) -> None:
    assert not table_written(lake.cluster, TABLE, LONG_AGO).met
    begun = datetime.now(UTC)
    write(lake, 1)
    assert table_written(lake.cluster, TABLE, begun, "ALL").met
    assert not table_written(lake.cluster, TABLE, datetime.now(UTC) + timedelta(hours=1)).met
    later = datetime.now(UTC)
    with lake.away("n1"), lake.away("n2"):
        write(lake, 2, "ONE")
        assert table_written(lake.cluster, TABLE, later, "ONE").met
        assert not table_written(lake.cluster, TABLE, LONG_AGO, "QUORUM").met
    # Only one replica has the newest rows: for a quorum the table is as old as before.
    found = table_written(lake.cluster, TABLE, begun, "QUORUM")
    assert found.met
    assert not table_written(lake.cluster, TABLE, later, "QUORUM").met
    assert epochlake.repair(lake.cluster, TABLE).complete
    assert table_written(lake.cluster, TABLE, later, "ALL").met


def test_a_batch_has_landed_when_all_its_rows_are_on_enough_replicas(lake: LocalCluster) -> None:
    assert "not been written yet" in batch_landed(lake.cluster, TABLE, "day").detail
    with lake.away("n1"):
        write(lake, 1, "QUORUM", "day")
        assert batch_landed(lake.cluster, TABLE, "day", "QUORUM").met
        found = batch_landed(lake.cluster, TABLE, "day", "ALL")
        assert not found.met
        assert "n1/d1 does not answer" in found.detail
    assert not batch_landed(lake.cluster, TABLE, "day", "ALL").met
    assert epochlake.repair(lake.cluster, TABLE).complete
    assert batch_landed(lake.cluster, TABLE, "day", "ALL").met
    assert epochlake.compact(lake.cluster, TABLE).complete
    assert batch_landed(lake.cluster, TABLE, "day", "ALL").met


def test_a_batch_that_too_few_replicas_took_has_not_landed(lake: LocalCluster) -> None:
    with lake.away("n1"), lake.away("n2"), pytest.raises(epochlake.ConsistencyNotReached):
        write(lake, 1, "QUORUM", "day")
    assert not batch_landed(lake.cluster, TABLE, "day", "QUORUM").met
    write(lake, 1, "QUORUM", "day")
    assert batch_landed(lake.cluster, TABLE, "day", "QUORUM").met


def test_what_cannot_be_meant_is_said(lake: LocalCluster) -> None:
    with pytest.raises(epochlake.Rejected, match="unknown-table"):
        batch_landed(lake.cluster, "test.none", "day")
    with pytest.raises(epochlake.InvalidRequest, match="no time zone"):
        table_written(lake.cluster, TABLE, LONG_AGO.replace(tzinfo=None))
    with pytest.raises(epochlake.InvalidRequest):
        table_written(lake.cluster, TABLE, LONG_AGO, "LOCAL_QUORUM")
