"""Committing files into a replica table, taking ranges out of it, and arranging its files, where the fence allows it.

Open a snapshot, decide by what it says, commit against exactly that snapshot. When the commit fails, the
reason is not read from a message: the table is opened again, and the same decision is made on what is there now.

Appends may come in between. A commit that takes files out may not: Delta refuses what looked at the table before it, so
what was dropped is not brought back, in pieces or under another label, by somebody who saw it there.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

import msgspec
from deltalake import CommitProperties, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from epochlake.jobs.replicas.cutting import cut
from epochlake.jobs.replicas.fences import declare_columns, raise_fence
from epochlake.jobs.replicas.files import DataFile, add_line, remove_line, to_add, to_remove
from epochlake.jobs.replicas.intervals import NO_LINEAGE, FilePart, Lineage, holds, meet, merged, superseded, without
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.replicas.outcomes import (
    Acknowledged,
    AlreadyApplied,
    CommitOutcome,
    FencedOff,
    PartlyApplied,
    SessionClosed,
    Unreachable,
)
from epochlake.jobs.replicas.receipts import Receipt, went_back
from epochlake.jobs.replicas.replica import (
    ATTEMPTS,
    CHECKPOINT_INTERVAL,
    ReplicaAddress,
    ReplicaSnapshot,
    attempts,
    open_snapshot,
    require_place,
)
from epochlake.jobs.replicas.states import LOG_RETENTION_SECONDS
from epochlake.jobs.replicas.stored import require_stored
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore import delta_checkpoints, delta_commits
from epochlake.metastore.delta_commits import CommitName
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.fence import Fence
from epochlake.metastore.storage import failures, places
from epochlake.placement.tokens import TABLET, Interval

CUTTERS = 2
"""Pieces that one change has cut side by side: one waits for its disk while another is hashed. More are faster,
and may hold more row groups that are decoded."""


def commit_files(
    address: ReplicaAddress,
    adds: Sequence[DataFile],
    *,
    removes: Sequence[DataFile] = (),
    epoch: int,
    app_id: str,
    app_version: int,
    session: str | None = None,
    beside: Collection[str] = (),
    ledger: Ledger | None = None,
    receipts: Collection[Receipt] = (),
    leaves_mark: bool = False,
) -> CommitOutcome:
    """Make staged files part of the replica (and take `removes` out of it) in one Delta commit.

    `epoch` is the one that the work was planned at: a fence above it refuses. With `session`, that session must be open
    at the replica. `(app_id, app_version)` makes it land at most once; versions under one id must grow in the order of
    the commits. A file whose rows are live already, as itself, in pieces or in a wider one, is not added again, one
    that is gone is not removed again. What is taken out does not count as live. Where nothing is to be done, nothing is
    committed; with `leaves_mark` the mark is, so that a receipt may name it.

    `beside`: other sessions whose work shares the commit. Each has to be open, and each leaves a mark of its own as
    `(session, app_version)`. Where some of them have left theirs before and others not, nothing is committed
    (PartlyApplied): each has to be done by itself then.

    Where a merged file is or comes to be live, what it replaces is neither added nor kept: a batch that is landed again
    after its files were compacted changes nothing. The `ledger` of compactions is looked into only then; Unreachable
    without one. Unreachable also when the replica lacks what it has one of the `receipts` for.
    """
    marks = tuple(_Applied(name, app_version) for name in (app_id, *beside))
    sessions = [*([] if session is None else [session]), *beside]

    def again() -> CommitOutcome:
        return commit_files(
            address,
            adds,
            removes=removes,
            epoch=epoch,
            app_id=app_id,
            app_version=app_version,
            session=session,
            beside=beside,
            ledger=ledger,
            receipts=receipts,
            leaves_mark=leaves_mark,
        )

    def decide(snapshot: ReplicaSnapshot) -> PlannedActions:
        older_copy = went_back(snapshot, receipts)
        if older_copy:
            return Unreachable(older_copy)
        live = snapshot.all_files
        lineage = _lineage(ledger, snapshot, adds)
        absent = not_held(snapshot, adds, lineage, removes)
        seen = [mark.seen_in(snapshot) for mark in marks]
        if all(seen):
            return AlreadyApplied(snapshot.version, frozenset(file.file_id for file in absent))
        if snapshot.fence > epoch:
            return FencedOff(snapshot.fence)
        if snapshot.fence.incarnation < Fence.of(epoch).incarnation:
            # It was away when an incarnation began: what was planned in the one before may land here until this.
            raised = raise_fence(address, epoch)
            return raised if isinstance(raised, Unreachable) else again()
        closed = [one for one in sessions if one not in snapshot.sessions]
        if closed:
            return SessionClosed(closed[0])
        if any(seen):
            return PartlyApplied(snapshot.version)
        gone = {file.file_id for file in removes}
        if lineage:
            staying = [file for file in live.values() if file.file_id not in gone]
            gone |= {file.file_id for file in superseded([*staying, *absent], lineage)}
        return FileActions(
            tuple(file for file in absent if file.file_id not in gone),
            tuple(file for file in live.values() if file.file_id in gone) if gone else (),
            marks,
            leaves_mark,
        )

    return _transact(address, decide)


def _lineage(ledger: Ledger | None, snapshot: ReplicaSnapshot, adds: Sequence[DataFile]) -> Lineage:
    """What the merged files stand for that are live or come to be; an append racing with them is left to readers."""
    if not snapshot.merged_files() and not any(file.is_merged for file in adds):
        return NO_LINEAGE
    if ledger is not None:
        return ledger.lineage(snapshot.address.table_id, [*snapshot.all_files.values(), *adds])
    raise StorageUnavailable(
        f"{snapshot.address.uri} has compacted files, and whoever commits does not know the ledger of compactions",
        hint="Commit through the cluster",
    )


def not_held(
    snapshot: ReplicaSnapshot,
    files: Sequence[DataFile],
    lineage: Lineage = NO_LINEAGE,
    leaving: Sequence[DataFile] = (),
) -> list[DataFile]:
    """Those of `files` that have rows which no live file of the replica has, those that are `leaving` aside."""
    of_origin: dict[str, list[DataFile]] = {file.origin: [] for file in files if file.file_id not in snapshot.all_files}
    if not of_origin:
        return []
    gone = {file.file_id for file in leaving}
    merged_files = [file for file in snapshot.merged_files() if file.origin in lineage and file.file_id not in gone]
    for file in snapshot.of_origins(of_origin):
        if file.file_id not in gone:
            of_origin[file.origin].append(file)
    return [
        file
        for file in files
        if file.origin in of_origin and not holds([*of_origin[file.origin], *merged_files], file, lineage)
    ]


def lacking(address: ReplicaAddress, files: Sequence[DataFile], ledger: Ledger | None = None) -> list[DataFile]:
    """Those of `files` that have rows which the replica does not have now. Raises StorageUnavailable, WrongCluster."""
    snapshot = open_snapshot(address)
    return not_held(snapshot, files, _lineage(ledger, snapshot, files))


def drop_ranges(
    address: ReplicaAddress,
    ranges: Collection[Interval],
    epoch: int,
) -> CommitOutcome:
    """Take all rows with a token in one of the ranges (first and last token) out of the replica.

    Its fence is raised to `epoch` first; FencedOff when that is behind it. Files that reach beyond the ranges are
    replaced by what stays of them, in the same commit. Logical: pipelines with an older snapshot still read the files,
    `vacuum` deletes them later. Appends elsewhere may come in between. Safe to repeat; AlreadyApplied when there was
    nothing to drop.
    """
    return _drop(address, epoch, lambda _: (ranges, ()))


class Once(msgspec.Struct, frozen=True):
    """Ranges (first and last token) that are dropped once under a name, whatever comes later under it.

    A name that was left in an `incarnation` before this one is of epochs whose loss was accepted, and does not count.
    """

    name: str
    incarnation: int
    ranges: tuple[Interval, ...]


def drop_once(address: ReplicaAddress, drops: Collection[Once], epoch: int) -> CommitOutcome:
    """Take all rows in the ranges of each of `drops` out of the replica, in one commit, as `drop_ranges`.

    The names are left in the table, also where there was nothing to drop, and whoever comes later under one drops
    nothing of it (AlreadyApplied when that is so of all): rows may have come since which the fence does not tell from
    older ones.
    """
    marks = {_Applied(one.name, one.incarnation): one.ranges for one in drops}

    def asked(snapshot: ReplicaSnapshot) -> tuple[list[Interval], list[_Applied]]:
        left = [mark for mark in marks if not mark.seen_in(snapshot)]
        return [range_ for mark in left for range_ in marks[mark]], left

    return _drop(address, epoch, asked)


def _drop(
    address: ReplicaAddress,
    epoch: int,
    asked: Callable[[ReplicaSnapshot], tuple[Collection[Interval], Sequence[_Applied]]],
) -> CommitOutcome:
    """Drop the ranges that are `asked` for of a snapshot, and leave the marks that come with them."""
    fence = raise_fence(address, epoch)
    if isinstance(fence, Unreachable):
        return fence

    def decide(snapshot: ReplicaSnapshot) -> PlannedActions:
        ranges, marks = asked(snapshot)
        if not ranges and not marks:
            return AlreadyApplied(snapshot.version)
        if snapshot.fence > epoch:
            return FencedOff(snapshot.fence)
        gone = merged(ranges)
        removes = [file for file in snapshot.all_files.values() if _loses_rows(file, gone)]
        change = _replaced(snapshot, removes, [part for file in removes for part in _remaining(file, gone)])
        return msgspec.structs.replace(change, marks=tuple(marks), leaves_mark=bool(marks))

    return _transact(address, decide)


def pre_split(
    address: ReplicaAddress, boundaries: Collection[int], epoch: int, spared: int = 0
) -> int | FencedOff | Unreachable:
    """Cut every file that has rows on both sides of a boundary, so that none straddles it; how many are left that do.

    Files of up to `spared` bytes are left as they are. A boundary is the last token of its lower side. What is left
    came in meanwhile: call it again when it is not 0. FencedOff when `epoch` is behind the replica's fence, which is
    not raised. Safe to repeat.
    """

    def decide(snapshot: ReplicaSnapshot) -> PlannedActions:
        if snapshot.fence > epoch:
            return FencedOff(snapshot.fence)
        removes = straddling(snapshot, boundaries, spared)
        return _replaced(snapshot, removes, pieces_of(removes, boundaries))

    outcome = _transact(address, decide)
    if isinstance(outcome, FencedOff | Unreachable):
        return outcome
    try:
        return len(straddling(open_snapshot(address), boundaries, spared))
    except (StorageUnavailable, WrongCluster) as error:
        return Unreachable(str(error))


def pieces_of(files: Iterable[DataFile], boundaries: Collection[int]) -> list[FilePart]:
    """What `pre_split` puts in the place of files. Who has them cut beforehand leaves only the commit to it."""
    return [part for file in files for part in _sides(file, boundaries)]


def straddling(snapshot: ReplicaSnapshot, boundaries: Collection[int], spared: int = 0) -> list[DataFile]:
    """The live files of more than `spared` bytes whose statistics say that they may have rows on both sides of a
    boundary.
    """
    sorted_boundaries = sorted(boundaries)

    def straddles(file: DataFile) -> bool:
        first, last = file.extent
        index = bisect_left(sorted_boundaries, first)
        return index < len(sorted_boundaries) and sorted_boundaries[index] < last

    return [file for file in snapshot.all_files.values() if file.size > spared and straddles(file)]


def relabel(address: ReplicaAddress, label_of: Callable[[DataFile], str], epoch: int) -> CommitOutcome:
    """Put each live file under the partition label that `label_of` gives it, in one commit; no byte moves.

    FencedOff when `epoch` is behind the replica's fence, which is not raised. Safe to repeat; AlreadyApplied when every
    file has its label.
    """

    def decide(snapshot: ReplicaSnapshot) -> PlannedActions:
        if snapshot.fence > epoch:
            return FencedOff(snapshot.fence)
        # An add of a path that is live takes the place of the earlier one: that is Delta's rule for its log.
        named = [msgspec.structs.replace(file, label=label_of(file)) for file in snapshot.all_files.values()]
        moved = [file for file in named if file.label != snapshot.all_files[file.file_id].label]
        return FileActions(tuple(moved))

    return _transact(address, decide)


def _loses_rows(file: DataFile, gone: Sequence[Interval]) -> bool:
    """Whether rows of a file are dropped; a file that is known to have none goes with the whole of its window."""
    if file.rows:
        return any(meet(file.extent, interval) for interval in gone)
    return not without(file.window, gone)


def _remaining(file: DataFile, gone: Sequence[Interval]) -> list[FilePart]:
    """What stays of a file that loses rows.

    Of a piece that includes where it has no row: others may only know the file that it was cut from.
    """
    rest = without(file.window, gone)
    return [FilePart(file, *kept) for kept in rest if meet(kept, file.extent) or file.file_id != file.origin]


def _sides(file: DataFile, boundaries: Collection[int]) -> list[FilePart]:
    """A file's window, cut at the boundaries between its rows."""
    first, last = file.extent
    low, high = file.window
    inner = sorted(boundary for boundary in boundaries if first <= boundary < last)
    return [
        FilePart(file, start, end)
        for start, end in zip([low, *(boundary + 1 for boundary in inner)], [*inner, high], strict=True)
    ]


def _replaced(snapshot: ReplicaSnapshot, removes: Sequence[DataFile], parts: Sequence[FilePart]) -> FileActions:
    """The change that puts parts of files in their place. They are cut now: none is cut twice, however often it is
    decided (cutting.py).
    """
    made = ThreadWorkers(CUTTERS).run(lambda part: cut(snapshot.address, part, snapshot.address), parts)
    pieces = {piece.file_id: piece for piece in made}
    adds = tuple(piece for piece in pieces.values() if piece.file_id not in snapshot.all_files)
    return FileActions(adds, tuple(removes))


class _Applied(msgspec.Struct, frozen=True):
    """The mark that a commit leaves in the table, by which it is known again."""

    app_id: str
    version: int

    def seen_in(self, snapshot: ReplicaSnapshot) -> bool:
        newest = snapshot.applied(self.app_id)
        return newest is not None and newest >= self.version


class FileActions(msgspec.Struct, frozen=True):
    """What a commit adds and removes, and the marks that it leaves. One that `leaves_mark` is made even when that is
    all.
    """

    adds: tuple[DataFile, ...]
    removes: tuple[DataFile, ...] = ()
    marks: tuple[_Applied, ...] = ()
    leaves_mark: bool = False


PlannedActions = CommitOutcome | FileActions
"""What to commit against a snapshot, or the answer when nothing is."""

ActionPlanner = Callable[[ReplicaSnapshot], PlannedActions]


def _transact(address: ReplicaAddress, decide: ActionPlanner) -> CommitOutcome:
    """Open, decide, commit against that snapshot; again when somebody else was faster."""
    missing = False
    for _ in attempts():
        started = time.time()
        try:
            snapshot = open_snapshot(address)
            decision = decide(snapshot)
        except (StorageUnavailable, WrongCluster) as error:
            return Unreachable(str(error))
        if isinstance(decision, FileActions) and snapshot.lacks_columns:
            # No file with columns of a version lands where somebody who knows the version before could read it.
            unable = _declare_columns(snapshot)
            if unable is not None:
                return unable
            continue
        if not isinstance(decision, FileActions):
            return decision
        if not (decision.adds or decision.removes or decision.leaves_mark):
            return AlreadyApplied(snapshot.version)
        try:
            # Only now, with the snapshot open: clean-up of what is missing here then came before.
            require_stored([file for file in decision.adds if file.file_id not in snapshot.all_files], address)
        except StorageUnavailable as error:
            if missing:
                return Unreachable(str(error))
            missing = True  # a piece that was cleaned up is cut once again
            continue
        try:
            version = address.storage.deadlines.within(
                address.uri, f"commit to {address.uri}", partial(_commit, snapshot, decision)
            )
        except _Overtaken:
            continue
        except failures.StorageLate as error:
            return Unreachable(f"whether it has landed cannot be told: {error}")
        except StorageUnavailable as error:
            doubt = error
        except failures.STORAGE_ERRORS as error:
            doubt = failures.unavailable("commit to the replica table", address.uri, error)
        else:
            try:
                require_place(address)
                if not snapshot.is_still_there():
                    delta_commits.take_back(address.storage, address.uri, version)
                    return _on_another(address)
            except (StorageUnavailable, WrongCluster) as error:
                return Unreachable(f"the commit to {address.uri} may be lost with its volume: {error}")
            if time.time() - started < LOG_RETENTION_SECONDS / 2:
                return Acknowledged(version)
            doubt = StorageUnavailable("it took so long that the log may have been cleaned up meanwhile")
        return _read_back(snapshot, decision.marks, doubt)
    return Unreachable(f"{address.uri} was changed by others during each of {ATTEMPTS} tries to commit: retry")


def _declare_columns(snapshot: ReplicaSnapshot) -> Unreachable | None:
    """Have the table declare the columns of now; Unreachable where it cannot be told that it may."""
    try:
        declare_columns(snapshot)
    except StorageUnavailable as error:
        return Unreachable(str(error))
    except failures.STORAGE_ERRORS as error:
        return Unreachable(str(failures.unavailable("declare columns of", snapshot.address.uri, error)))
    return None


class _Overtaken(Exception):
    """Somebody has changed the table since the snapshot in a way that the decision has to know of."""


def _commit(snapshot: ReplicaSnapshot, change: FileActions) -> int:
    """Commit against the snapshot; the version. Raises _Overtaken, and what storage raises."""
    if places.local_path(snapshot.address.uri) is None:
        return _commit_by_delta_rs(snapshot, change)
    storage, uri = snapshot.address.storage, snapshot.address.uri
    version, now = snapshot.version, _now_ms()
    lines = [add_line(file, now) for file in change.adds]
    lines += [remove_line(file, now) for file in change.removes]
    lines += [{"txn": {"appId": mark.app_id, "version": mark.version}} for mark in change.marks]
    touched = {file.path for file in (*change.adds, *change.removes)}
    applied = {mark.app_id for mark in change.marks}
    table_id, held = snapshot.metadata["id"], delta_commits.held_against(snapshot.metadata)
    while not delta_commits.put_replicated_commit(storage, CommitName(uri, version + 1, table_id), "WRITE", lines):
        found = delta_commits.between(storage, CommitName(uri, version, held))
        if found is None or any(_matters(action, touched, applied) for action in found[1]):
            raise _Overtaken
        version = found[0]
    version += 1
    delta_checkpoints.checkpoint_if_due(storage, snapshot.delta_table, uri, version, CHECKPOINT_INTERVAL)
    return version


def _matters(action: delta_commits.Action, touched: Collection[str], applied: Collection[str]) -> bool:
    """Whether a decision does not hold any more after another commit has done this: only appends of other files may
    come in between, and none that leaves a mark of the same name. As Delta's own rules say it of appends.
    """
    match action:
        case {"commitInfo": _}:
            return False
        case {"add": {"path": path}}:
            return path in touched
        case {"txn": {"appId": app_id}}:
            return app_id in applied
        case _:
            return True


def _commit_by_delta_rs(snapshot: ReplicaSnapshot, change: FileActions) -> int:
    """On object stores, where a conditional put makes a commit, and it stays when it was answered."""
    table, now = snapshot.delta_table(), _now_ms()
    actions: list[AddAction | RemoveAction] = [to_add(file, now) for file in change.adds]
    actions += [to_remove(file, now) for file in change.removes]
    try:
        table.create_write_transaction(
            actions,
            mode="append",
            schema=table.schema(),
            partition_by=[TABLET],
            commit_properties=CommitProperties(
                max_commit_retries=ATTEMPTS,
                app_transactions=[Transaction(mark.app_id, mark.version) for mark in change.marks] or None,
            ),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
        )
    except CommitFailedError as error:
        raise _Overtaken from error
    table.update_incremental()
    return table.version()


def _on_another(address: ReplicaAddress) -> Unreachable:
    return Unreachable(f"{address.uri} was exchanged for another copy during the commit", on_another=True)


def _read_back(before: ReplicaSnapshot, marks: Collection[_Applied], doubt: StorageUnavailable) -> CommitOutcome:
    """After a failure that may have come before or after the commit point: what the table itself says."""
    if marks:
        try:
            snapshot = open_snapshot(before.address)
            if all(mark.seen_in(snapshot) for mark in marks):
                return Acknowledged(snapshot.version) if before.is_still_there() else _on_another(before.address)
        except (StorageUnavailable, WrongCluster) as error:
            return Unreachable(f"{doubt}; and it cannot be told whether it has landed: {error}")
    return Unreachable(str(doubt))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
