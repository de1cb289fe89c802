"""Data files: one identity everywhere.

The one idea: a file is written once, under a UUID, and stored under the same path on each of its replicas. So a
replica of a tablet is a set of file ids, and two replicas hold the same rows when these sets are equal.

Delta's statistics of a file hold only its row count and the system columns. That is what skips files by key (a key is
a token), keeps a replica's log small, and needs no care about truncated strings; Parquet's own statistics have the
rest of the columns.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
from deltalake.transaction import AddAction, RemoveAction
from epochlake.jobs.dataplane.schema import DELETED, WRITTEN_AT
from epochlake.placement.tokens import TABLET, TOKEN

STATISTICS_COLUMNS = (TOKEN, WRITTEN_AT, DELETED)


class DataFile(msgspec.Struct, frozen=True):
    """A Parquet file of rows of one tablet. `path` is relative to the replica table and the same on every replica.

    `label` is the tablet that it belongs to now; after a split that is another one than the directory in its path
    says. `size` in bytes, `written_at` in microseconds; ranges are inclusive.
    """

    file_id: str
    label: str
    path: str
    size: int
    rows: int
    min_token: int
    max_token: int
    min_written_at: int
    max_written_at: int
    has_tombstones: bool

    @property
    def statistics(self) -> str:
        """The Delta statistics, JSON."""
        low = {TOKEN: self.min_token, WRITTEN_AT: self.min_written_at, DELETED: False}
        high = {TOKEN: self.max_token, WRITTEN_AT: self.max_written_at, DELETED: self.has_tombstones}
        nulls = dict.fromkeys(STATISTICS_COLUMNS, 0)
        stats = {"numRecords": self.rows, "minValues": low, "maxValues": high, "nullCount": nulls}
        return msgspec.json.encode(stats).decode()


def new_file_id() -> str:
    return str(uuid.uuid4())


def directory_of(label: str) -> str:
    """The directory below a replica table that new files of a tablet go to."""
    return f"{TABLET}={label}"


def path_of(label: str, file_id: str) -> str:
    """Where a new file of a tablet is stored, relative to the replica table."""
    return f"{directory_of(label)}/{file_id}.parquet"


def id_in(path: str) -> str:
    """The file id that a path ends with."""
    return path.rpartition("/")[2].removesuffix(".parquet")


def to_add(file: DataFile, now_ms: int) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={TABLET: file.label},
        modification_time=now_ms,
        data_change=True,
        stats=file.statistics,
    )


def to_remove(file: DataFile, now_ms: int) -> RemoveAction:
    return RemoveAction(
        path=file.path,
        data_change=True,
        deletion_timestamp=now_ms,
        size=file.size,
        partition_values={TABLET: file.label},
    )


def by_tablet(files: Iterable[DataFile]) -> dict[str, dict[str, DataFile]]:
    """Files as label -> file id -> file."""
    tablets: dict[str, dict[str, DataFile]] = {}
    for file in files:
        tablets.setdefault(file.label, {})[file.file_id] = file
    return tablets


def from_add_actions(actions: pa.Table) -> Iterator[DataFile]:
    """The live files of a snapshot, from delta-rs' flattened add actions."""
    if actions.num_rows == 0:
        return
    names = ["path", f"partition.{TABLET}", "size_bytes", "num_records"]
    names += [f"min.{TOKEN}", f"max.{TOKEN}", f"min.{WRITTEN_AT}", f"max.{WRITTEN_AT}", f"max.{DELETED}"]
    for path, label, *values in zip(*(actions[name].to_pylist() for name in names), strict=True):
        yield DataFile(id_in(path), label, path, *values)
