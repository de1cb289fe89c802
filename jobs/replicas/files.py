"""Data files: one identity everywhere.

A file is written once, under a UUID, and stored under the same path on each of its replicas. So a
replica of a tablet is a set of file ids, and two replicas hold the same rows when these sets are equal.

Delta's statistics of a file hold only its row count and the system columns. That is what skips files by key (a key is
a token), keeps a replica's log small, and needs no care about truncated strings; Parquet's own statistics have the
rest of the columns.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
from deltalake.transaction import AddAction, RemoveAction
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.placement.decoding import decodable
from epochlake.placement.tokens import TABLET, TOKEN, range_label, tokens_of_label

STATISTICS_COLUMNS = (TOKEN, WRITTEN_AT, DELETED)

MERGED = "c-"
"""What the ids of files begin with that a compaction has made."""


class DataFile(msgspec.Struct, frozen=True):
    """A Parquet file of rows of one range. `path` is relative to the replica table and the same on every replica.

    `label` is its partition in the replica table, a hint for people and for Spark: what counts are tokens. `size` in
    bytes, `written_at` in microseconds; ranges are inclusive.

    A file is *every row of its `origin` with a token in its `window`*. The file that was staged has the window of the
    range that it was staged for, which is the directory in its path; one that was cut from it says so in its name.
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
    def origin(self) -> str:
        """The file id under which these rows were staged."""
        return self.file_id.partition(".")[0]

    @property
    def window(self) -> tuple[int, int]:
        """First and last token of which this file has every row of its origin."""
        return _window_in(self.path)

    @property
    def extent(self) -> tuple[int, int]:
        """Tokens between which its rows lie; with `first > last` when it has none."""
        return (self.min_token, self.max_token) if self.rows else (1, 0)

    @property
    def is_merged(self) -> bool:
        """Whether it, or the file that it was cut from, was made by a compaction, and so stands for others."""
        return self.file_id.startswith(MERGED)

    @property
    def statistics(self) -> str:
        """The Delta statistics, JSON."""
        low = {TOKEN: self.min_token, WRITTEN_AT: self.min_written_at, DELETED: False}
        high = {TOKEN: self.max_token, WRITTEN_AT: self.max_written_at, DELETED: self.has_tombstones}
        # A merged file may leave tokens out (derived_tokens.py); how many is nothing that anybody asks.
        nulls = {name: 0 for name in STATISTICS_COLUMNS if name != TOKEN or not self.is_merged}
        stats = {"numRecords": self.rows, "minValues": low, "maxValues": high, "nullCount": nulls}
        return msgspec.json.encode(stats).decode()


@lru_cache(maxsize=1 << 17)  # each snapshot of a replica asks all of its files, of which few are new
def _window_in(path: str) -> tuple[int, int]:
    directory, _, name = path.rpartition("/")
    cut = name.removesuffix(".parquet").partition(".")[2]
    return tokens_of_label(cut or directory.partition("=")[2])


def new_file_id() -> str:
    return str(uuid.uuid4())


def directory_of(label: str) -> str:
    """The directory below a replica table that new files of a tablet go to."""
    return f"{TABLET}={label}"


def path_of(label: str, file_id: str) -> str:
    """Where a new file of a tablet is stored, relative to the replica table."""
    return f"{directory_of(label)}/{file_id}.parquet"


def cut_id(origin: str, low: int, high: int) -> str:
    """The id of the file with all rows of `origin` from token `low` to `high`: the same whoever cuts it."""
    return f"{origin}.{range_label(low, high)}"


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


def add_line(file: DataFile, now_ms: int) -> dict[str, object]:
    """`to_add` as a line of Delta's log. Paths of data files need no escaping there."""
    return {
        "add": {
            "path": file.path,
            "partitionValues": {TABLET: file.label},
            "size": file.size,
            "modificationTime": now_ms,
            "dataChange": True,
            "stats": file.statistics,
        }
    }


def remove_line(file: DataFile, now_ms: int) -> dict[str, object]:
    """`to_remove` as a line of Delta's log."""
    return {
        "remove": {
            "path": file.path,
            "dataChange": True,
            "deletionTimestamp": now_ms,
            "extendedFileMetadata": True,
            "partitionValues": {TABLET: file.label},
            "size": file.size,
        }
    }


def from_add(add: Mapping[str, Any]) -> DataFile:
    """The file of an add action in Delta's log. Raises KeyError, TypeError or ValueError for one that is not ours."""
    if add.get("deletionVector") or "%" in add["path"]:
        raise ValueError(f"not a data file of Epochlake: {add['path']}")
    statistics = msgspec.json.decode(add["stats"])
    low, high = statistics["minValues"], statistics["maxValues"]
    file = {
        "file_id": id_in(add["path"]),
        "label": add["partitionValues"][TABLET],
        "path": add["path"],
        "size": add["size"],
        "rows": statistics["numRecords"],
        "min_token": low[TOKEN],
        "max_token": high[TOKEN],
        "min_written_at": low[WRITTEN_AT],
        "max_written_at": high[WRITTEN_AT],
        "has_tombstones": high[DELETED],
    }
    return msgspec.convert(file, decodable(DataFile))


def from_add_actions(actions: pa.Table) -> Iterator[DataFile]:
    """The live files of a snapshot, from delta-rs' flattened add actions."""
    if actions.num_rows == 0:
        return
    names = ["path", f"partition.{TABLET}", "size_bytes", "num_records"]
    names += [f"min.{TOKEN}", f"max.{TOKEN}", f"min.{WRITTEN_AT}", f"max.{WRITTEN_AT}", f"max.{DELETED}"]
    for path, label, *values in zip(*(actions[name].to_pylist() for name in names), strict=True):
        yield DataFile(id_in(path), label, path, *values)
