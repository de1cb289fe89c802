"""Changes by the clock of this machine where the storage of the root does not tell what time it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import right_clocks
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.errors import Rejected
from epochlake.placement.rejections import Code

from tests.support.clusters import grow, without_zookeeper

TABLE = "air.visits"
DAY = 86_400
REAL = time.time_ns


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    with grow(tmp_path) as grown:
        administration.create_table(
            grown, TABLE, [("id", "bigint", False), ("seen", "timestamp", True)], ["id"], tablets=2
        )
        monkeypatch.setattr(right_clocks, "ahead_of", lambda storage, root: None)
        yield grown


def test_the_log_contradicts_a_clock_that_is_behind_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cluster.metadata.epoch
    monkeypatch.setattr(time, "time_ns", lambda: REAL() - 5 * DAY * 10**9)
    with pytest.raises(Rejected, match=f"seconds behind the time of epoch {before}, and .* does not tell") as refused:
        administration.set_ttl(cluster, TABLE, "seen", 90 * DAY)
    assert refused.value.code == Code.INVALID_TTL
    with pytest.raises(Rejected, match="seconds behind the time of epoch") as refused:
        administration.drop_table(cluster, TABLE, keep_seconds=DAY)
    assert refused.value.code == Code.NOT_RESTORABLE
    assert cluster.catch_up().epoch == before


def test_a_clock_that_nobody_contradicts_is_taken_with_a_warning(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    administration.set_ttl(cluster, TABLE, "seen", 90 * DAY)
    assert "does not tell what time it is, so only the clock of this machine says" in caplog.text
