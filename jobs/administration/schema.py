"""Keyspaces and tables. A table's replica tables are there before the table is: nobody ever finds a table without them.

Tablets of a new table go to volumes of normal nodes that answer now; where ranges of the ring are is not for a table
to choose, so there all volumes have to answer. The replica tables are made with their fence at the epoch that was
planned on; if the commit does not come, they are empty tables that no metadata names.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Unpack

import msgspec
import numpy as np
from epochlake.jobs.administration.columns import parse_columns
from epochlake.jobs.administration.times_to_live import Duration, first_lifetime, require_right_clock, whole_seconds
from epochlake.jobs.gate.check_expressions import new_check
from epochlake.jobs.gate.generated_expressions import with_generated
from epochlake.jobs.replicas.reachability import THREADS, Probed, probe
from epochlake.jobs.replicas.replica import ReplicaAddress, create_replica
from epochlake.jobs.replicas.schema import check_columns
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.committing.changes import Call, Change, FixedChange, Options, Preparation, Preview
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.errors import Rejected, StorageUnavailable
from epochlake.metastore.metadata.attachments import decode_replicas, encode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import CreateKeyspace, CreateTable, DropKeyspace, RenameKeyspace
from epochlake.metastore.metadata.model import (
    Column,
    Keyspace,
    Node,
    NodeState,
    PlacementKind,
    Table,
    TableId,
    TabletOptions,
    VolumeId,
)
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest, PlacementImpossible
from epochlake.placement.rejections import Code
from epochlake.placement.ring.strategies import NETWORK_TOPOLOGY, SIMPLE, SIMPLE_OPTION
from epochlake.placement.tablets.allocation import VolumeTable, allocate_tablets
from epochlake.placement.tablets.tablet_map import NO_REPLICA
from epochlake.placement.tokens import tablet_bits
from numpy.typing import NDArray

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster
    from epochlake.metastore.metastore import Metastore

TABLES = uuid.UUID("0d6b3c1a-5b43-5f0e-8f6e-0a4f2c7be311")
"""Namespace of table ids: they follow from the request id, so that a repeated request finds its own replica tables."""

RESERVED = "system"
"""What names the metadata where tables are named, in Spark: rows of a keyspace of that name could not be read there."""

Columns = Sequence[str | Column | tuple[str, str, bool]]


class TableCreated(msgspec.Struct, frozen=True):
    """A created table; on the ring it has no `tablets`.

    `unreachable`: volumes that got no tablet because they did not answer, with the reason.
    """

    committed: Committed
    table_id: TableId
    tablets: int
    unreachable: dict[str, str]


def create_keyspace(
    cluster: Cluster,
    name: str,
    replication: Mapping[str, int],
    *,
    placement: PlacementKind = PlacementKind.TABLETS,
    strategy: str | None = None,
    **options: Unpack[Options],
) -> Committed:
    """Create a keyspace, placed by tablets or on the ring, with so many replicas in each datacenter.

    `create_keyspace(cluster, "air", {"dc1": 3, "dc2": 2})` has five replicas of each row. On the ring `replication` may
    be `{"replication_factor": n}`, which is SimpleStrategy: whatever the datacenter. Raises Rejected (keyspace-exists
    among others), InvalidRequest for a strategy that does not fit the replication.
    """
    return cluster.commit(KeyspaceCreation(name, replication, placement=placement, strategy=strategy), **options)


def drop_keyspace(cluster: Cluster, name: str, **options: Unpack[Options]) -> Committed:
    """Drop a keyspace without tables. Raises Rejected for an unknown keyspace, and for one that has tables."""
    return cluster.commit(KeyspaceDrop(name), **options)


def rename_keyspace(cluster: Cluster, name: str, new_name: str, **options: Unpack[Options]) -> Committed:
    """Give a keyspace another name; its tables follow, and their replicas stay where they are.

    Raises Rejected: unknown-keyspace, keyspace-exists, invalid-name, feature-not-enabled while the cluster does not use
    `keyspace-names`, and request-in-the-way or operation-in-the-way while the replication of a ring keyspace or its
    ranges are changing.
    """
    return cluster.commit(KeyspaceRename(name, new_name), **options)


def _lifetime(full_name: str, ttl: object) -> tuple[str, int]:
    """A column and how long after it rows expire. Raises InvalidRequest for what is not the two of them."""
    match ttl:
        case (str() as column, duration):
            return column, whole_seconds(duration, full_name)
    raise InvalidRequest(
        f"{ttl!r} does not say by which column of {full_name} rows expire, and when",
        hint='Give the two of them: ("at", 3600), or ("at", timedelta(hours=1))',
    )


def create_table(
    cluster: Cluster,
    full_name: str,
    columns: Columns,
    primary_key: Sequence[str],
    *,
    append_only: bool = False,
    tablets: int | None = None,
    checks: Mapping[str, str] | None = None,
    ttl: tuple[str, Duration] | None = None,
    **options: Unpack[Options],
) -> TableCreated:
    """Create `keyspace.table`: allocate its tablets, if it is to have any, make its replica tables, commit.

    `columns` are (name, Spark DDL type, nullable) or definitions (`"day date generated always as (date(at))"`, of a
    column that is computed); those of the primary key become not nullable. `tablets` is a power
    of two, default from the configuration; a table on the ring has none. `checks` from names to predicates that no row
    may make false (`{"paid": "amount >= 0"}`). `ttl`: a column of type timestamp, and how long after it rows expire, in
    seconds or as a `timedelta` (`set_ttl`). Raises Rejected (invalid-check, invalid-ttl among others), InvalidRequest,
    PlacementImpossible, StorageUnavailable.
    """
    change = TableCreation(
        full_name,
        columns,
        primary_key,
        append_only=append_only,
        tablets=tablets,
        checks=dict(checks) if checks else msgspec.UNSET,
        ttl=msgspec.UNSET if ttl is None else _lifetime(full_name, ttl),
    )
    committed = cluster.commit(change, **options)
    if change.planned:
        event = change.planned[-1]
        return TableCreated(committed, event.table.table_id, event.tablet_count, change.unreachable)
    # An earlier try has made the table.
    metadata = cluster.metadata
    table_id = table_id_of(metadata, committed.request_id)
    tablet_map = metadata.tablets.maps.get(table_id)
    return TableCreated(committed, table_id, tablet_map.count if tablet_map else 0, {})


class KeyspaceCreation(FixedChange[CreateKeyspace], frozen=True):
    """What `create_keyspace` commits; without a strategy it is the one whose options `replication` are."""

    verb: ClassVar[str] = "create keyspace"
    name: str
    replication: Mapping[str, int]
    placement: PlacementKind = PlacementKind.TABLETS
    strategy: str | None = None

    def event(self, call: Call) -> CreateKeyspace:
        _require_free(self.name)
        strategy = strategy_of(self.replication, self.strategy)
        return CreateKeyspace(Keyspace(self.name, self.placement, strategy, dict(self.replication)))


def _require_free(name: str) -> None:
    """Not a rule of the event: logs of before may have such a keyspace, which can be renamed."""
    if name.casefold() == RESERVED:
        raise Rejected(
            Code.RESERVED_NAME,
            f"the name {name!r} is taken by the metadata: Spark reads its tables as {RESERVED}.tablets and the like",
            hint="Choose another name for the keyspace",
        )


class KeyspaceDrop(FixedChange[DropKeyspace], frozen=True):
    """What `drop_keyspace` commits."""

    verb: ClassVar[str] = "drop keyspace"
    name: str

    def event(self, call: Call) -> DropKeyspace:
        return DropKeyspace(self.name)


class KeyspaceRename(FixedChange[RenameKeyspace], frozen=True):
    """What `rename_keyspace` commits."""

    verb: ClassVar[str] = "rename keyspace"
    name: str
    new_name: str

    def event(self, call: Call) -> RenameKeyspace:
        _require_free(self.new_name)
        return RenameKeyspace(self.name, self.new_name)


class TableCreation(Change[CreateTable], frozen=True, dict=True):
    """What `create_table` commits. Its plan asks the volumes which of them answer."""

    verb: ClassVar[str] = "create table"
    full_name: str
    columns: Columns
    primary_key: Sequence[str]
    append_only: bool = False
    tablets: int | None = None
    # No `{}`: that is made anew each time, equals no default, and would stand in the words of every creation.
    checks: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET
    ttl: tuple[str, int] | msgspec.UnsetType = msgspec.UNSET

    @cached_property
    def planned(self) -> list[CreateTable]:
        """The events that it was planned as, the newest last; none when an earlier try was committed."""
        return []

    @cached_property
    def unreachable(self) -> dict[str, str]:
        """The volumes that the newest plan leaves out because they do not answer, each with why."""
        return {}

    def plan(self, metadata: ClusterMetadata, call: Call) -> CreateTable:
        keyspace_name, _, name = self.full_name.partition(".")
        if not name:
            raise InvalidRequest(f"a table is named keyspace.table, {self.full_name!r} has no keyspace")
        keyspace = metadata.keyspace(keyspace_name)
        on_ring = keyspace.placement is PlacementKind.RING
        if on_ring and self.tablets is not None:
            raise InvalidRequest(
                f"keyspace {keyspace_name!r} is on the ring: its tables have no tablets", hint="Leave them out"
            )
        count = call.configuration.tablets.initial_count if self.tablets is None else self.tablets
        tablet_bits(count)
        table = Table(
            table_id=table_id_of(metadata, call.request_id),
            keyspace=keyspace_name,
            name=name,
            columns=_with_keys_not_null(self.columns, self.primary_key),
            primary_key=tuple(self.primary_key),
            append_only=self.append_only,
            # Fewer than were asked for it never gets by itself: an empty table is not merged into one tablet at once.
            options=TabletOptions() if on_ring else TabletOptions(min_count=count),
        )
        check_columns(table.columns, table.primary_key)
        table = with_generated(table)
        if self.checks is not msgspec.UNSET:
            checks = tuple(new_check(check, predicate, table) for check, predicate in self.checks.items())
            table = msgspec.structs.replace(table, checks=checks)
        if self.ttl is not msgspec.UNSET:
            table = msgspec.structs.replace(table, ttl=first_lifetime(table, *self.ttl))
        self.unreachable.clear()
        if on_ring:
            event = CreateTable(table, 0)
            _require_all_answer(call.storage, metadata, event)
        else:
            replicas, silent = _allocated(call.storage, metadata, keyspace, count)
            event = CreateTable(table, count, encode_replicas(replicas))
            self.unreachable.update(silent)
        self.planned.append(event)
        return event

    def preparation(self, metastore: Metastore) -> Preparation[CreateTable]:
        return _ReplicaTables(metastore)


def strategy_of(replication: Mapping[str, int], asked: str | None = None) -> str:
    """The strategy whose options these are. Raises InvalidRequest when another one was `asked` for."""
    fitting = SIMPLE if set(replication) == {SIMPLE_OPTION} else NETWORK_TOPOLOGY
    if asked not in (None, fitting):
        wanted = "one number, as in 3" if asked == SIMPLE else "a number for each datacenter, as in dc1=3"
        given = ", ".join(f"{name}={count}" for name, count in replication.items())
        raise InvalidRequest(
            f"{asked} takes {wanted}, and not {given}", hint="Correct the replication, or leave out the strategy"
        )
    return fitting


def table_id_of(metadata: ClusterMetadata, request_id: str) -> TableId:
    """The id of the table that this request creates in this cluster."""
    return str(uuid.uuid5(TABLES, f"{metadata.identity.cluster_id}/{request_id}"))


def _allocated(
    storage: Storage, metadata: ClusterMetadata, keyspace: Keyspace, count: int
) -> tuple[NDArray[np.int32], dict[str, str]]:
    """Volumes of the tablets of a new table, (tablets, replicas); and those that do not answer, each with why."""
    nodes = [
        node
        for node in metadata.directory.nodes.values()
        if node.state is NodeState.NORMAL
        # One that was declared lost waits for its removal, and nobody opens its storage any more.
        and not node.lost
        and not node.maintenance
        and keyspace.replication.get(node.datacenter, 0) > 0
    ]
    probed = probe(storage, metadata, (volume for node in nodes for volume in node.volumes))
    unreachable = {
        f"{node.name}/{volume.name}": str(probed[volume.volume_id].obstacle)
        for node in nodes
        for volume in node.volumes
        if probed[volume.volume_id].obstacle is not None
    }
    try:
        replicas = allocate_tablets(count, keyspace.replication, _volume_table(metadata, nodes, probed))
    except PlacementImpossible as error:
        if not unreachable:
            raise
        raise StorageUnavailable(
            f"{error.reason}, and these volumes do not answer: {'; '.join(unreachable)}",
            hint="`epochlake status` says why. Bring them back, or replace their nodes, and try again",
        ) from error
    return replicas, unreachable


def _require_all_answer(storage: Storage, metadata: ClusterMetadata, event: CreateTable) -> None:
    """Raise StorageUnavailable naming the volumes of the ring that do not answer: the table cannot do without them."""
    volumes = _replica_volumes(event, metadata)
    probed = probe(storage, metadata, (metadata.directory.volumes[volume] for volume in volumes))
    silent = [
        f"{metadata.directory.node_of_volume[volume].name} ({found.obstacle})"
        for volume, found in probed.items()
        if found.obstacle is not None
    ]
    if silent:
        raise StorageUnavailable(
            f"table {event.table.full_name} needs a replica table on every volume of its ranges, and these do "
            f"not answer: {'; '.join(silent)}",
            hint="Bring them back, or remove or replace their nodes first",
        )


def _with_keys_not_null(columns: Columns, primary_key: Sequence[str]) -> tuple[Column, ...]:
    made: list[Column] = []
    for given in columns:
        if isinstance(given, str):
            made += parse_columns([given], primary_key)
            continue
        column = given if isinstance(given, Column) else Column(*given)
        made.append(msgspec.structs.replace(column, nullable=column.nullable and column.name not in primary_key))
    return tuple(made)


def _volume_table(metadata: ClusterMetadata, nodes: Sequence[Node], probed: Mapping[VolumeId, Probed]) -> VolumeTable:
    rows = [(node, volume) for node in nodes for volume in node.volumes if probed[volume.volume_id].obstacle is None]
    counts = replicas_by_volume(metadata)
    used = []
    for _, volume in rows:
        free = probed[volume.volume_id].free
        used.append(0 if free is None else volume.capacity - min(volume.capacity, free))
    return VolumeTable.of(
        [volume.volume_id for _, volume in rows],
        [node.node_id for node, _ in rows],
        [node.datacenter for node, _ in rows],
        [node.rack for node, _ in rows],
        [volume.capacity for _, volume in rows],
        used,
        [counts.get(volume.volume_id, 0) for _, volume in rows],
    )


def replicas_by_volume(metadata: ClusterMetadata) -> dict[VolumeId, int]:
    """How many tablets have a replica on each volume, by the tablet maps; volumes without one are left out."""
    size = max(metadata.directory.volumes, default=0) + 1
    counts = np.zeros(size, np.int64)
    for tablet_map in metadata.tablets.maps.values():
        replicas = tablet_map.to_array()
        counts += np.bincount(replicas[replicas != NO_REPLICA], minlength=size)
    return {volume: count for volume, count in enumerate(counts.tolist()) if count}


class _ReplicaTables(Preparation[CreateTable]):
    """The replica tables of a new table. They stay when the commit fails: empty tables that no metadata names."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    def prepare(self, event: CreateTable, metadata: ClusterMetadata) -> None:
        if event.table.lifetimes:
            require_right_clock(self._metastore, event.table.full_name)
        _create_replicas(self._metastore.storage, event, metadata)

    def still_prepared(self, event: CreateTable, then: ClusterMetadata, now: ClusterMetadata) -> bool:
        """Whether the replica tables that were made on the metadata `then` are all that the table needs now."""
        if event.attachment:
            return True
        before, after = (one.schema.keyspaces.get(event.table.keyspace) for one in (then, now))
        if now.rings is then.rings and before is after:
            return True
        return set(_replica_volumes(event, now)) <= set(_replica_volumes(event, then))


def _create_replicas(storage: Storage, event: CreateTable, metadata: ClusterMetadata) -> None:
    volumes = _replica_volumes(event, metadata)

    def create(volume: VolumeId) -> None:
        address = ReplicaAddress(
            storage,
            cluster_id=metadata.identity.cluster_id,
            volume_id=volume,
            volume_uri=metadata.directory.volumes[volume].uri,
            directory=event.table.directory,
            table_id=event.table.table_id,
        )
        create_replica(address, event.table, metadata.fence)

    ThreadWorkers(THREADS).run(create, volumes)


def _replica_volumes(event: CreateTable, metadata: ClusterMetadata) -> list[VolumeId]:
    """The volumes on which the table has replica tables: those of its tablets, or those of the ring, but for storage
    that was declared lost.
    """
    if event.attachment:
        volumes = [int(volume) for volume in np.unique(decode_replicas(event.attachment)) if volume != NO_REPLICA]
    else:
        volumes = list(Preview.of(metadata, event).after.ring_volumes(event.table.table_id))
    return [volume for volume in volumes if volume not in metadata.directory.lost]
