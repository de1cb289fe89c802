"""Adding files to a Delta table, or replacing them by files with the same rows, in a commit that nobody makes twice.

Delta-rs lets two OPTIMIZE commits that take out the same files both succeed, without retries too, and
every row is in the table twice afterwards (docs/decisions/016-own-compaction.md). So tables whose rows must be
there once are compacted by a commit of our own: against exactly the version that was looked at, else not at all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from epochlake.metastore.delta_checkpoints import checkpoint_if_due
from epochlake.metastore.delta_commits import Action, CommitName, prepare_commit, put_commit, put_prepared
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage


class OldFile(NamedTuple):
    """A file to be taken out: its path as the table has it, and bytes."""

    path: str
    size: int


class NewFile(NamedTuple):
    """A file to be put in, stored already. `lowest` and `highest` are statistics of columns without nulls."""

    path: str
    size: int
    rows: int
    lowest: Mapping[str, int]
    highest: Mapping[str, int]


class Mark(NamedTuple):
    """The transaction that a commit is known by."""

    app_id: str
    version: int


def append_files(
    storage: Storage,
    table: DeltaTable,
    version: int,
    adds: Sequence[NewFile],
    mark: Mark,
    partition: Mapping[str, str | None] | None = None,
) -> bool:
    """Add files, all of one partition, as exactly `version` of the table. False: there is that one already, and nothing
    was changed. `version` comes after the handle's, or after a later one that the caller knows of.

    The files and the commit are on the disk when this returns. Raises StorageUnavailable, and what
    delta-rs raises.
    """
    return _commit(storage, table, version, _adds(adds, partition or {}, data_change=True), [], mark, partition or {})


def prepare_append(storage: Storage, commit: CommitName, adds: Sequence[NewFile], mark: Mark) -> str:
    """Have the disk have what `append_prepared` needs to add these files to a table at a local URI without partitions,
    most likely as this commit; what `forget_prepared` of delta_commits.py takes as well. Raises StorageUnavailable.
    """
    files = [places.join(commit.table, file.path) for file in adds]
    return prepare_commit(storage, commit, "WRITE", add_lines(adds, mark), files)


def append_prepared(storage: Storage, table: DeltaTable, version: int, prepared: str) -> bool:
    """`append_files` of what was prepared, which is used up by it, whatever comes of it."""
    if not put_prepared(storage, _commit_of(table, version), prepared):
        return False
    _checkpoint_if_due(storage, table, version)
    return True


def replace_files(
    storage: Storage,
    table: DeltaTable,
    removes: Sequence[OldFile],
    adds: Sequence[NewFile],
    partition: Mapping[str, str | None] | None = None,
    mark: Mark | None = None,
) -> bool:
    """Take files out and put others in, all of one partition, against exactly the version of `table`.

    False: somebody has committed anything since, and nothing was changed. That the rows are the same is the caller's
    word: the commit says that no data changes, which append-only tables allow. Raises StorageUnavailable, and what
    delta-rs raises.
    """
    now, values = time.time_ns() // 1_000_000, dict(partition or {})
    actions = [
        RemoveAction(path=file.path, data_change=False, deletion_timestamp=now, size=file.size, partition_values=values)
        for file in removes
    ]
    return _commit(storage, table, table.version() + 1, _adds(adds, values, data_change=False), actions, mark, values)


def _commit(
    storage: Storage,
    table: DeltaTable,
    version: int,
    adds: Sequence[AddAction],
    removes: Sequence[RemoveAction],
    mark: Mark | None,
    partition: Mapping[str, str | None],
) -> bool:
    uri = table.table_uri
    if places.local_path(uri) is not None:
        lines = [*map(_add_line, adds), *map(_remove_line, removes)]
        lines += [{"txn": {"appId": mark.app_id, "version": mark.version}}] if mark else []
        files = [places.join(uri, action.path) for action in adds]
        operation = "OPTIMIZE" if removes else "WRITE"
        if not put_commit(storage, _commit_of(table, version), operation, lines, files):
            return False
        _checkpoint_if_due(storage, table, version)
        return True
    if version != table.version() + 1:
        table.update_incremental()
        if version != table.version() + 1:
            return False
    try:
        table.create_write_transaction(
            [*adds, *removes],
            mode="append",
            schema=table.schema(),
            partition_by=list(partition) or None,
            commit_properties=CommitProperties(
                max_commit_retries=0, app_transactions=[Transaction(*mark)] if mark else None
            ),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
        )
    except CommitFailedError:
        return False
    return True


def _commit_of(table: DeltaTable, version: int) -> CommitName:
    return CommitName(table.table_uri, version, str(table.metadata().id))


def _checkpoint_if_due(storage: Storage, table: DeltaTable, version: int) -> None:
    interval = int(table.metadata().configuration.get("delta.checkpointInterval", "10"))
    checkpoint_if_due(storage, lambda: table, table.table_uri, version, interval)


def _adds(files: Sequence[NewFile], partition: Mapping[str, str | None], *, data_change: bool) -> list[AddAction]:
    now = time.time_ns() // 1_000_000
    return [
        AddAction(
            path=file.path,
            size=file.size,
            partition_values=dict(partition),
            modification_time=now,
            data_change=data_change,
            stats=_statistics(file),
        )
        for file in files
    ]


def add_lines(adds: Sequence[NewFile], mark: Mark) -> list[Action]:
    """What `append_files` puts into the log of a table without partitions."""
    lines: list[Action] = [_add_line(action) for action in _adds(adds, {}, data_change=True)]
    return [*lines, {"txn": {"appId": mark.app_id, "version": mark.version}}]


def _add_line(action: AddAction) -> Action:
    return {
        "add": {
            "path": quote(action.path, safe="/=-_.~"),
            "partitionValues": action.partition_values,
            "size": action.size,
            "modificationTime": action.modification_time,
            "dataChange": action.data_change,
            "stats": action.stats,
        }
    }


def _remove_line(action: RemoveAction) -> Action:
    return {
        "remove": {
            "path": quote(action.path, safe="/=-_.~"),
            "dataChange": action.data_change,
            "deletionTimestamp": action.deletion_timestamp,
            "extendedFileMetadata": True,
            "partitionValues": action.partition_values,
            "size": action.size,
        }
    }


def _statistics(file: NewFile) -> str:
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": dict(file.lowest),
            "maxValues": dict(file.highest),
            "nullCount": dict.fromkeys(file.lowest, 0),
        }
    )
