"""Differences between times and rollbacks of tables whose columns were changed in between."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import past_rows
from epochlake.jobs.administration.past_rows import rollback
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.replicas.merging_here import merge_here
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.metastore.errors import Rejected

from tests.support.clusters import grow, without_zookeeper

TABLE = "air.flights"
COLUMNS = [("id", "bigint", False), ("note", "string", True), ("size", "int", True)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    with grow(tmp_path) as grown:
        administration.create_table(grown, TABLE, COLUMNS, ["id"], tablets=2)
        yield grown


def now() -> datetime:
    time.sleep(0.002)
    return datetime.now(UTC)


def differences(cluster: Cluster, first: datetime, last: datetime | None = None) -> dict[int, dict[str, object]]:
    found = cluster.changed_rows(TABLE, first, last).read_all().to_pylist()
    return {row.pop("id"): row for row in found}


def change_columns(cluster: Cluster) -> None:
    """Every change of columns that there is, at once."""
    administration.alter_table(
        cluster,
        TABLE,
        add=["city string not null default 'Rome'", "score double"],
        drop=["note"],
        rename={"size": "bytes"},
        widen={"size": "bigint"},
    )


def loaded(cluster: Cluster) -> datetime:
    cluster.write(TABLE, [{"id": number, "note": f"n{number}", "size": number} for number in range(6)])
    return now()


@pytest.mark.parametrize("compacted", [False, True])
def test_columns_that_were_changed_in_between_are_no_difference_of_rows(cluster: Cluster, compacted: bool) -> None:
    first = loaded(cluster)
    change_columns(cluster)
    middle = now()
    assert differences(cluster, first) == differences(cluster, first, middle) == {}
    cluster.write(TABLE, [{"id": 1, "bytes": 2**40, "city": "Oslo"}])
    cluster.write(TABLE, [{"id": 2, "bytes": 2}, {"id": 9, "bytes": 9}])
    cluster.delete(TABLE, [{"id": 3}])
    if compacted:
        assert compact(cluster, TABLE, None, policy=EVERYTHING, merger=merge_here).complete
    found = differences(cluster, first)
    assert {key: row["_change"] for key, row in found.items()} == {1: "changed", 3: "removed", 9: "added"}
    assert found[1]["_before"] == {"id": 1, "bytes": 1, "city": "Rome", "score": None}
    assert (found[1]["bytes"], found[1]["city"]) == (2**40, "Oslo")
    assert found[9]["_before"] is None
    assert differences(cluster, first, middle) == {}
    assert differences(cluster, middle) == found


def test_a_name_that_is_used_again_shows_no_value_of_before_in_differences(cluster: Cluster) -> None:
    first = loaded(cluster)
    administration.alter_table(cluster, TABLE, drop=["note"])
    administration.alter_table(cluster, TABLE, add=["note string"])
    assert differences(cluster, first) == {}
    cluster.write(TABLE, [{"id": 1, "size": 1, "note": "n1"}])
    [(key, row)] = differences(cluster, first).items()
    assert (key, row["_change"], row["_before"]) == (1, "changed", {"id": 1, "size": 1, "note": None})


def test_columns_that_change_after_differences_were_asked_for_end_them_by_name(cluster: Cluster) -> None:
    first = loaded(cluster)
    cluster.write(TABLE, [{"id": 1, "note": "new", "size": 1}])
    stream = cluster.changed_rows(TABLE, first)
    change_columns(cluster)
    with pytest.raises(Rejected, match=r"the columns of table .* were changed"):
        stream.read_all()


def test_a_rollback_over_a_change_of_columns_brings_back_what_the_columns_of_now_have(cluster: Cluster) -> None:
    first = loaded(cluster)
    cluster.write(TABLE, [{"id": 1, "note": "new", "size": 77}, {"id": 8, "note": "came", "size": 8}])
    cluster.delete(TABLE, [{"id": 2}])
    change_columns(cluster)
    done = rollback(cluster, TABLE, first)
    assert (done.rewritten, done.brought_back, done.deleted) == (1, 1, 1)
    rows = {row["id"]: row for row in cluster.scan(TABLE).read_all().to_pylist()}
    assert rows == {number: {"id": number, "bytes": number, "city": "Rome", "score": None} for number in range(6)}
    assert differences(cluster, first) == {}


def test_columns_that_change_while_a_rollback_looks_are_looked_at_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loaded(cluster)
    cluster.write(TABLE, [{"id": 1, "note": "new", "size": 77}])
    compared, times = past_rows._compared, []

    def altered(*asked: object) -> object:
        times.append(1)
        if len(times) == 1:
            administration.alter_table(cluster, TABLE, rename={"size": "bytes"})
        return compared(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(past_rows, "_compared", altered)
    monkeypatch.setattr(past_rows, "WINDOW_ROWS", 3)
    assert rollback(cluster, TABLE, first).rewritten == 1
    assert len(times) > 1
    assert cluster.get(TABLE, 1) == {"id": 1, "note": "n1", "bytes": 1}
