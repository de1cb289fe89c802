"""Small clusters whose table keeps its changes, and what is told of them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import unused_files
from epochlake.jobs.administration.change_streams import keep_changes
from epochlake.jobs.gate import change_recording, commit_phase
from epochlake.jobs.gate.arrow_rows import rows_to_write
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.replicas.change_index import ChangeIndex
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.upkeep import change_settling
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.metastore.metadata.components.change_streams import ChangeStream
from epochlake.placement.consistency import ConsistencyLevel

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.killed_access import Killed

ONE_TRY = Configuration(
    pipeline=PipelineSettings(attempts=1), coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4)
)
FLIGHTS = "air.flights"


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on there is no ZooKeeper, nothing is waited for, and nobody lives but who says so."""
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(change_recording, "in_background", lambda task: task())
    # Without ZooKeeper nobody can be asked who lives.
    for asks in (change_settling, unused_files):
        monkeypatch.setattr(asks, "live_leases", lambda cluster: [])


@contextmanager
def flights(root: Path, tablets: int) -> Iterator[SmallCluster]:
    """A table on three of four nodes, with so many tablets; open until the end of the block."""
    small = placed(root, FOUR, dict.fromkeys(range(tablets), "ABC"), configuration=ONE_TRY)
    with small.cluster:
        yield small


def rows(notes: dict[int, str]) -> pa.Table:
    return pa.table({"id": list(notes), "note": list(notes.values())}, pa.schema([("id", "int64"), ("note", "string")]))


def stream_of(small: SmallCluster) -> ChangeStream:
    return small.cluster.catch_up().change_streams.by_table[small.table.table_id]


def index_of(small: SmallCluster) -> ChangeIndex:
    return small.cluster.change_indexes.of(stream_of(small))


def staged_by(gate: Gate, small: SmallCluster, notes: dict[int, str]) -> list[StagedFile]:
    """Rows that a write has staged, and not landed yet."""
    opened, _ = gate.planning.open_for_write(small.table)
    given = rows_to_write(rows(notes), small.table)
    return gate.writing._stage(given, small.table, ConsistencyLevel.QUORUM, opened, False)


def told(small: SmallCluster, **asked: object) -> list[tuple[str, int, str | None]]:
    """The changes as (kind, key, note), `late` behind a kind that is."""
    found = []
    for batch in small.cluster.changes(FLIGHTS, **asked):  # type: ignore[arg-type]
        for row in batch.to_pylist():
            found.append((row["_change"] + " late" * row["_late"], row["id"], row["note"]))
    return found


def applied(changes: list[tuple[str, int, str | None]]) -> dict[int, str | None]:
    """What somebody has who applies the changes that are not late."""
    state: dict[int, str | None] = {}
    for kind, key, note in changes:
        if kind == "delete":
            state.pop(key, None)
        elif kind == "upsert":
            state[key] = note
    return state


def shown(small: SmallCluster) -> dict[int, str | None]:
    return {row["id"]: row["note"] for row in small.cluster.scan(FLIGHTS).read_all().to_pylist()}


def aged(small: SmallCluster, retention: float, limit: float) -> ChangeStream:
    keep_changes(small.cluster, FLIGHTS, retention_seconds=retention, limit_seconds=limit)
    return stream_of(small)


def data_files(small: SmallCluster) -> list[Path]:
    """The copies that the index has."""
    return sorted((Path(index_of(small).uri) / "data").glob("*.parquet"))


def replica_files(small: SmallCluster) -> list[Path]:
    return [
        path for path in small.directory.rglob("*.parquet") if not {"changes", "merges", "_delta_log"} & {*path.parts}
    ]


def killed_before_it_is_in_the_index(small: SmallCluster, notes: dict[int, str]) -> None:
    with patch.object(change_recording.ChangeIndex, "append", side_effect=Killed), pytest.raises(Killed):
        small.cluster.write(FLIGHTS, rows(notes))


def gone_back(small: SmallCluster, act: Callable[[], object]) -> None:
    """The index goes back to what it is now after `act`, as one that is restored from a backup."""
    place = Path(index_of(small).uri)
    shutil.copytree(place, place.with_name("backup"))
    act()
    shutil.rmtree(place)
    os.rename(place.with_name("backup"), place)


def swept(small: SmallCluster) -> int:
    """How many files at the root vacuum has deleted, to which all of them are old."""
    old = time.time() - 7200
    for path in Path(small.cluster.root.uri).rglob("*"):
        os.utime(path, (old, old))
    return administration.sweep(small.cluster, older_than_seconds=60).root_files
