"""How long something of a table is kept: a thousand years at most, looked at when it is asked for, never in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.change_streams import keep_changes
from epochlake.jobs.administration.operators import OptionChanges
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.metadata.events import KeepHistory, ShelveTable
from epochlake.metastore.metadata.events.table_lifetimes import LONGEST_SECONDS
from epochlake.metastore.metadata.model import CompactionOptions
from epochlake.placement.errors import InvalidRequest

from tests.support.changes import FLIGHTS, alone, flights
from tests.support.clusters import SmallCluster


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    alone(monkeypatch)
    with flights(tmp_path, 1) as made:
        yield made


ASKED: dict[str, Callable[[Cluster, float], object]] = {
    "history": lambda cluster, seconds: administration.keep_history(cluster, FLIGHTS, seconds),
    "dropped table": lambda cluster, seconds: administration.drop_table(cluster, FLIGHTS, keep_seconds=seconds),
    "changes": lambda cluster, seconds: keep_changes(cluster, FLIGHTS, retention_seconds=seconds),
    "named readers": lambda cluster, seconds: keep_changes(
        cluster, FLIGHTS, retention_seconds=1.0, limit_seconds=seconds
    ),
    "deletes": lambda cluster, seconds: administration.alter_table(
        cluster, FLIGHTS, OptionChanges(compaction=CompactionOptions(tombstone_grace_seconds=seconds))
    ),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_cannot_be_a_time_or_is_longer_than_a_thousand_years_is_refused(small: SmallCluster, what: str) -> None:
    epoch = small.cluster.catch_up().epoch
    for seconds in (float("nan"), float("inf"), 1e300, 10**400, LONGEST_SECONDS + 1, -1.0):
        with pytest.raises(InvalidRequest, match=rf"{what}.* cannot be kept for .* seconds\. Give seconds, from 0"):
            ASKED[what](small.cluster, seconds)  # type: ignore[arg-type]
    assert small.cluster.catch_up().epoch == epoch
    ASKED[what](small.cluster, LONGEST_SECONDS)


def test_changes_that_are_kept_for_long_are_kept_for_readers_up_to_the_longest_time(small: SmallCluster) -> None:
    keep_changes(small.cluster, FLIGHTS, retention_seconds=LONGEST_SECONDS / 2)
    [stream] = small.cluster.metadata.change_streams.by_table.values()
    assert stream.limit_seconds == LONGEST_SECONDS


def test_a_log_with_a_longer_time_stays_readable_and_its_table_can_be_altered(small: SmallCluster) -> None:
    cluster = small.cluster
    table_id = small.table.table_id
    cluster.commit(KeepHistory(table_id, FLIGHTS, 1e300), reason="by an earlier version")
    with Cluster(cluster.configuration) as other:
        assert other.catch_up().table(FLIGHTS).keeps_history_seconds == 1e300
        administration.keep_history(other, FLIGHTS, 60.0)
    cluster.commit(ShelveTable(table_id, FLIGHTS, 1e300), reason="by an earlier version")
    administration.restore_table(cluster, FLIGHTS)
    assert cluster.table(FLIGHTS).name == FLIGHTS
