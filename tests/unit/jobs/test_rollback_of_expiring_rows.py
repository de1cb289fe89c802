"""A rollback to before a table had its time to live: what it writes, and what reads show of that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.past_rows import rollback, time_of_newest
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact

from tests.support.clusters import grow, without_zookeeper

TABLE = "air.visits"
COLUMNS = [("id", "bigint", False), ("seen", "timestamp", True)]
NOW = datetime.now(UTC)


def put(cluster: Cluster, **days: int) -> None:
    """Write rows: the key, and how many days ago it was seen."""
    cluster.write(TABLE, [{"id": int(key[1:]), "seen": NOW - timedelta(days=ago)} for key, ago in days.items()])


def shown(cluster: Cluster, **how: object) -> set[int]:
    return {row["id"] for row in cluster.scan(TABLE, **how).read_all().to_pylist()}  # type: ignore[arg-type]


def test_what_a_rollback_writes_that_expires_by_a_time_to_live_set_meanwhile_no_read_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`until` is the newest write, before the table had its time to live: so rows are judged as of then."""
    without_zookeeper(monkeypatch)
    with grow(tmp_path) as cluster:
        administration.create_table(cluster, TABLE, COLUMNS, ["id"], tablets=2)
        put(cluster, k1=60, k2=0, k4=60)
        to = time_of_newest(cluster, TABLE)
        put(cluster, k1=0, k3=60, k5=0)
        cluster.delete(TABLE, [{"id": 4}])
        administration.set_ttl(cluster, TABLE, "seen", timedelta(days=30))
        assert shown(cluster) == {1, 2, 5}
        done = rollback(cluster, TABLE, to)
        assert (done.rewritten, done.brought_back, done.deleted) == (1, 1, 2)
        assert shown(cluster) == {2}, "1 and 4 are as they were, and so they have expired"
        assert shown(cluster, as_of=to) == {1, 2, 4}
        assert rollback(cluster, TABLE, to, until=done.until).already
        compact(cluster, TABLE, policy=EVERYTHING)
        assert shown(cluster) == {2}
        administration.drop_ttl(cluster, TABLE)
        assert shown(cluster) == {2}, "what has expired stays so"
