"""Fences and sessions of a replica table: raised, opened and closed in one Delta metadata commit.

A change of the table's properties conflicts with every commit that looked at the table before it. So once
`raise_fence(address, e)` has returned, nothing that was planned below e can land there, and the replica has
acknowledged epoch e without any process being alive for it (design, section 9).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError
from epochlake.jobs.replicas.outcomes import FencedOff, Unreachable
from epochlake.jobs.replicas.replica import (
    ATTEMPTS,
    CHECKPOINT_INTERVAL,
    COLUMNS,
    FENCE,
    SESSIONS,
    UNFILLED,
    DeclaredColumns,
    ReplicaAddress,
    ReplicaSnapshot,
    encode_sessions,
    open_snapshot,
    pause,
)
from epochlake.metastore import delta_checkpoints, delta_commits
from epochlake.metastore.delta_commits import Action, CommitName
from epochlake.metastore.delta_tables import needs_feature, protocol_of
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.fence import Fence
from epochlake.metastore.storage import failures, places

_Any = TypeVar("_Any")


def raise_fence(
    address: ReplicaAddress, epoch: int, *, open_sessions: Collection[str] | None = None
) -> int | Unreachable:
    """Raise the fence to `epoch` and return where it stands now: at `epoch`, or above when somebody was further.

    With `open_sessions`, the replica's sessions become exactly these in the same commit: the sessions that the cluster
    metadata has open at `epoch`. A caller behind the fence changes nothing, so a stale coordinator neither opens nor
    closes anything. Safe to repeat.
    """
    sessions = None if open_sessions is None else frozenset(open_sessions)
    outcome = _change(address, epoch, lambda current: current if sessions is None else sessions)
    return outcome.fence if isinstance(outcome, FencedOff) else outcome


def open_session(address: ReplicaAddress, epoch: int, session: str) -> int | FencedOff | Unreachable:
    """Open a session at the replica and raise its fence to `epoch`. FencedOff when the replica is ahead of `epoch`."""
    return _change(address, epoch, lambda current: current | {session})


def close_sessions(address: ReplicaAddress, epoch: int, sessions: Collection[str]) -> int | FencedOff | Unreachable:
    """Close sessions at the replica and raise its fence to `epoch`: work under them is refused from then on."""
    return _change(address, epoch, lambda current: current - frozenset(sessions))


def mark_filled(address: ReplicaAddress, epoch: int, rebuild: str) -> int | FencedOff | Unreachable:
    """Let a replica be read that `rebuild` has made in the place of a lost one, and raise its fence to `epoch`.

    Does nothing to a table that another rebuild has made since, or that was there all the time.
    """
    return _change(address, epoch, _as_they_are, lambda by: "" if by == rebuild else by)


def mark_unfilled(address: ReplicaAddress, epoch: int, rebuild: str) -> int | FencedOff | Unreachable:
    """Take a replica over that an earlier rebuild has made and not filled, and raise its fence to `epoch`.

    From here on only `rebuild` lets it be read. Does nothing to a table that is read.
    """
    return _change(address, epoch, _as_they_are, lambda by: rebuild if by else "")


def declare_columns(snapshot: ReplicaSnapshot) -> bool:
    """Have the replica table declare the columns that its address knows, and its fence at the epoch of that change.

    False when others have committed anything since the snapshot. In one commit with the fence: whoever knows the
    columns of before is refused from then on. Raises StorageUnavailable, and what delta-rs raises.
    """
    columns = snapshot.address.columns
    assert columns is not None
    fence = max(snapshot.fence, Fence.of(columns.fence))
    return change_properties(snapshot, {FENCE: str(fence), COLUMNS: columns.version}, columns)


def _as_they_are(current: _Any) -> _Any:
    return current


def _change(
    address: ReplicaAddress,
    epoch: int,
    sessions_after: Callable[[frozenset[str]], frozenset[str]],
    unfilled_after: Callable[[str], str] = _as_they_are,
) -> int | FencedOff | Unreachable:
    failure, overtaken = "", False
    for _ in range(ATTEMPTS):
        if overtaken:
            pause()
        try:
            snapshot = open_snapshot(address)
        except (StorageUnavailable, WrongCluster) as error:
            return Unreachable(str(error))
        if snapshot.fence > epoch:
            return FencedOff(snapshot.fence)
        sessions = sessions_after(snapshot.sessions)
        unfilled = unfilled_after(snapshot.unfilled)
        # Who raises the fence over a change of columns declares them in the same commit.
        columns = address.columns if snapshot.lacks_columns else None
        if columns is None and (snapshot.fence, snapshot.sessions, snapshot.unfilled) == (epoch, sessions, unfilled):
            try:
                # Also where rows rely on the replicas: that this one refuses is a promise of this one alone.
                delta_commits.sync_commits(address.storage, CommitName(address.uri, snapshot.version))
            except StorageUnavailable as error:
                return Unreachable(str(error))
            return epoch
        if failure:
            return Unreachable(failure)
        # Whatever becomes of it, only the next snapshot tells: it shows the change, a newer one, or neither.
        properties = {FENCE: str(Fence.of(epoch)), SESSIONS: encode_sessions(sessions)}
        if unfilled != snapshot.unfilled:
            properties[UNFILLED] = unfilled
        if columns is not None:
            properties[COLUMNS] = columns.version
        try:
            overtaken = not change_properties(snapshot, properties, columns)
        except StorageUnavailable as error:
            failure = str(error)
        except failures.STORAGE_ERRORS as error:
            failure = str(failures.unavailable(f"raise the fence to {Fence.of(epoch)} of", address.uri, error))
    return Unreachable(f"the fence of {address.uri} was changed by others during each of our tries to raise it: retry")


def change_properties(
    snapshot: ReplicaSnapshot, properties: Mapping[str, str], columns: DeclaredColumns | None = None
) -> bool:
    """Set properties of the table against exactly this snapshot; False when others have committed anything since.

    With `columns` the table declares these in the same commit.

    Such a change fails every commit that has looked at the table before it. Raises StorageUnavailable, and what
    delta-rs raises.
    """
    storage, uri = snapshot.address.storage, snapshot.address.uri
    # delta-rs holds Python's global lock meanwhile, so a file system that hangs would stop every thread of the process
    # (docs/decisions/024-deadlines.md). Object stores answer or fail: it gives each of its requests a time.
    if places.local_path(uri) is None:
        try:
            change = partial(_change_by_delta_rs, snapshot.delta_table(), properties, columns)
            storage.deadlines.within(uri, f"change the properties of {uri}", change)
        except CommitFailedError:
            return False
        return True
    configuration = {**snapshot.metadata["configuration"], **properties}
    declared = {} if columns is None else {"schemaString": columns.schema}
    lines: list[Action] = [{"metaData": {**snapshot.metadata, **declared, "configuration": configuration}}]
    if columns is not None and needs_feature(columns.schema) and not needs_feature(snapshot.metadata["schemaString"]):
        lines.insert(0, protocol_of(columns.schema))
    version = snapshot.version + 1
    if not delta_commits.put_commit(storage, CommitName(uri, version), "SET TBLPROPERTIES", lines):
        return False
    if not snapshot.is_still_there():
        # Another copy lies there now: what it has become is to be looked at.
        delta_commits.take_back(storage, uri, version)
        return False
    delta_checkpoints.checkpoint_if_due(storage, snapshot.delta_table, uri, version, CHECKPOINT_INTERVAL)
    return True


def _change_by_delta_rs(table: DeltaTable, properties: Mapping[str, str], columns: DeclaredColumns | None) -> None:
    if columns is not None:
        # It adds columns, and changes no type: those that were widened are declared as they were, which readers of
        # Epochlake do not look at. In a commit before the properties, which may be made again.
        there = {field.name for field in table.schema().fields}
        missing = [field for field in Schema.from_json(columns.schema).fields if field.name not in there]
        if missing:
            table.alter.add_columns(missing, commit_properties=CommitProperties(max_commit_retries=0))
    table.alter.set_table_properties(
        dict(properties),
        raise_if_not_exists=False,
        commit_properties=CommitProperties(max_commit_retries=0),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
    )
