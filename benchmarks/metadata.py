"""Reading the past and applying the present: replay, snapshots of a large cluster, events on it (issue 3)."""

from __future__ import annotations

import hashlib
import statistics
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from deltalake import DeltaTable
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.following.history import diff, verify
from epochlake.metastore.following.snapshots import Snapshots
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import TakeSnapshot
from epochlake.metastore.metadata.model import TabletKey
from epochlake.metastore.tables import metadata as tables

from benchmarks.harness import STORAGE, Result, at_most, medians, seconds
from benchmarks.histories import Recorder, large_cluster, migration, record_small_events

SMALL_EVENTS = 100_000
ROUNDS = 3


def catching_up() -> list[Result]:
    """100,000 small events from the first on; the floor reads the same rows and hashes their payloads."""
    with tempfile.TemporaryDirectory() as directory:
        uri = f"{directory}/log"
        record_small_events(uri, SMALL_EVENTS).log.compact()
        files = DeltaTable(uri).file_uris()

        def floor() -> None:
            for file in files:
                for payload in pq.read_table(file)["payload"].to_pylist():
                    hashlib.sha256(payload.encode()).hexdigest()

        taken = medians(
            ROUNDS,
            {
                "replay": lambda: Follower(DeltaLog(STORAGE, uri)).catch_up(),
                "floor": floor,
            },
        )
        verified = seconds(lambda: verify(DeltaLog(STORAGE, uri)))
    return [
        Result(
            f"replay of {SMALL_EVENTS:,} small events",
            taken["replay"],
            "s",
            taken["floor"],
            "reading the rows and hashing their payloads",
            at_most(5.0),
        ),
        Result(f"verifying {SMALL_EVENTS:,} small events, each checked", verified, "s"),
    ]


def large_metadata() -> list[Result]:
    """1,000 nodes and 1,048,576 tablets at RF 3: catching up from a snapshot, events on ten tablets, tables, a diff."""
    with tempfile.TemporaryDirectory() as directory:
        uri = f"{directory}/log"
        snapshots = Snapshots(STORAGE, f"{directory}/snapshots")
        recorder = Recorder(uri)
        for event in large_cluster():
            recorder.record(event)
        recorder.record(TakeSnapshot().completed(recorder.metadata))
        recorder.flush()
        recorder.log.compact()
        snapshots.write(recorder.metadata, recorder.position)
        path = Path(snapshots.path(recorder.metadata.epoch))

        taken = medians(
            ROUNDS,
            {
                "catch up": lambda: Follower(DeltaLog(STORAGE, uri), snapshots).catch_up(),
                "floor": lambda: hashlib.sha256(path.read_bytes()).digest(),
            },
        )
        size = path.stat().st_size / 2**20
    metadata = recorder.metadata
    return [
        Result(
            "catching up from a snapshot of 1,048,576 tablets",
            taken["catch up"],
            "s",
            taken["floor"],
            "reading and hashing the file",
            at_most(2.0),
        ),
        Result("size of that snapshot", size, "MiB"),
        *_events_on_ten_tablets(metadata),
        *_tables(metadata),
    ]


def _events_on_ten_tablets(metadata: ClusterMetadata) -> list[Result]:
    """The slowest kind of event of a migration, applied and checked; the floor copies as many chunks."""
    random = np.random.default_rng(2)
    checked: dict[str, list[float]] = {}
    applied: dict[str, list[float]] = {}
    copied: list[float] = []
    differed: list[float] = []
    for _ in range(20):
        tablets: list[TabletKey] = [
            (f"table-{table}", int(tablet))
            for table, tablet in zip(random.choice(16, 10, replace=False), random.integers(2**16, size=10), strict=True)
        ]
        chunks = [metadata.tablets.maps[table_id].chunks[tablet // 4096] for table_id, tablet in tablets]
        copied.append(seconds(partial(_copied, chunks)))
        before = metadata
        for event in migration(metadata, tablets):
            checked.setdefault(event.kind(), []).append(seconds(partial(metadata.check, event)))
            applied.setdefault(event.kind(), []).append(seconds(partial(metadata.apply, event, "")))
            metadata = metadata.apply(event, "")
        differed.append(seconds(partial(diff, before, metadata)))
    slowest = max(applied, key=lambda kind: statistics.median(applied[kind]))
    return [
        Result(
            f"applying an event to ten tablets of 1,048,576 ({slowest}, the slowest kind)",
            statistics.median(applied[slowest]) * 1e3,
            "ms",
            statistics.median(copied) * 1e3,
            "copying ten chunks",
            at_most(2.0),
        ),
        Result(
            "checking such an event, slowest kind",
            max(statistics.median(times) for times in checked.values()) * 1e3,
            "ms",
        ),
        Result("difference of the metadata before and after", statistics.median(differed) * 1e3, "ms"),
    ]


def _copied(chunks: list[np.ndarray]) -> list[np.ndarray]:
    return [chunk.copy() for chunk in chunks]


def _tables(metadata: ClusterMetadata) -> list[Result]:
    taken = medians(
        ROUNDS,
        {
            "tablets": lambda: tables.tablets(metadata),
            "write placements": lambda: tables.write_placements(metadata),
        },
    )
    return [Result(f"Arrow table of 1,048,576 tablets: {part}", value, "s") for part, value in taken.items()]


BENCHMARKS = {"catching_up": catching_up, "large_metadata": large_metadata}
