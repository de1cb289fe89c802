"""The row before a change: by the order of the stream, from what is kept of it or from the table as it was."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import deltalake
import msgspec
import pyarrow as pa
import pytest
from epochlake.jobs.administration import alter_table, rename_keyspace
from epochlake.jobs.administration.change_streams import keep_changes
from epochlake.jobs.datasource import change_reading
from epochlake.jobs.datasource.attaching import settings_of
from epochlake.jobs.datasource.source import EpochlakeDataSource
from epochlake.jobs.gate.change_before import RowsBefore
from epochlake.jobs.gate.errors import HistoryNotKept
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.upkeep.change_streams import drop_old
from epochlake.jobs.upkeep.compaction import compact
from epochlake.metastore.errors import Rejected
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code

from tests.support.changes import FLIGHTS, aged, alone, flights, index_of, rows, shown, staged_by
from tests.support.clusters import SmallCluster
from tests.support.slices import some


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    with flights(tmp_path, 2) as small:
        yield small


def with_before(small: SmallCluster, **asked: Any) -> list[tuple[str, int, str | None, str | None]]:
    """The changes as (kind, key, note, the note before); "-" where there was no row before."""
    found = []
    for batch in small.cluster.changes(FLIGHTS, before=True, **asked):
        for row in batch.to_pylist():
            before = row["_before"]
            assert before is None or before["id"] == row["id"]
            kind = row["_change"] + " late" * row["_late"]
            found.append((kind, row["id"], row["note"], "-" if before is None else before["note"]))
    return found


def test_a_change_has_the_row_that_was_there_before_it(cluster: SmallCluster) -> None:
    cluster.cluster.write(FLIGHTS, rows({1: "old", 2: "stays"}))
    keep_changes(cluster.cluster, FLIGHTS)
    cluster.cluster.write(FLIGHTS, rows({1: "a", 3: "b"}))
    cluster.cluster.write(FLIGHTS, rows({1: "c"}))
    cluster.cluster.delete(FLIGHTS, [{"id": 2}, {"id": 3}, {"id": 4}])
    cluster.cluster.write(FLIGHTS, rows({3: "again"}))
    found = with_before(cluster)
    assert sorted(found[:2]) == [("upsert", 1, "a", "old"), ("upsert", 3, "b", "-")]
    assert found[2] == ("upsert", 1, "c", "a")
    assert sorted(found[3:6]) == [("delete", 2, None, "stays"), ("delete", 3, None, "b"), ("delete", 4, None, "-")]
    assert found[6] == ("upsert", 3, "again", "-")
    assert with_before(cluster, after=index_of(cluster).tail().position - 1) == found[6:], "wherever it begins"


def test_a_late_change_has_no_row_before_and_is_none_of_another(cluster: SmallCluster) -> None:
    keep_changes(cluster.cluster, FLIGHTS)
    cluster.cluster.write(FLIGHTS, rows({1: "first"}))
    with Gate(cluster.cluster, "slow") as slow:
        staged = staged_by(slow, cluster, {1: "slow"})
        cluster.cluster.write(FLIGHTS, rows({1: "second"}))
        slow.writing.land(cluster.table, staged, ConsistencyLevel.QUORUM)
    cluster.cluster.write(FLIGHTS, rows({1: "third"}))
    assert with_before(cluster) == [
        ("upsert", 1, "first", "-"),
        ("upsert", 1, "second", "first"),
        ("upsert late", 1, "slow", "-"),
        ("upsert", 1, "third", "second"),
    ]
    assert with_before(cluster, late=False)[-1] == ("upsert", 1, "third", "second")


def test_columns_count_for_the_row_before_as_well(cluster: SmallCluster) -> None:
    keep_changes(cluster.cluster, FLIGHTS)
    cluster.cluster.write(FLIGHTS, rows({1: "a"}))
    cluster.cluster.write(FLIGHTS, rows({1: "b"}))
    changes = cluster.cluster.changes(FLIGHTS, columns=["note"], before=True)
    told = [row for batch in changes for row in batch.to_pylist()]
    assert [row["_before"] for row in told] == [None, {"note": "a"}]
    assert changes.schema.names[0] == "note"
    assert "id" not in changes.schema.names


def test_what_is_dropped_is_read_from_the_table_as_it_was(cluster: SmallCluster) -> None:
    keep_changes(cluster.cluster, FLIGHTS)
    cluster.cluster.write(FLIGHTS, rows({1: "a", 2: "b"}))
    drop_old(cluster.cluster, aged(cluster, 0.0, 0.0))
    aged(cluster, 600.0, 600.0)
    cluster.cluster.write(FLIGHTS, rows({1: "c", 3: "d"}))
    assert sorted(with_before(cluster)) == [("upsert", 1, "c", "a"), ("upsert", 3, "d", "-")]


def test_a_reader_whose_earlier_changes_are_dropped_while_it_reads_is_told_the_same(cluster: SmallCluster) -> None:
    keep_changes(cluster.cluster, FLIGHTS)
    for number in range(4):
        cluster.cluster.write(FLIGHTS, rows({1: f"{number}", 10 + number: "x"}))
    expected = with_before(cluster)
    changes = cluster.cluster.changes(FLIGHTS, before=True, reader="slow")
    found, batches = [], iter(changes)
    for step, batch in enumerate(batches):
        found += [(row["id"], row["_before"] and row["_before"]["note"]) for row in batch.to_pylist()]
        if step == 2:
            changes.commit()
            drop_old(cluster.cluster, aged(cluster, 0.0, 600.0))
    assert index_of(cluster).floor() > 0
    assert found == [(key, None if before == "-" else before) for _, key, _, before in expected]


def test_a_row_before_whose_history_is_gone_is_refused(cluster: SmallCluster) -> None:
    cluster.cluster.write(FLIGHTS, rows({1: "old"}))
    keep_changes(cluster.cluster, FLIGHTS)
    cluster.cluster.write(FLIGHTS, rows({1: "new"}))
    assert with_before(cluster) == [("upsert", 1, "new", "old")]
    for note in "abcdefgh":
        cluster.cluster.write(FLIGHTS, rows({1: note}))
    assert compact(cluster.cluster, FLIGHTS).compacted
    for path in cluster.directory.rglob("*.parquet"):
        if "changes" not in path.parts and not _is_live(cluster, path):
            path.unlink()
    with pytest.raises(HistoryNotKept):
        with_before(cluster)
    assert next(row["note"] for batch in cluster.cluster.changes(FLIGHTS) for row in batch.to_pylist()) == "new"


def _is_live(small: SmallCluster, path: Path) -> bool:
    replica = next(parent for parent in path.parents if (parent / "_delta_log").is_dir())
    return any(path.name in uri for uri in deltalake.DeltaTable(str(replica)).file_uris())


def test_the_row_before_has_the_columns_that_were_asked_for_whatever_they_are_called_by_now(
    cluster: SmallCluster,
) -> None:
    alter_table(cluster.cluster, FLIGHTS, add=["city string", "n int"])
    cluster.cluster.write(FLIGHTS, [{"id": 1, "note": "note", "city": "Rome", "n": 1}])
    keep_changes(cluster.cluster, FLIGHTS)
    cluster.cluster.write(FLIGHTS, [{"id": 1, "note": "later", "city": "Oslo", "n": 2}])
    before = {"id": 1, "note": "note", "city": "Rome", "n": 1}
    changes = cluster.cluster.changes(FLIGHTS, before=True)
    few = cluster.cluster.changes(FLIGHTS, before=True, columns=["id", "note"])
    source = EpochlakeDataSource(
        {"path": FLIGHTS, "settings": settings_of(cluster.cluster), "changes": "true", "before": "true"}
    )
    reader = source.reader(source.struct())
    tasks = reader.partitions()
    # Each name is now that of another column, and one of these is wider.
    alter_table(cluster.cluster, FLIGHTS, rename={"note": "city", "city": "note"}, widen={"n": "bigint"})
    told = [row for batch in changes for row in batch.to_pylist()]
    assert [(row["city"], row["_before"]) for row in told] == [("Oslo", before)]
    assert [row["_before"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist()] == [before]
    alter_table(cluster.cluster, FLIGHTS, drop=["n"])
    again = cluster.cluster.changes(FLIGHTS, before=True)
    assert [row["_before"] for batch in few for row in batch.to_pylist()] == [{"id": 1, "note": "note"}]
    rename_keyspace(cluster.cluster, "air", "sky")
    found = [row["_before"] for batch in again for row in batch.to_pylist()]
    assert found == [{"id": 1, "city": "note", "note": "Rome"}]


@pytest.mark.parametrize(
    ("altered", "said"),
    [
        ({"drop": ["n"]}, "n was dropped"),
        ({"drop": ["n"], "add": ["n int"]}, "n was dropped"),
        ({"add": ["pair.b int"]}, "pair has become another type"),
    ],
    ids=["dropped", "used again", "a field"],
)
def test_a_column_that_the_row_before_cannot_have_any_more_is_named(
    cluster: SmallCluster, altered: dict[str, Any], said: str
) -> None:
    alter_table(cluster.cluster, FLIGHTS, add=["n int", "pair struct<a:int>"])
    cluster.cluster.write(FLIGHTS, [{"id": 1, "note": "old", "n": 1, "pair": {"a": 1}}])
    keep_changes(cluster.cluster, FLIGHTS)
    cluster.cluster.write(FLIGHTS, [{"id": 1, "note": "new", "n": 2, "pair": {"a": 2}}])
    changes = cluster.cluster.changes(FLIGHTS, before=True)
    alter_table(cluster.cluster, FLIGHTS, **altered)
    with pytest.raises(Rejected, match=said) as refused:
        list(changes)
    assert (refused.value.code, "bookmark" in refused.value.hint) == (Code.SCHEMA_CHANGED, True)
    again = cluster.cluster.changes(FLIGHTS, after=changes.bookmark, before=True)
    assert [row["_before"]["note"] for batch in again for row in batch.to_pylist()] == ["old"]


def test_a_table_that_is_append_only_has_no_rows_before(tmp_path: Path) -> None:
    with flights(tmp_path, 1) as small:
        table = msgspec.structs.replace(small.table, append_only=True)
        with pytest.raises(InvalidRequest, match="append-only"):
            RowsBefore(small.cluster.storage, None, table, ["id"], lambda *_: rows({}))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(some(30, 2)))
def test_the_rows_before_are_those_that_somebody_has_who_applies_the_changes(cluster: SmallCluster, seed: int) -> None:
    """Random writes, deletes, late ones, compaction, and changes that are dropped. The seed is that of the test."""
    draw = random.Random(seed)
    cluster.cluster.write(FLIGHTS, rows({key: f"before {key}" for key in range(4)}))
    state: dict[int, str | None] = dict(shown(cluster))
    keep_changes(cluster.cluster, FLIGHTS, retention_seconds=600.0)
    position = cluster.cluster.changes_position(FLIGHTS)
    for step in range(some(25, 8)):
        keys = draw.sample(range(8), draw.randint(1, 4))
        match draw.choice(["write", "write", "delete", "late", "compact", "drop"]):
            case "write":
                cluster.cluster.write(FLIGHTS, rows({key: f"{step} {key}" for key in keys}))
            case "delete":
                cluster.cluster.delete(FLIGHTS, [{"id": key} for key in keys])
            case "late":
                with Gate(cluster.cluster, "slow") as slow:
                    staged = staged_by(slow, cluster, {key: f"slow {step} {key}" for key in keys})
                    cluster.cluster.write(FLIGHTS, rows({key: f"{step} {key}" for key in keys[:2]}))
                    slow.writing.land(cluster.table, staged, ConsistencyLevel.QUORUM)
            case "compact":
                compact(cluster.cluster, FLIGHTS)
            case _:
                # What is dropped has been read before.
                position = _applied(cluster, position, state)
                drop_old(cluster.cluster, aged(cluster, 0.0, 0.0))
                aged(cluster, 600.0, 600.0)
    _applied(cluster, position, state)
    assert state == shown(cluster)
    asked = {"path": FLIGHTS, "settings": settings_of(cluster.cluster), "changes": "true", "before": "true"}
    with patch.object(change_reading, "TASK_ROWS", 3):
        source = EpochlakeDataSource(asked)
        reader = source.reader(source.struct())
        tasks = reader.partitions()
    by_spark = [batch for task in tasks for batch in reader.read(task)]
    assert _told(by_spark) == _told(cluster.cluster.changes(FLIGHTS, before=True))
    index = index_of(cluster)
    kept = sum(entry.rows for entry in index.entries(index.floor(), index.tail().position))
    assert len(tasks) >= min(2, kept // 3)


def _told(batches: Iterable[pa.RecordBatch]) -> list[str]:
    """The changes of each key in their order, of all keys, as text."""
    changes = [row for batch in batches for row in batch.to_pylist()]
    return [str(row) for row in sorted(changes, key=lambda row: (row["id"], row["_position"]))]


def _applied(small: SmallCluster, position: int, state: dict[int, str | None]) -> int:
    changes = small.cluster.changes(FLIGHTS, after=position, before=True)
    for batch in changes:
        for row in batch.to_pylist():
            if row["_late"]:
                assert row["_before"] is None
                continue
            before = row["_before"]
            assert (None if before is None else before["note"]) == state.get(row["id"]), row
            if row["_change"] == "delete":
                state.pop(row["id"], None)
            else:
                state[row["id"]] = row["note"]
    return changes.position
