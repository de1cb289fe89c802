"""Replacing files of a Delta table by files with the same rows, in a commit that nobody can make twice.

The one idea: delta-rs lets two OPTIMIZE commits that take out the same files both succeed, without retries too, and
every row is in the table twice afterwards (docs/decisions/016-compacting-the-log.md). So tables whose rows must be
there once are compacted by a commit of our own: against exactly the version that was looked at, else not at all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction


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


def replace_files(
    table: DeltaTable,
    removes: Sequence[OldFile],
    adds: Sequence[NewFile],
    partition: Mapping[str, str | None] | None = None,
) -> bool:
    """Take files out and put others in, all of one partition, against exactly the version of `table`.

    False: somebody has committed anything since, and nothing was changed. That the rows are the same is the caller's
    word: the commit says that no data changes, which append-only tables allow. Raises what delta-rs raises.
    """
    now, values = time.time_ns() // 1_000_000, dict(partition or {})
    actions: list[AddAction | RemoveAction] = [
        AddAction(
            path=file.path,
            size=file.size,
            partition_values=values,
            modification_time=now,
            data_change=False,
            stats=_statistics(file),
        )
        for file in adds
    ]
    actions += [
        RemoveAction(path=file.path, data_change=False, deletion_timestamp=now, size=file.size, partition_values=values)
        for file in removes
    ]
    try:
        table.create_write_transaction(
            actions,
            mode="append",
            schema=table.schema(),
            partition_by=list(values) or None,
            commit_properties=CommitProperties(max_commit_retries=0),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
        )
    except CommitFailedError:
        return False
    return True


def _statistics(file: NewFile) -> str:
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": dict(file.lowest),
            "maxValues": dict(file.highest),
            "nullCount": dict.fromkeys(file.lowest, 0),
        }
    )
