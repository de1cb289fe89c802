"""What the commits of a change stream's index say: writes that have landed, and where the stream begins."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from epochlake.jobs.replicas.files import DataFile
from epochlake.metastore.delta_commits import Action
from epochlake.metastore.errors import LogUnreadable, UnknownFormat
from epochlake.placement.decoding import decodable

FORMAT = 1
TAG = "epochlake.change"

BEGUN = "epochlake-begun"
"""The transaction by which the stream begins: its version is the newest time of writing of all rows from before."""

GENERATION = "epochlake-generation"
"""The transaction by which a generation of the streams begins: its version is the number of the generation."""

DATA = "data"


class Totals(msgspec.Struct, frozen=True):
    """How many `writes` of `rows` and `bytes` an index has up to an entry, its own included, dropped or not."""

    writes: int = 0
    rows: int = 0
    bytes: int = 0

    def with_write(self, files: Sequence[DataFile]) -> Totals:
        """With one more write, of these files."""
        rows, size = sum(file.rows for file in files), sum(file.size for file in files)
        return Totals(self.writes + 1, self.rows + rows, self.bytes + size)

    def since(self, before: Totals) -> Totals:
        """What came after another one."""
        return Totals(self.writes - before.writes, self.rows - before.rows, self.bytes - before.bytes)


class Said(msgspec.Struct, frozen=True):
    """What an entry says beside its files; stored with each of them.

    `write_id`: of the write, or of the batch. `epoch`: at which its landing was judged; `at`: when it was appended, or
    made ready for that a moment before, microseconds. `newest`: the newest time of writing up to this entry, its own
    included. `totals`: None in entries of earlier versions, and after them.
    """

    write_id: str
    epoch: int
    level: str
    by: str
    at: int
    newest: int
    file: DataFile
    totals: Totals | None = None
    format: int = FORMAT


class ChangeEntry(msgspec.Struct, frozen=True):
    """A write that has landed. `position`: in the stream; `files`: its files, each under its name in the index.

    `newest`: the newest time of writing of all entries up to this one; `totals`: what all of these have.
    """

    position: int
    write_id: str
    epoch: int
    level: str
    by: str
    at: int
    newest: int
    files: tuple[DataFile, ...]
    totals: Totals | None = None

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)

    @property
    def oldest(self) -> int:
        """The oldest time of writing of its rows, microseconds."""
        return min(file.min_written_at for file in self.files)


class Begun(msgspec.Struct, frozen=True):
    """Where a stream begins. What was written before it, until `newest`, is not in the stream but in the table."""

    position: int
    newest: int


def path_in(file: DataFile) -> str:
    """Where the index has a file, below it."""
    return f"{DATA}/{file.file_id}.parquet"


def added(said: Said) -> Action:
    """A file of an entry, as an action of the commit."""
    return {
        "add": {
            "path": path_in(said.file),
            "partitionValues": {},
            "size": said.file.size,
            "modificationTime": said.at // 1000,
            "dataChange": True,
            "stats": said.file.statistics,
            "tags": {TAG: msgspec.json.encode(said).decode()},
        }
    }


def entry_of(position: int, actions: Sequence[Action], uri: str) -> ChangeEntry | None:
    """The entry that a commit of the index at `uri` is; None where it is something else. Raises LogUnreadable,
    UnknownFormat.
    """
    tags = [add["tags"][TAG] for action in actions if (add := _mapping(action.get("add"))) and add.get("tags")]
    try:
        said = [msgspec.json.decode(tag, type=decodable(Said)) for tag in tags]
    except msgspec.MsgspecError as error:
        raise LogUnreadable(
            f"position {position} of the index of changes at {uri} cannot be read: {error}", hint="Restore the file"
        ) from error
    if not said:
        return None
    first = said[0]
    if first.format != FORMAT:
        raise UnknownFormat(
            f"position {position} of {uri} has format {first.format}, and this version knows {FORMAT}", hint="Upgrade"
        )
    return ChangeEntry(
        position,
        first.write_id,
        first.epoch,
        first.level,
        first.by,
        first.at,
        first.newest,
        tuple(one.file for one in said),
        first.totals,
    )


def mark_in(actions: Sequence[Action]) -> int | None:
    """The newest time before the stream, where these actions begin it."""
    marks = [txn["version"] for action in actions if (txn := _mapping(action.get("txn"))) and txn["appId"] == BEGUN]
    return int(marks[0]) if marks else None


def generation_in(actions: Sequence[Action]) -> int | None:
    """The number of the generation that these actions begin; None where they begin none."""
    marks = (
        txn["version"] for action in actions if (txn := _mapping(action.get("txn"))) and txn["appId"] == GENERATION
    )
    return next(map(int, marks), None)


def removed(file: DataFile) -> Action:
    """A file whose changes are not kept any more, as an action of the commit."""
    return {
        "remove": {
            "path": path_in(file),
            "dataChange": True,
            "deletionTimestamp": time.time_ns() // 1_000_000,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": file.size,
        }
    }


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
