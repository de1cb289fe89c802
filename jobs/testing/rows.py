"""Rows of a world: written through the gate by what executors do, and read by the plan of the gate, without Spark.

Tables of a world have the columns `id` (bigint, the key) and `note` (string).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Iterable, Mapping
from functools import cache

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.gate.batches import Count
from epochlake.jobs.gate.row_digests import RowDigest
from epochlake.jobs.replicas.derived_tokens import key_noted, with_tokens
from epochlake.jobs.replicas.encoding import ROW_DIGEST
from epochlake.jobs.replicas.reading import ReadPlan, Scan
from epochlake.jobs.replicas.scanning import Asked
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.staging import Announce, StagedFile, stage_here, wrapped
from epochlake.jobs.replicas.staging_plan import StagingPlan
from epochlake.metastore.storage.storage import Storage
from epochlake.placement import hashing
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, TOKEN, Interval

KEYSPACE = "air"
TABLE = f"{KEYSPACE}.flights"
COLUMNS = [("id", "bigint", False), ("note", "string", True)]
MOMENT = "seen"
"""The column by which rows expire, of a table where some do."""

Row = Mapping[str, object]


SHARED_FILE_BYTES = 1 << 20


class RowsDamaged(Exception):
    """A data file cannot be read; its text names the file."""


@cache
def token_of(key: int) -> int:
    """Where a key is in the token space, as who writes it otherwise says as well."""
    return hashing.token_of([("bigint", str(key))])


WIDE_BYTES = 20_000
"""What a wide row has more than others."""


def padding(name: str) -> str:
    """What makes the row of an operation wide, however it is compressed."""
    return f" {hashlib.shake_256(name.encode()).hexdigest(WIDE_BYTES)}"


def shares_files(name: str) -> bool:
    """Whether ranges share the files of the write of that name, as of one without Spark: so it is with half of them."""
    return bool(zlib.crc32(name.encode()) % 2)


class WorldRows:
    """Rows by key; `None` as a note is a null. Keeps the contract of the gate's rows.

    `shares`: ranges share files, as few rows do; else each has its own. `times`: when the rows were written, as each
    staging of them says. `moment`: by which they expire, in microseconds since 1970; None: never.
    """

    def __init__(
        self,
        notes: Mapping[int, str | None],
        *,
        shares: bool = False,
        times: list[int] | None = None,
        moment: int | None = None,
    ) -> None:
        self._moment = moment
        self.times = [] if times is None else times
        self._notes = dict(notes)
        self._shares = shares

    def stage(
        self, plan: StagingPlan, *, digest: RowDigest | None = None, announce: Announce | None = None
    ) -> list[StagedFile]:
        self.times.append(plan.written_at)
        plan = msgspec.structs.replace(plan, shared_file_bytes=SHARED_FILE_BYTES if self._shares else 0)
        digested = digest is not None
        batch = self._batch(digested)
        for column in plan.table.columns:
            if column.name not in batch.schema.names:
                batch = batch.append_column(column.name, self._of(column.name, batch.num_rows))
        return stage_here(plan, [batch], digested=digested, announce=announce)

    def _of(self, column: str, rows: int) -> pa.Array:
        """A column besides."""
        if column == MOMENT:
            return pa.array([self._moment] * rows, pa.timestamp("us", "UTC"))
        return pa.nulls(rows, pa.string())

    def counted(self, digest: RowDigest) -> Count:
        return Count(len(self._notes), wrapped(sum(_digest(*row) for row in self._notes.items())))

    def within(self, windows: Collection[Interval]) -> WorldRows:
        inside = {
            key: note for key, note in self._notes.items() if any(low <= token_of(key) <= high for low, high in windows)
        }
        return WorldRows(inside, shares=self._shares, times=self.times, moment=self._moment)

    def _batch(self, digested: bool) -> pa.RecordBatch:
        rows = sorted((token_of(key), key, note) for key, note in self._notes.items())
        columns = {
            "id": pa.array([key for _, key, _ in rows], pa.int64()),
            "note": pa.array([note for _, _, note in rows], pa.string()),
            TOKEN: pa.array([token for token, _, _ in rows], pa.int64()),
        }
        if digested:
            columns[ROW_DIGEST] = pa.array([_digest(key, note) for _, key, note in rows], pa.int64())
        return pa.RecordBatch.from_pydict(columns)


def _digest(key: int, note: str | None) -> int:
    digest = hashlib.blake2b(repr((key, note)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def shown(storage: Storage, plan: ReadPlan) -> dict[int, list[str | None]]:
    """The notes that a read plan shows, by key: more than one where a row is shown twice."""
    live = list(_scanned(storage, plan.plain))
    live += [row for row in _scanned(storage, plan.filtered) if not row[DELETED]]
    live += [row for row in newest(_scanned(storage, plan.merged)) if not row[DELETED]]
    found: dict[int, list[str | None]] = {}
    for row in live:
        found.setdefault(row["id"], []).append(row["note"])  # type: ignore[arg-type]
    return found


def scanned(batches: Iterable[pa.RecordBatch]) -> dict[int, list[str | None]]:
    """The notes that batches have, by key, as `shown` gives them."""
    found: dict[int, list[str | None]] = {}
    for row in (row for batch in batches for row in batch.to_pylist()):
        found.setdefault(row["id"], []).append(row["note"])
    return found


ALL_OF_IT = Asked(pa.schema([("id", pa.int64()), ("note", pa.string())]), ("id",))


def paths_of(plan: ReadPlan) -> list[str]:
    """The files that a read plan reads."""
    return [path for scan in (*plan.plain, *plan.filtered, *plan.merged) for path in scan.paths]


def newest(rows: Iterable[Row]) -> list[Row]:
    """For each key the row that counts: the last write, then a tombstone, then the highest file id."""
    winners: dict[object, Row] = {}
    for row in rows:
        other = winners.get(row["id"])
        if other is None or _rank(other) < _rank(row):
            winners[row["id"]] = row
    return list(winners.values())


def _scanned(storage: Storage, scans: Iterable[Scan]) -> list[Row]:
    return [row for scan in scans for path in scan.paths for row in _rows(storage, path, scan.intervals)]


_COLUMNS = {"id", "note", TOKEN, WRITTEN_AT, DELETED}


def _rows(storage: Storage, uri: str, intervals: Collection[Interval]) -> list[Row]:
    """The rows of a data file, every page verified. Raises RowsDamaged, which names the file as Spark does."""
    data = storage.read_bytes(uri)
    try:
        source = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        rows = with_tokens(source.read(), key_noted(source.metadata.metadata)).to_pylist()
    except (OSError, pa.ArrowException, ValueError) as error:
        raise RowsDamaged(f"{uri}: {error}") from error
    if lacking := _COLUMNS - {*rows[0]} if rows else set():
        raise RowsDamaged(f"{uri}: it has no column {min(lacking)}")
    inside = intervals or [(MIN_TOKEN, MAX_TOKEN)]
    name = uri.rpartition("/")[2]
    return [row | {"_file": name} for row in rows if any(low <= row[TOKEN] <= high for low, high in inside)]


def _rank(row: Row) -> tuple[object, object, object]:
    return row[WRITTEN_AT], row[DELETED], row["_file"]
