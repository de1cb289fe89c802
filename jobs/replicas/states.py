"""What a replica table holds at one of its versions, kept by the process and carried on by the commits that came since.

Reading a Delta table from its beginning costs what its log and its live files cost; a process that opens
the same replica again and again needs only the commits in between. They are read whole and digested, as any commit is.

What is kept is used while the commit that it ends with still lies where it was, the very same file. A table that was
restored, made anew or exchanged has another one there, or none, and is read from its beginning. Whoever wants to know
whether all of a table still lies there forgets it first (`forget_state`).
"""

from __future__ import annotations

import hashlib
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from epochlake.jobs.replicas import protocols
from epochlake.jobs.replicas.files import DataFile, from_add, from_add_actions, id_in
from epochlake.metastore import checkpoint_seals, delta_commits
from epochlake.metastore.delta_commits import Action, CommitName
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest
from numpy.typing import NDArray

LOG_RETENTION_SECONDS = 86_400
"""Clean-up of a replica table deletes commits that are older."""

KEPT_SECONDS = LOG_RETENTION_SECONDS / 24
"""What was not carried on for so long is read anew. Far less than the age at which clean-up deletes commits: no commit
between what is kept and what is there has been deleted by then."""

_DIGEST_BYTES = hashlib.sha256().digest_size

KEPT_FILES = 1_000_000
"""So many live files of all replica tables together are kept in memory, a few hundred bytes each."""


class FileTable(NamedTuple):
    """Files with what they are chosen and weighed by, an array of shape (files,) each: first and last tokens of their
    `windows` and of their rows (`extents`), sizes in bytes, whether they stand for other files, checksums of their
    origins, how many rows they have, and when the `newest` of these was written, in microseconds since 1970.
    """

    files: list[DataFile]
    windows: NDArray[np.int64]
    extents: NDArray[np.int64]
    sizes: NDArray[np.int64]
    merged: NDArray[np.bool_]
    origins: NDArray[np.uint32]
    rows: NDArray[np.int64]
    newest: NDArray[np.int64]

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> FileTable:
        files = list(files)
        return cls(
            files,
            np.array([file.window for file in files], dtype=np.int64).reshape(len(files), 2).T,
            np.array([file.extent for file in files], dtype=np.int64).reshape(len(files), 2).T,
            np.array([file.size for file in files], dtype=np.int64),
            np.array([file.is_merged for file in files], dtype=bool),
            np.array([_checksum(file.origin) for file in files], dtype=np.uint32),
            np.array([file.rows for file in files], dtype=np.int64),
            np.array([file.max_written_at for file in files], dtype=np.int64),
        )

    def and_of(self, new: Sequence[DataFile]) -> FileTable:
        """With other files."""
        if not new:
            return self
        more = FileTable.of(new)
        return FileTable(
            [*self.files, *new],
            *(np.concatenate([mine, theirs], axis=-1) for mine, theirs in zip(self[1:], more[1:], strict=True)),
        )

    def within(self, low: int, high: int) -> list[DataFile]:
        """The files whose window meets these tokens, both included."""
        return self._of(_meet(self.windows, low, high))

    def showing(self, low: int, high: int) -> list[DataFile]:
        """Those of `within` that may show a row of these tokens, or stand for files that would."""
        return self._of(_meet(self.windows, low, high) & (_meet(self.extents, low, high) | self.merged))

    def smaller(self, low: int, high: int, size: int) -> int:
        """How many of `within` are smaller than `size` bytes."""
        return int(np.count_nonzero(_meet(self.windows, low, high) & (self.sizes < size)))

    def of_origins(self, origins: Collection[str]) -> list[DataFile]:
        """The files of one of these origins."""
        sums = np.array([_checksum(origin) for origin in origins], dtype=np.uint32)
        return [file for file in self._of(np.isin(self.origins, sums)) if file.origin in origins]

    def merged_files(self) -> list[DataFile]:
        """The files that stand for others."""
        return self._of(self.merged)

    def _of(self, chosen: NDArray[np.bool_]) -> list[DataFile]:
        return [self.files[index] for index in np.flatnonzero(chosen).tolist()]


def _added(fingerprint: bytes, file_ids: Iterable[str]) -> bytes:
    """The fingerprint of the same files and these, none of which is among them."""
    digests = (int.from_bytes(hashlib.sha256(file_id.encode()).digest()) for file_id in file_ids)
    return ((int.from_bytes(fingerprint) + sum(digests)) % (1 << 8 * _DIGEST_BYTES)).to_bytes(_DIGEST_BYTES)


def _checksum(origin: str) -> int:
    return zlib.crc32(origin.encode())


def _meet(spans: NDArray[np.int64], low: int, high: int) -> NDArray[np.bool_]:
    """Whether spans, first and last tokens of shape (2, files), meet these tokens."""
    meets: NDArray[np.bool_] = (spans[0] <= high) & (spans[1] >= low)
    return meets


class UnknownAction(Exception):
    """A commit that somebody else's tool has made: the table is read from its beginning."""


class ReplicaState:
    """A replica table at `version`, which stays what it is; `metadata` is Delta's metaData action."""

    def __init__(
        self,
        version: int,
        metadata: Mapping[str, Any],
        read_from: DeltaTable | None,
        files: dict[str, DataFile] | None = None,
        applied: Mapping[str, int] | None = None,
    ) -> None:
        self.version = version
        self.metadata = metadata
        self.identity: tuple[int, ...] | None = None
        """What the file of its last commit is told by, once it is kept; None where that is not known."""
        # A handle that stays at the version that was read from the beginning; `_applied` is what came since. Without a
        # handle `files` and `_applied` are all that there is.
        self._read_from = read_from
        self._applied = applied or {}
        self._asked: DeltaTable | None = None
        if files is not None:
            self.files = files

    def handle(self) -> DeltaTable:
        """delta-rs' handle, on object stores at this version: for a commit with conflict detection from there on."""
        assert self._read_from is not None, "delta-rs has not read it"
        return self._read_from

    def name_in(self, uri: str) -> CommitName:
        """Its last commit, and what those of the table at `uri` are held against."""
        return CommitName(uri, self.version, delta_commits.held_against(self.metadata))

    @property
    def properties(self) -> Mapping[str, str]:
        properties: Mapping[str, str] = self.metadata["configuration"]
        return properties

    @cached_property
    def files(self) -> dict[str, DataFile]:
        """The live files: file id -> file."""
        # By the C stream: `pa.table(…)` would import pandas, which takes 200 ms.
        actions = pa.RecordBatchReader.from_stream(self.handle().get_add_actions(flatten=True)).read_all()
        return {file.file_id: file for file in from_add_actions(actions)}

    @cached_property
    def table(self) -> FileTable:
        """The live files; of a state that follows another one only what is new is looked at."""
        return FileTable.of(self.files.values())

    @cached_property
    def fingerprint(self) -> bytes:
        """The same of two states that have the same files, and of no others: the sum of digests of their ids.

        A sum, so that a state that follows another one adds to it what is new.
        """
        return _added(bytes(_DIGEST_BYTES), self.files)

    @cached_property
    def newest_written_at(self) -> int:
        """The newest `_written_at` of any live row, microseconds; 0 when there is none."""
        return max((file.max_written_at for file in self.files.values()), default=0)

    def applied(self, app_id: str, open_anew: Callable[[], DeltaTable]) -> int | None:
        """The newest version that was committed under this application id, None when none was.

        `open_anew` opens the table as it is now.
        """
        newest = self._applied.get(app_id)
        if newest is not None or self._read_from is None:
            return newest
        version: int | None
        try:
            version = (self._asked or self._read_from).transaction_version(app_id)
        except (OSError, DeltaError):
            # delta-rs reads the commits that it had listed only now, and clean-up has deleted them since. The table as
            # it is now knows the same, and perhaps more: what was committed is committed.
            self._asked = open_anew()
            version = self._asked.transaction_version(app_id)
        return version

    @property
    def files_kept(self) -> int:
        """How many files it keeps in memory."""
        return len(self.__dict__.get("files", ()))

    def after(self, commits: Sequence[Sequence[Action]]) -> ReplicaState:
        """The state after the commits that follow. Raises UnknownAction."""
        if not commits:
            return self
        try:
            return self._after(commits)
        except (InvalidRequest, KeyError, TypeError, ValueError, AttributeError, msgspec.MsgspecError) as error:
            raise UnknownAction(repr(error)) from error

    def _after(self, commits: Sequence[Sequence[Action]]) -> ReplicaState:
        metadata, files, applied = self.metadata, None, dict(self._applied)
        new: list[DataFile] | None = []
        for commit in commits:
            adds = []
            for action in commit:
                [(kind, content)] = action.items()
                match kind, content:
                    case (("commitInfo" | "protocol"), _):
                        pass
                    case "add", dict():
                        adds.append(from_add(content))
                        _ = adds[-1].window  # of another tool's file there is none
                    case "remove", dict():
                        new = None
                        files = dict(self.files) if files is None else files
                        files.pop(id_in(content["path"]), None)
                    case "txn", dict():
                        applied[content["appId"]] = content["version"]
                    case "metaData", dict():
                        metadata = content
                    case _:
                        raise UnknownAction(f"{kind} in a commit")
            if adds:
                files = dict(self.files) if files is None else files
                if new is not None:
                    new = None if any(file.file_id in files for file in adds) else [*new, *adds]
                files.update((file.file_id, file) for file in adds)
        kept = files if files is not None else self.__dict__.get("files")
        state = ReplicaState(self.version + len(commits), metadata, self._read_from, kept, applied)
        if new is not None:
            self._tell(state, new)
        return state

    def _tell(self, state: ReplicaState, new: Sequence[DataFile]) -> None:
        """Hand on to a state that has these files besides what has been reckoned of all others."""
        table, newest = self.__dict__.get("table"), self.__dict__.get("newest_written_at")
        fingerprint = self.__dict__.get("fingerprint")
        if fingerprint is not None:
            state.fingerprint = _added(fingerprint, (file.file_id for file in new))
        if table is not None:
            state.table = table.and_of(new)
        if newest is not None:
            state.newest_written_at = max([newest, *(file.max_written_at for file in new)])


class _Kept(msgspec.Struct, frozen=True):
    """A state, what its commit's file was, and when it was the newest: by the clock that counts and by the one that
    jumps, as either may stand still while a machine does.
    """

    state: ReplicaState
    identity: tuple[int, ...]
    at: tuple[float, float]

    @property
    def is_fresh(self) -> bool:
        return all(0 <= now - then < KEPT_SECONDS for now, then in zip(_now(), self.at, strict=True))


def _now() -> tuple[float, float]:
    return time.monotonic(), time.time()


class KeptStates:
    """Kept by a storage: states by the URI of their replica table, the one that was used last at the end."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._forgotten: dict[str, int] = {}
        self._kept_since_counted = 0
        self._lock = threading.Lock()

    def of(self, uri: str) -> _Kept | None:
        """What is kept of a table."""
        with self._lock:
            return self._kept.get(uri)

    def forget(self, uri: str) -> None:
        """Keep nothing of a table, and nothing that follows from what was kept of it."""
        with self._lock:
            self._kept.pop(uri, None)
            self._forgotten[uri] = self._forgotten.get(uri, 0) + 1

    def times_forgotten(self, uri: str) -> int:
        """How often a table was forgotten; to be asked before it is opened."""
        with self._lock:
            return self._forgotten.get(uri, 0)

    def keep(self, uri: str, kept: _Kept, times_forgotten: int = 0) -> None:
        """Keep a state, unless its table was forgotten since; those that were not used for longest go when there are
        too many files in memory.
        """
        with self._lock:
            if self._forgotten.get(uri, 0) != times_forgotten:
                return
            self._kept[uri] = kept
            self._kept.move_to_end(uri)
            self._kept_since_counted += 1
            if self._kept_since_counted >= len(self._kept):
                # Files are listed after a state is kept, so all are counted: once for as many as there are.
                self._kept_since_counted = 0
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        files = sum(one.state.files_kept for one in self._kept.values())
        while len(self._kept) > 1 and files > KEPT_FILES:
            _, dropped = self._kept.popitem(last=False)
            files -= dropped.state.files_kept


def open_state(storage: Storage, uri: str) -> ReplicaState:
    """The newest state of the replica table at `uri`, synced. Raises StorageUnavailable, and what storage raises."""
    if places.local_path(uri) is None:
        return _read(storage, uri)
    states = storage.kept(KeptStates)
    times_forgotten = states.times_forgotten(uri)
    found = _carried_on(storage, uri) or _read_and_identified(storage, uri)
    if isinstance(found, ReplicaState):
        return found
    found.state.identity = found.identity
    states.keep(uri, found, times_forgotten)
    return found.state


def forget_state(storage: Storage, uri: str) -> None:
    """Have the replica table at `uri` read from its beginning when it is opened next: what is kept of it says what it
    held, and no longer that all of its commits, or the checkpoint in their place, still lie there as they were written.
    """
    storage.kept(KeptStates).forget(uri)


def _carried_on(storage: Storage, uri: str) -> _Kept | None:
    """What is kept of a table, with the commits since; None when it has to be read from its beginning."""
    kept = storage.kept(KeptStates).of(uri)
    now = _now()
    if kept is None or not _lies_there(storage, uri, kept):
        return None
    try:
        commits = delta_commits.commits_after(storage, kept.state.name_in(uri))
    except delta_commits.TornCommit:
        return None  # read from its beginning, which tells whether another table has come to lie there
    # Only now: what was deleted while this took long is not taken for what never was.
    if commits is None or not kept.is_fresh:
        return None
    if not commits:
        return msgspec.structs.replace(kept, at=now)
    try:
        state = kept.state.after(commits)
    except UnknownAction:
        return None
    identity = delta_commits.identity(storage, uri, state.version)
    return None if identity is None or not _lies_there(storage, uri, kept) else _Kept(state, identity, now)


def _lies_there(storage: Storage, uri: str, kept: _Kept) -> bool:
    return delta_commits.identity(storage, uri, kept.state.version) == kept.identity


def _read_and_identified(storage: Storage, uri: str) -> _Kept | ReplicaState:
    """The table from its beginning. To be kept when it did not change meanwhile: what was read and what lies there are
    one then.
    """
    now = _now()
    version = delta_commits.newest_version(storage, uri)
    identity = delta_commits.identity(storage, uri, version)
    state = _read(storage, uri)
    delta_commits.look_at_all_again(storage, uri)
    delta_commits.sync_replicated_commits(storage, state.name_in(uri))
    kept = None if identity is None or state.version != version else _Kept(state, identity, now)
    return kept if kept is not None and _lies_there(storage, uri, kept) else state


def _read(storage: Storage, uri: str) -> ReplicaState:
    """Raises StorageDamaged when another tool has written files into it."""
    by_delta_rs = storage.disk.is_shared or places.local_path(uri) is None
    return _read_by_delta_rs(storage, uri) if by_delta_rs else _folded(storage, uri)


def _folded(storage: Storage, uri: str) -> ReplicaState:
    """The table by its commits alone, where delta-rs cannot look: none is ever cleaned up there."""
    commits = delta_commits.commits_after(storage, CommitName(uri, -1))
    if not commits:
        delta_commits.require_whole(storage, uri)
        raise TableNotFoundError(f"no table at {uri}")
    try:
        return ReplicaState(-1, {}, None, {}).after(commits)
    except UnknownAction as error:
        raise failures.StorageDamaged(
            f"the replica table {uri} holds what Epochlake has not written: {error}"
        ) from error


def _opened(storage: Storage, uri: str) -> DeltaTable:
    def opened() -> DeltaTable:
        return DeltaTable(places.delta_uri(uri), storage_options=storage.delta_options(uri))

    try:
        return opened()
    except DeltaError as error:
        if not protocols.is_left_out(error) or not protocols.complete(storage, uri):
            raise
    return opened()


def _read_by_delta_rs(storage: Storage, uri: str) -> ReplicaState:
    checkpoint_seals.require_sound(storage, uri)
    table = _opened(storage, uri)
    metadata = table.metadata()
    action = {
        "id": str(metadata.id),
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": metadata.partition_columns,
        "createdTime": metadata.created_time,
        "configuration": metadata.configuration,
    }
    state = ReplicaState(table.version(), action, table)
    for file in state.files.values():
        try:
            _ = file.window
        except (InvalidRequest, ValueError) as error:
            raise failures.StorageDamaged(
                f"the replica table {uri} holds {file.path}, which Epochlake has not written: another tool has "
                "changed the table. Its rows lie on the other replicas",
                hint="Replace its node (`epochlake node replace`)",
            ) from error
    return state
