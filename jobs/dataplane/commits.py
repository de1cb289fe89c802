"""Committing staged files into a replica table, and taking tablets out of it, only where the fence allows it.

The one idea: open a snapshot, decide by what it says, commit against exactly that snapshot. When the commit fails, the
reason is not read from a message: the table is opened again, and the same decision is made on what is there now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import msgspec
from deltalake import CommitProperties, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from epochlake.jobs.dataplane.fences import raise_fence
from epochlake.jobs.dataplane.files import DataFile, to_add, to_remove
from epochlake.jobs.dataplane.outcomes import (
    Acknowledged,
    AlreadyApplied,
    CommitOutcome,
    FencedOff,
    SessionClosed,
    Unreachable,
)
from epochlake.jobs.dataplane.replica import (
    ATTEMPTS,
    LOG_RETENTION_SECONDS,
    STORAGE_ERRORS,
    ReplicaAddress,
    ReplicaSnapshot,
    attempts,
    open_snapshot,
)
from epochlake.jobs.dataplane.volumes import require_volume
from epochlake.metastore import storage
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.placement.tokens import TABLET


def commit_files(
    address: ReplicaAddress,
    adds: Sequence[DataFile],
    *,
    removes: Sequence[DataFile] = (),
    epoch: int,
    app_id: str,
    app_version: int,
    session: str | None = None,
) -> CommitOutcome:
    """Make staged files part of the replica (and take `removes` out of it) in one Delta commit.

    `epoch` is the one that the work was planned at: a fence above it refuses. With `session`, that session must be open
    at the replica. `(app_id, app_version)` makes it land at most once; versions under one id must grow in the order of
    the commits. A file that is live already is not added again, one that is gone is not removed again.
    """
    applied = _Applied(app_id, app_version)

    def decide(snapshot: ReplicaSnapshot) -> CommitOutcome | list[AddAction | RemoveAction]:
        live = {file_id for tablet in snapshot.files.values() for file_id in tablet}
        if applied.seen_in(snapshot):
            return AlreadyApplied(snapshot.version, frozenset(file.file_id for file in adds) - live)
        if snapshot.fence > epoch:
            return FencedOff(snapshot.fence)
        if session is not None and session not in snapshot.sessions:
            return SessionClosed(session)
        now = _now_ms()
        actions: list[AddAction | RemoveAction] = [to_add(file, now) for file in adds if file.file_id not in live]
        actions += [to_remove(file, now) for file in removes if file.file_id in live]
        return actions or AlreadyApplied(snapshot.version)

    return _transact(address, decide, applied)


def drop_tablets(address: ReplicaAddress, labels: Collection[str], epoch: int) -> CommitOutcome:
    """Take all files of the tablets out of the replica, after raising its fence to `epoch`; FencedOff when behind it.

    Logical: pipelines with an older snapshot still read them, `vacuum` deletes them later. Appends of other tablets may
    come in between. Safe to repeat; AlreadyApplied when there was nothing to drop.
    """
    fence = raise_fence(address, epoch)
    if isinstance(fence, Unreachable):
        return fence

    def decide(snapshot: ReplicaSnapshot) -> CommitOutcome | list[AddAction | RemoveAction]:
        if snapshot.fence > epoch:
            return FencedOff(snapshot.fence)
        now = _now_ms()
        actions: list[AddAction | RemoveAction] = [
            to_remove(file, now) for label in labels for file in snapshot.files.get(label, {}).values()
        ]
        return actions or AlreadyApplied(snapshot.version)

    return _transact(address, decide, None)


class _Applied(msgspec.Struct, frozen=True):
    """The mark that a commit leaves in the table, by which it is known again."""

    app_id: str
    version: int

    def seen_in(self, snapshot: ReplicaSnapshot) -> bool:
        newest = snapshot.applied(self.app_id)
        return newest is not None and newest >= self.version


Decision = Callable[[ReplicaSnapshot], CommitOutcome | list[AddAction | RemoveAction]]


def _transact(address: ReplicaAddress, decide: Decision, mark: _Applied | None) -> CommitOutcome:
    """Open, decide, commit against that snapshot; again when somebody else was faster."""
    for _ in attempts():
        started = time.time()
        try:
            snapshot = open_snapshot(address)
            decision = decide(snapshot)
        except (StorageUnavailable, WrongCluster) as error:
            return Unreachable(str(error))
        if not isinstance(decision, list):
            return decision
        try:
            version = _commit(snapshot, decision, mark)
            if time.time() - started < LOG_RETENTION_SECONDS / 2:
                require_volume(address.volume_uri, address.cluster_id, address.volume_id)
                return Acknowledged(version)
            doubt = StorageUnavailable("it took so long that the log may have been cleaned up meanwhile")
        except CommitFailedError:
            continue
        except (StorageUnavailable, WrongCluster) as error:
            return Unreachable(f"the commit to {address.uri} may be lost with its volume: {error}")
        except STORAGE_ERRORS as error:
            doubt = storage.unavailable("commit to the replica table", address.uri, error)
        return _read_back(address, mark, doubt)
    return Unreachable(f"{address.uri} was changed by others during each of {ATTEMPTS} tries to commit: retry")


def _commit(snapshot: ReplicaSnapshot, actions: list[AddAction | RemoveAction], mark: _Applied | None) -> int:
    table = snapshot.delta_table()
    table.create_write_transaction(
        actions,
        mode="append",
        schema=table.schema(),
        partition_by=[TABLET],
        commit_properties=CommitProperties(
            max_commit_retries=ATTEMPTS,
            app_transactions=[Transaction(mark.app_id, mark.version)] if mark else None,
        ),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
    )
    table.update_incremental()
    return table.version()


def _read_back(address: ReplicaAddress, mark: _Applied | None, doubt: StorageUnavailable) -> CommitOutcome:
    """After a failure that may have come before or after the commit point: what the table itself says."""
    if mark is not None:
        try:
            snapshot = open_snapshot(address)
            if mark.seen_in(snapshot):
                return Acknowledged(snapshot.version)
        except (StorageUnavailable, WrongCluster, *STORAGE_ERRORS) as error:
            return Unreachable(f"{doubt}; and it cannot be told whether it has landed: {error}")
    return Unreachable(str(doubt))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
