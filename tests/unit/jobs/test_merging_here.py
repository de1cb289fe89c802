"""Merging without Spark: of any files, however their row groups fall, exactly the rows that count, in token order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from epochlake.jobs.replicas import merging_here, row_groups
from epochlake.jobs.replicas.merging import MergePlan, RangeMerge, Source
from epochlake.jobs.replicas.merging_here import merged_rows
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.sections import Run
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.model import Table
from epochlake.placement.tokens import TOKEN

from tests.support.clusters import FOUR, SmallCluster, flights, placed, without_zookeeper
from tests.support.files import stored_versions
from tests.support.replicas import flip_in_a_page, make_replica

FLIGHTS = "air.flights"
COLUMNS = [("id", "bigint", False)]


@pytest.fixture
def replica(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    without_zookeeper(monkeypatch)
    with_tablets = placed(tmp_path, FOUR, dict.fromkeys(range(4), "ABC"))
    with with_tablets.cluster:
        yield with_tablets


def plan(table: Table, runs: Sequence[Run], low: int, high: int) -> MergePlan:
    """One merge of what the files have from token `low` to `high`."""
    sources = []
    for run in runs:
        first, last = run.copy.file.extent
        if first <= high and low <= last:
            whole = low <= first and last <= high
            sources.append(Source(run.copy.uri, max(low, first), min(high, last), whole))
    storage = runs[0].copy.address.storage
    merge = RangeMerge(0, 0, "0-0", low, high, tuple(sources), runs[0].copy.uri, (), 0)
    return MergePlan(table, (merge,), 1 << 20, storage)


@pytest.mark.parametrize("append_only", [False, True], ids=["by-key", "append-only"])
@pytest.mark.parametrize("group", [1, 3, 1000])
def test_exactly_the_rows_that_count_come_in_token_order(
    replica: ReplicaAddress, append_only: bool, group: int, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        contents = {}
        for _ in range(chance.randrange(1, 6)):
            versions = [
                (chance.randrange(0, 12), chance.randrange(0, 3), chance.randrange(0, 4), chance.random() < 0.2)
                for _ in range(chance.randrange(1, 30))
            ]
            versions = [(token, 10 * token + key, at, deleted) for token, key, at, deleted in versions]
            contents[stored_versions(replica, versions, group=group)] = versions
        low, high = sorted(chance.choices(range(-1, 14), k=2))
        rows = [
            (token, key, at, deleted, run.name)
            for run, versions in contents.items()
            for token, key, at, deleted in versions
            if low <= token <= high
        ]
        newest = {key: row for row in sorted(rows, key=lambda row: row[2:]) for key in [row[1]]}
        expected = sorted(row[:4] for row in (rows if append_only else newest.values()))
        work = plan(flights(COLUMNS, append_only), list(contents), low, high)
        found = [row for batch in merged_rows(work, work.merges) for row in batch.to_pylist()]
        tokens = [row[TOKEN] for row in found]
        assert tokens == sorted(tokens), f"seed {seed}"
        assert sorted((row[TOKEN], row["id"], row[WRITTEN_AT], row[DELETED]) for row in found) == expected, (
            f"seed {seed}"
        )


def test_thousands_of_small_files_are_not_merged_token_by_token(
    replica: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [
        stored_versions(replica, [(token, token, at, False) for token in range(at, 1_000, 7)], group=1_000)
        for at in range(60)
    ]
    rounds = 0
    count = merging_here._counting

    def counted(*asked: Any) -> pa.Table:
        nonlocal rounds
        rounds += 1
        return count(*asked)

    monkeypatch.setattr(merging_here, "_counting", counted)
    work = plan(flights(COLUMNS), runs, 0, 999)
    found = pa.Table.from_batches(merged_rows(work, work.merges))
    assert found.column(TOKEN).to_pylist() == list(range(1_000))
    assert rounds < 5


def test_a_damaged_source_is_named(replica: ReplicaAddress) -> None:
    run = stored_versions(replica, [(token, token * token, 1, False) for token in range(2_000)], group=2_000)
    flip_in_a_page(Path(run.copy.uri.removeprefix("file://")))
    work = plan(flights(COLUMNS), [run], 0, 1_999)
    with pytest.raises(StorageUnavailable, match=run.name):
        list(merged_rows(work, work.merges))


def test_a_table_is_compacted_without_spark_and_shows_the_same(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(row_groups, "ROW_GROUP_ROWS", 7)
    chance = random.Random(seed)
    for number in range(9):
        keys = chance.sample(range(60), 25)
        if number % 4 == 3:
            cluster.cluster.delete(FLIGHTS, [{"id": key} for key in keys])
        else:
            cluster.cluster.write(FLIGHTS, [{"id": key, "note": f"{number}"} for key in keys])
    before = sorted(cluster.cluster.scan(FLIGHTS).read_all().to_pylist(), key=lambda row: row["id"])
    done = compact(cluster.cluster, FLIGHTS, policy=EVERYTHING, tombstone_grace_seconds=0.0)
    assert done.complete, done
    assert len(done.compacted) == 4
    for level in ("ONE", "ALL"):
        after = cluster.cluster.scan(FLIGHTS, consistency=level).read_all().to_pylist()
        assert sorted(after, key=lambda row: row["id"]) == before, f"seed {seed}"
    assert {one.files_after for one in done.compacted} == {1}
