"""Replica tables: a Delta table on a volume, with the fence and the open sessions in its own properties.

Whoever touches a replica opens a snapshot first, and everything that decides whether the touch is allowed
(fence, sessions, what was applied) is in that one snapshot. Delta's conflict detection makes the decision hold until
the commit (design, section 9).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial

import msgspec
from deltalake import DeltaTable
from epochlake.jobs.replicas.files import STATISTICS_COLUMNS, DataFile
from epochlake.jobs.replicas.schema import SYSTEM_COLUMNS, replica_schema
from epochlake.jobs.replicas.states import LOG_RETENTION_SECONDS, FileTable, ReplicaState, open_state
from epochlake.jobs.replicas.volumes import require_volume
from epochlake.metastore import checkpoint_seals, delta_checkpoints, delta_commits
from epochlake.metastore.delta_commits import CommitName
from epochlake.metastore.delta_tables import NewTable, create_table
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.fence import Fence
from epochlake.metastore.metadata.model import Table, TableId, VolumeId
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import TABLET

FENCE = "epochlake.fence"
SESSIONS = "epochlake.sessions"
UNFILLED = "epochlake.unfilled"
TABLE = "epochlake.table"
CLUSTER = "epochlake.cluster"
VOLUME = "epochlake.volume"
COLUMNS = "epochlake.columns"
"""The version of an altered table whose columns the replica table declares; it is not there before the first change."""

TOMBSTONE_RETENTION_SECONDS = 7 * 86_400

CHECKPOINT_INTERVAL = 10

DELTA_PROPERTIES = {
    # Opening reads the newest checkpoint and each commit after it; at 10, opening and committing take 7 ms together.
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    # Commits leave old log files alone (looking for them would list the whole log each time); `vacuum` deletes them.
    # A day is far more than any commit takes between its snapshot and its end; a longer one is verified, not trusted.
    "delta.enableExpiredLogCleanup": "true",
    "delta.logRetentionDuration": f"interval {LOG_RETENTION_SECONDS} seconds",
    # How long the log remembers which files were removed, and when: `vacuum` needs it to spare those that a pipeline
    # with an older snapshot still reads, so it must outlast the longest pipeline.
    "delta.deletedFileRetentionDuration": f"interval {TOMBSTONE_RETENTION_SECONDS} seconds",
    # Statistics of the system columns only, which are the first ones (see files.py and `replica_schema`).
    "delta.dataSkippingNumIndexedCols": str(len(STATISTICS_COLUMNS)),
    # Never `delta.setTransactionRetentionDuration`: it would forget which batches have landed.
}


ATTEMPTS = 30
PAUSE_SECONDS = 0.1
"""How often a change is tried against a table that others keep changing, and the longest pause between two tries."""


class DeclaredColumns(msgspec.Struct, frozen=True):
    """What the replica tables of an altered table have to declare before a file with its columns lands there.

    `version` of the table, `schema` as Delta's JSON. `fence`: that of the epoch of the change.
    """

    version: str
    fence: int
    schema: str


class ReplicaAddress(msgspec.Struct, frozen=True):
    """Where the replicas of a table on one volume are, and whose they must be.

    `storage` is what it is reached with; `directory`: that of the volume that it is in. `lost` says why the volume is
    not to be opened, where it is declared lost: nothing there is touched then. `columns`: those of an altered table.
    """

    storage: Storage
    cluster_id: str
    volume_id: VolumeId
    volume_uri: str
    directory: str
    table_id: TableId
    lost: str = ""
    columns: DeclaredColumns | None = None

    def __post_init__(self) -> None:
        # Whoever knows where a replica is may touch it: from then on its volume has the deadline.
        self.storage.watch(self.volume_uri)

    @property
    def uri(self) -> str:
        return places.join(self.volume_uri, self.directory, self.table_id)


class ReplicaSnapshot:
    """One version of a replica table. What it shows never changes, whatever is committed or cleaned up later.

    `unfilled` names the rebuild that made the table in the place of a lost one and has not brought its rows yet: it
    takes writes, and must not be read as if it knew that there is nothing else.
    """

    def __init__(self, address: ReplicaAddress, state: ReplicaState) -> None:
        self.address = address
        self.version = state.version
        self.fence = Fence.decode(state.properties[FENCE])
        self.sessions: frozenset[str] = decode_sessions(state.properties[SESSIONS])
        self.unfilled = state.properties.get(UNFILLED, "")
        self.columns_version = state.properties.get(COLUMNS, "")
        self.metadata = state.metadata
        self._state = state

    @cached_property
    def all_files(self) -> dict[str, DataFile]:
        """The live files: file id -> file."""
        return self.address.storage.within_deadline("list the files of", self.address.uri, lambda: self._state.files)

    def within(self, low: int, high: int) -> list[DataFile]:
        """The live files whose window meets the tokens from `low` to `high`, both included."""
        return self.table.within(low, high)

    def showing(self, low: int, high: int) -> list[DataFile]:
        """Those of `within` that may show a row of these tokens, or stand for files that would."""
        return self.table.showing(low, high)

    def smaller(self, low: int, high: int, size: int) -> int:
        """How many of `within` are smaller than `size` bytes."""
        return self.table.smaller(low, high, size)

    def of_origins(self, origins: Collection[str]) -> list[DataFile]:
        """The live files of one of these origins."""
        return self.table.of_origins(origins)

    def merged_files(self) -> list[DataFile]:
        """The live files that stand for others."""
        return self.table.merged_files()

    @property
    def fingerprint(self) -> bytes:
        """The same of two snapshots that have the same files, and of no others."""
        _ = self.all_files
        return self._state.fingerprint

    @property
    def newest_written_at(self) -> int:
        """The newest `_written_at` of any live row, microseconds; 0 when there is none."""
        _ = self.all_files  # within the deadline
        return self._state.newest_written_at

    @cached_property
    def table(self) -> FileTable:
        """The live files with what they are chosen by."""
        _ = self.all_files
        return self._state.table

    def applied(self, app_id: str) -> int | None:
        """The newest version that was committed under this application id, None when none was."""

        def open_anew() -> DeltaTable:
            checkpoint_seals.require_sound(self.address.storage, self.address.uri)
            table = DeltaTable(
                places.delta_uri(self.address.uri), storage_options=self.address.storage.delta_options(self.address.uri)
            )
            if not self.is_still_there():
                raise StorageUnavailable(f"{self.address.uri} has gone on, or become another table", hint="Try again")
            return table

        return self.address.storage.within_deadline(
            "look for a commit in", self.address.uri, lambda: self._state.applied(app_id, open_anew)
        )

    def is_still_there(self) -> bool:
        """Whether its last commit lies where it lay: else the table was exchanged since, as by a backup.

        True where that cannot be told. Raises StorageUnavailable, also where nothing lies there just now.
        """
        known = self._state.identity
        return known is None or delta_commits.lies_there(self.address.storage, self.address.uri, self.version, known)

    def delta_table(self) -> DeltaTable:
        """A handle for a commit of delta-rs: on object stores at this version, with conflict detection from there on.
        It is used up by that.
        """
        if places.local_path(self.address.uri) is None:
            return self._state.handle()
        return DeltaTable(places.delta_uri(self.address.uri))

    @property
    def lacks_columns(self) -> bool:
        """Whether it declares the columns of an older version than its address knows. Versions grow with time."""
        return self.address.columns is not None and self.columns_version < self.address.columns.version

    def __repr__(self) -> str:
        return f"ReplicaSnapshot({self.address.uri}, version={self.version}, fence={self.fence})"


def create_replica(address: ReplicaAddress, table: Table, fence: int, *, unfilled: str = "") -> None:
    """Create the empty replica table of `table`, with its fence at the epoch `fence`; does nothing when it is there.

    `unfilled` is the rebuild by which it comes in the place of a lost one.

    For replicas that become pending or belong to a new table, and for these only: a replica table that *should* be
    there and is not was lost, and making an empty one in its place would hide that. Raises InvalidRequest for columns
    that cannot be stored, StorageUnavailable, WrongCluster.
    """
    schema = replica_schema(table).to_json()
    require_place(address)
    configuration: dict[str, str] = {
        **DELTA_PROPERTIES,
        FENCE: str(Fence.of(fence)),
        SESSIONS: encode_sessions(frozenset()),
        **({UNFILLED: unfilled} if unfilled else {}),
        **({} if table.alterations is msgspec.UNSET else {COLUMNS: table.version}),
        **_identity(address),
    }
    directory = places.join(address.volume_uri, address.directory)
    # Other replicas do not help where a table is missing: it is on the disk, whatever else relies on them.
    address.storage.create_directory(directory)
    address.storage.sync_always(directories=[address.volume_uri])
    create_table(address.storage, address.uri, NewTable(schema, configuration, SYSTEM_COLUMNS, [TABLET]))
    delta_commits.sync_commits(address.storage, CommitName(address.uri, open_snapshot(address).version))


def open_snapshot(address: ReplicaAddress) -> ReplicaSnapshot:
    """The replica table as it is now.

    Raises StorageUnavailable when the volume cannot be reached or the table on it was lost, WrongCluster when volume or
    table belong to somebody else. A missing table is never taken for an empty one.
    """
    require_place(address)

    try:
        state = address.storage.within_deadline(
            "open the replica table", address.uri, partial(open_state, address.storage, address.uri)
        )
    except failures.StorageLate:
        raise
    except StorageUnavailable as error:
        if _is_missing(address):
            raise StorageUnavailable(
                f"the replica table {address.uri} was lost: volume {address.volume_id} is there, the table on "
                "it is not",
                hint="Rebuild its replicas (`epochlake node rebuild` on the ring, `node replace` anywhere). "
                "Restored from a backup it would lack what was acknowledged since, and be refused",
            ) from error
        with _naming_the_replica(address):
            if isinstance(error, delta_commits.TornCommit):
                raise
            delta_commits.require_whole(address.storage, address.uri)
        if _is_readable_now(address):
            return open_snapshot(address)
        raise
    _require_identity(address, state.properties)
    with failures.naming("read the fence of", address.uri):
        return ReplicaSnapshot(address, state)


def _is_readable_now(address: ReplicaAddress) -> bool:
    """Whether a checkpoint that was torn as it was written kept the table from being opened, and is put aside now."""
    try:
        return bool(delta_checkpoints.put_torn_aside(address.storage, address.uri))
    except StorageUnavailable:
        return False


@contextmanager
def _naming_the_replica(address: ReplicaAddress) -> Iterator[None]:
    """Say what to do about a torn commit. What it held is not known here, so it is never passed over."""
    try:
        yield
    except delta_commits.TornCommit as torn:
        raise failures.StorageDamaged(
            f"the replica table of volume {address.volume_id} is torn: {torn}. Its rows lie on the other replicas",
            hint="Replace its node (`epochlake node replace`), or restore that file from a copy",
        ) from torn


def require_replica(replica: ReplicaAddress) -> None:
    """That volume and table are there, without opening the table. Raises StorageUnavailable, WrongCluster."""
    require_place(replica)
    if _is_missing(replica):
        raise StorageUnavailable(f"the replica table {replica.uri} was lost", hint="Rebuild its replicas")


def require_place(replica: ReplicaAddress) -> None:
    """That the volume is not declared lost, is there and ours. Raises StorageUnavailable, WrongCluster."""
    if replica.lost:
        raise StorageUnavailable(replica.lost)
    require_volume(replica.storage, replica.volume_uri, replica.cluster_id, replica.volume_id)


def attempts() -> Iterator[int]:
    """Count the tries of a change, with a random pause before each but the first, so that racers part."""
    for attempt in range(ATTEMPTS):
        if attempt:
            pause()
        yield attempt


def pause() -> None:
    """Let others who change the same table come first, or after."""
    time.sleep(random.uniform(0, PAUSE_SECONDS))


def encode_sessions(sessions: frozenset[str]) -> str:
    return json.dumps(sorted(sessions))


def decode_sessions(value: str) -> frozenset[str]:
    return frozenset(json.loads(value))


def _identity(address: ReplicaAddress) -> dict[str, str]:
    return {TABLE: address.table_id, CLUSTER: address.cluster_id, VOLUME: str(address.volume_id)}


def _require_identity(address: ReplicaAddress, properties: Mapping[str, str]) -> None:
    missing = [name for name in (FENCE, SESSIONS) if name not in properties]
    if missing:
        raise StorageUnavailable(
            f"{address.uri} is no replica table: its property {missing[0]} is missing", hint="Rebuild it"
        )
    foreign = {name: properties.get(name) for name, mine in _identity(address).items() if properties.get(name) != mine}
    if foreign:
        raise WrongCluster(
            f"{address.uri} should be the replica of table {address.table_id} on volume {address.volume_id} of "
            f"cluster {address.cluster_id}, but says {foreign}: it was copied or moved there",
            hint="Restore the right directory",
        )


def _is_missing(address: ReplicaAddress) -> bool:
    """Whether the table is not there. Raises StorageUnavailable when that cannot be told."""
    return not address.storage.exists(places.join(address.uri, "_delta_log"))
