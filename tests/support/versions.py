"""Rows with versions and deletes, written and read through the gate as pipelines do it, without Spark; and compaction
by a merger in this process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.replicas.files import DataFile, new_file_id, path_of
from epochlake.jobs.replicas.merging import MergedFile, MergePlan, RangeMerge, encode
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.reading import ReadPlan, Scan
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.sealing import sealed_writer
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.testing.rows import newest, token_of
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import CompactionReport, compact
from epochlake.metastore.metadata.placements import index_of
from epochlake.metastore.storage import places
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, TOKEN, Interval

from tests.support.clusters import SmallTable
from tests.support.files import stored_rows
from tests.support.storages import STORAGE

Row = Mapping[str, object]


def stage_versions(
    table: SmallTable, pipeline: Pipeline, notes: Mapping[int, str | None], at: int | None = None, skip: str = ""
) -> list[StagedFile]:
    """Stage rows (id -> note, None: deleted) at a time, as a pipeline plans now; not on nodes in `skip`."""
    metadata = pipeline.gate.planning.metadata
    placements = metadata.placements(table.table.table_id)
    when = pipeline.gate.clock.next([]) if at is None else at
    rows = sorted((token_of(row), row, note) for row, note in notes.items())
    ranges = index_of(placements.lows, np.array([token for token, _, _ in rows], dtype=np.int64)).tolist()
    staged = []
    for index in sorted(set(ranges)):
        mine = [row for row, where in zip(rows, ranges, strict=True) if where == index]
        addresses = [
            address_of(STORAGE, metadata, table.table, volume) for volume in placements.placement(index).writes
        ]
        usable = [
            address
            for address in addresses
            if metadata.directory.node_of_volume[address.volume_id].name not in skip
            and Path(address.volume_uri, "epochlake-volume.json").exists()
            and Path(address.uri).exists()
        ]
        file = _store(placements.label(index), mine, when, [Path(address.uri) for address in usable])
        staged.append(StagedFile(file, frozenset(address.volume_id for address in usable), {}))
    return staged


def write_versions(
    table: SmallTable,
    notes: Mapping[int, str | None],
    *,
    at: int | None = None,
    level: str = "QUORUM",
    skip: str = "",
) -> list[DataFile]:
    """Write rows (id -> note, None: deleted). Raises ConsistencyNotReached."""
    pipeline = table.pipeline("writer")
    staged = stage_versions(table, pipeline, notes, at, skip)
    table.land(pipeline, staged, level)
    return [one.file for one in staged]


def read_versions(table: SmallTable, level: str = "QUORUM") -> list[tuple[int, str]]:
    """What `Pipeline.read` shows, (id, note) ascending; a row twice that it shows twice."""
    pipeline = table.pipeline("reader")
    return shown(pipeline.gate.planned_read(table.table, ConsistencyLevel.parse(level)))


def shown(plan: ReadPlan) -> list[tuple[int, str]]:
    """The rows that a read plan gives."""
    live = list(_scanned(plan.plain))
    live += [row for row in _scanned(plan.filtered) if not row[DELETED]]
    live += [row for row in newest(_scanned(plan.merged)) if not row[DELETED]]
    return sorted((row["id"], row["note"]) for row in live)  # type: ignore[misc]


def merge_here(plan: MergePlan) -> list[MergedFile]:
    """A merger without Spark."""
    return list(encode(plan, _batches(plan)))


def compact_here(table: SmallTable, **options: object) -> CompactionReport:
    """Compact all that can be, in this process, with small files and no grace unless asked otherwise."""
    asked = {"policy": EVERYTHING, "merger": merge_here, "tombstone_grace_seconds": 0.0, **options}
    return compact(table.cluster, table.table.full_name, None, **asked)  # type: ignore[arg-type]


def _batches(plan: MergePlan) -> Iterator[pa.RecordBatch]:
    names = [*(column.name for column in plan.table.columns), TOKEN, WRITTEN_AT, DELETED]
    for merge in plan.merges:
        rows = _sources(merge)
        kept = rows if plan.table.append_only else newest(rows)
        ordered = sorted(kept, key=lambda row: row[TOKEN])  # type: ignore[arg-type, return-value]
        if ordered:
            table = pa.Table.from_pylist([{name: row[name] for name in names} for row in ordered], _SCHEMA)
            yield from table.to_batches(max_chunksize=1)


_SCHEMA = pa.schema(
    [("id", pa.int64()), ("note", pa.string()), (TOKEN, pa.int64()), (WRITTEN_AT, pa.int64()), (DELETED, pa.bool_())]
)


def _sources(merge: RangeMerge) -> list[Row]:
    return [
        row
        for source in merge.sources
        for row in _rows(Path(places.local_path(source.uri) or source.uri), [(source.low, source.high)])
    ]


def _scanned(scans: Iterable[Scan]) -> list[Row]:
    return [
        row
        for scan in scans
        for path in scan.paths
        for row in _rows(Path(path.removeprefix("file://")), scan.intervals)
    ]


def _rows(path: Path, intervals: Sequence[Interval]) -> list[Row]:
    rows = stored_rows(path).to_pylist()
    inside = intervals or [(MIN_TOKEN, MAX_TOKEN)]
    return [row | {"_file": path.name} for row in rows if any(low <= row[TOKEN] <= high for low, high in inside)]


def _store(label: str, rows: Sequence[tuple[int, int, str | None]], at: int, places: Sequence[Path]) -> DataFile:
    file_id = new_file_id()
    columns = {
        "id": [row for _, row, _ in rows],
        "note": [note for _, _, note in rows],
        TOKEN: [token for token, _, _ in rows],
        WRITTEN_AT: [at] * len(rows),
        DELETED: [note is None for _, _, note in rows],
    }
    sink = pa.BufferOutputStream()
    with sealed_writer(sink, _SCHEMA, file_id) as writer:
        writer.write(pa.table(columns, schema=_SCHEMA))
    data = sink.getvalue().to_pybytes()
    for place in places:
        path = place / path_of(label, file_id)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return DataFile(
        file_id=file_id,
        label=label,
        path=path_of(label, file_id),
        size=len(data),
        rows=len(rows),
        min_token=rows[0][0],
        max_token=rows[-1][0],
        min_written_at=at,
        max_written_at=at,
        has_tombstones=any(note is None for _, _, note in rows),
    )
