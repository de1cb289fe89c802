"""A replica table whose columns get a type that came to Delta later says so: else nobody can open it any more."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from epochlake.jobs import administration
from epochlake.jobs.administration.columns import parse_added
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.replicas import fences
from epochlake.jobs.replicas.states import KeptStates

from tests.support.clusters import grow, without_zookeeper

TABLE = "air.flights"
COLUMNS = [("id", "bigint", False), ("day", "date", True)]
ROWS = [{"id": number, "day": datetime.date(2026, 1, 1)} for number in range(9)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    with grow(tmp_path) as grown:
        administration.create_table(grown, TABLE, COLUMNS, ["id"], tablets=2)
        grown.write(TABLE, ROWS)
        yield grown


def replicas(tmp_path: Path) -> list[Path]:
    found = [path.parent for path in tmp_path.rglob("_delta_log") if (path.parent.parent.name) == "air"]
    assert len(found) == 3
    return found


def another_process(cluster: Cluster) -> None:
    """From now on replica tables are read from their beginning, as by a process that has read none."""
    cluster.storage.kept(KeptStates).__init__()  # type: ignore[misc]


@pytest.mark.parametrize(
    "change",
    [
        {"widen": {"day": "timestamp_ntz"}},
        {"add": parse_added(["at timestamp_ntz"])},
        {"add": parse_added(["when array<struct<at:timestamp_ntz>>"])},
    ],
)
def test_a_table_that_gets_a_time_without_zone_is_read_and_written_by_other_processes(
    cluster: Cluster, tmp_path: Path, change: dict[str, object]
) -> None:
    administration.alter_table(cluster, TABLE, **change)  # type: ignore[arg-type]
    assert all("timestampNtz" in DeltaTable(str(one)).protocol().reader_features for one in replicas(tmp_path))
    another_process(cluster)
    assert cluster.count(TABLE) == 9
    cluster.write(TABLE, [{"id": 9, "day": None}], consistency="ALL")
    administration.alter_table(cluster, TABLE, add=parse_added(["more timestamp_ntz", "k int"]))
    another_process(cluster)
    assert cluster.count(TABLE, consistency="ALL") == 10


def test_a_table_that_an_earlier_version_has_altered_is_opened_again(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(fences, "needs_feature", lambda schema: False)
        administration.alter_table(cluster, TABLE, widen={"day": "timestamp_ntz"})
    for replica in replicas(tmp_path):
        with pytest.raises(DeltaError, match="timestampNtz"):
            DeltaTable(str(replica))
    another_process(cluster)
    assert cluster.count(TABLE, consistency="ALL") == 9
    cluster.write(TABLE, [{"id": 9, "day": datetime.datetime(2026, 1, 1, 7)}], consistency="ALL")
    assert cluster.count(TABLE, consistency="ALL") == 10
