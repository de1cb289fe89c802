"""What the cluster metadata is made of: frozen structs, each carrying the epoch that last changed it.

A *replica* is a volume number. Volumes are numbered once, cluster wide, and never reused, so that a tablet map is a
plain integer array and a moved node or a renamed host changes no map.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from epochlake.placement.ring.state import NodeState
from epochlake.placement.tablets.transitions import Kind, Stage

NodeId = int
VolumeId = int
TableId = str
TabletKey = tuple[TableId, int]


class RequestKind(StrEnum):
    """Topology requests, by the names of seed 000; `move` is seed 002's.

    `keyspace_rf_change` and `check_and_repair_cdc_streams` name no node. The second one is global: it names nothing.
    """

    JOIN = "join"
    LEAVE = "leave"
    REPLACE = "replace"
    REMOVE = "remove"
    REBUILD = "rebuild"
    MOVE = "move"
    KEYSPACE_RF_CHANGE = "keyspace_rf_change"
    CHECK_AND_REPAIR_CDC_STREAMS = "check_and_repair_cdc_streams"


class RequestState(StrEnum):
    """`cancelling`: what it had begun is being taken back, a step at a time."""

    PENDING = "pending"
    RUNNING = "running"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class PlacementKind(StrEnum):
    """What places the tables of a keyspace: tablets, which the coordinator balances, or the ring of tokens."""

    TABLETS = "tablets"
    RING = "ring"


class Identity(msgspec.Struct, frozen=True):
    """The cluster tag of seed 004 (a name for people, an id that is unique) and the incarnation of seed 003."""

    name: str
    cluster_id: str
    incarnation: int = 1
    epoch: int = 1


class Volume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place on a node that replicas are stored in: `capacity` in bytes."""

    volume_id: VolumeId
    name: str
    uri: str
    capacity: int


class Node(msgspec.Struct, frozen=True):
    """`tokens` are those that it owns now, ascending.

    What operators say of it: in `maintenance` it keeps its replicas and gets no new ones; `weight` multiplies the
    capacity of its volumes for the balancer; `tags` are what placement rules ask for. `lost`: its storage is gone for
    good, from the epoch on in which it was asked to be removed or replaced.
    """

    node_id: NodeId
    name: str
    host_id: str
    datacenter: str
    rack: str
    volumes: tuple[Volume, ...]
    state: NodeState = NodeState.NONE
    tokens: tuple[int, ...] = ()
    replaces: NodeId | None = None
    replaced_by: NodeId | None = None
    epoch: int = 0
    maintenance: bool = False
    weight: float = 1.0
    tags: tuple[str, ...] = ()
    lost: bool = False


class Keyspace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`replication`: replicas per datacenter (NetworkTopologyStrategy), or `replication_factor` (SimpleStrategy).

    `before`: of a keyspace on tablets, what it was until the last alteration, while not every tablet has the new one.
    `former`: the names that it had and nobody else has got by renaming since, the oldest first. `named`: the epoch that
    gave it its name, where that is not the one that it was made with.
    """

    name: str
    placement: PlacementKind
    strategy: str
    replication: dict[str, int]
    epoch: int = 0
    before: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    former: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    named: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def former_names(self) -> tuple[str, ...]:
        """The names that it had before."""
        return () if self.former is msgspec.UNSET else self.former

    @property
    def name_since(self) -> int:
        """An epoch since which it has had its name; 0 where that is older than its replication."""
        return 0 if self.named is msgspec.UNSET else self.named


class StructField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field of a struct within a column: its number, which no column and no other field of the table ever has, and
    its name in files, for ever. `added`: the struct got it later, so that there may be files without it.
    """

    field_id: int
    stored_as: str
    added: bool = False
    comment: str | msgspec.UnsetType = msgspec.UNSET


class Generated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a column always is: `expression`, as text over the columns numbered `columns` of the same row."""

    expression: str
    columns: tuple[int, ...] = ()


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`type` is a Spark SQL type as DDL (`bigint`, `decimal(10,2)`, `array<string>`, …).

    `column_id` is its number in its table, never used again; of a table that was never altered it is not said, and
    columns are numbered by their places. `stored_as` is its name in files, for ever: where it is not said, its name.
    `default`: what rows have that were written before there was the column, and those that do not give it, as text.
    `fields`: the fields of all structs in `type`, in the order in which they begin there; not said until one changes,
    and then they are called in files as they are here (struct_fields.py). `generated`: of a column that is computed.
    """

    name: str
    type: str
    nullable: bool = True
    column_id: int | msgspec.UnsetType = msgspec.UNSET
    stored_as: str | msgspec.UnsetType = msgspec.UNSET
    default: str | msgspec.UnsetType = msgspec.UNSET
    comment: str | msgspec.UnsetType = msgspec.UNSET
    fields: tuple[StructField, ...] | msgspec.UnsetType = msgspec.UNSET
    generated: Generated | msgspec.UnsetType = msgspec.UNSET

    @property
    def stored_name(self) -> str:
        """Its name in data files and in replica tables."""
        return self.name if self.stored_as is msgspec.UNSET else self.stored_as


class DroppedColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column that a table had until `epoch`. Its name in files is never given to another one."""

    column_id: int
    name: str
    stored_as: str
    epoch: int


class DroppedField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field that a column had until `epoch`. `name` was its path then; `stored_path` are the names in files from the
    column to it, which no other field ever gets.
    """

    column_id: int
    name: str
    stored_path: tuple[str, ...]
    epoch: int


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must not be false of any row: `predicate`, as text over the columns numbered `columns`, for ever the same.

    `epoch`: since when it is there, given by the committer. `validated`: the epoch as of which every row was looked at,
    those from before it too; where it is not said, rows from before may have it otherwise.
    """

    name: str
    predicate: str
    columns: tuple[int, ...]
    epoch: int = 0
    validated: int | msgspec.UnsetType = msgspec.UNSET


class TimeToLive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From `since` on (microseconds since 1970), until the next one begins, rows expire so many `seconds` after the
    moment that they have in the column with this number. `seconds` None: no further ones do.
    """

    column_id: int
    seconds: int | None
    since: int


class TabletOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the tablets of a table are sized, and where they may go; None: the default of the configuration.

    `target_bytes` of one replica of a tablet; `min_count` and `max_count` of tablets. Its replicas go only to nodes
    that have all of `tags`, and to no node that holds a replica of a table in `apart_from` (table ids).
    """

    target_bytes: int | None = None
    min_count: int = 1
    max_count: int | None = None
    tags: tuple[str, ...] = ()
    apart_from: tuple[str, ...] = ()


class CompactionOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a table is compacted; None: as everywhere.

    `by_itself`: whether the coordinator does it. `hours`: when it does, as in `22:00-06:00`; empty for all day.
    `tombstone_grace_seconds`: how long deletes are remembered at least.
    """

    by_itself: bool | None = None
    hours: str | None = None
    tombstone_grace_seconds: float | None = None


class Alterations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of the columns of a table: the `epoch` of the last change, how many columns it was `created` with,
    the highest number that a column or a field has had, and those that were dropped.
    """

    epoch: int
    created: int
    last_column_id: int
    dropped: tuple[DroppedColumn, ...] = ()
    dropped_fields: tuple[DroppedField, ...] | msgspec.UnsetType = msgspec.UNSET


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table. `version` is the state id of the last change of its schema, assigned by the committer (seed 001)."""

    table_id: TableId
    keyspace: str
    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    append_only: bool = False
    version: str = ""
    epoch: int = 0
    options: TabletOptions = TabletOptions()
    # Not stored where nothing was said: states without it keep the bytes that they had.
    compaction: CompactionOptions | msgspec.UnsetType = msgspec.UNSET
    history_seconds: float | msgspec.UnsetType = msgspec.UNSET
    alterations: Alterations | msgspec.UnsetType = msgspec.UNSET
    checks: tuple[Check, ...] | msgspec.UnsetType = msgspec.UNSET
    stored_in: str | msgspec.UnsetType = msgspec.UNSET
    ttl: tuple[TimeToLive, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def directory(self) -> str:
        """The directory of each volume that its replicas are in: the name that its keyspace had when it was made."""
        return self.keyspace if self.stored_in is msgspec.UNSET else self.stored_in

    @property
    def lifetimes(self) -> tuple[TimeToLive, ...]:
        """The times to live that it has had, the last one at the end (time_to_live.py says what they mean)."""
        return () if self.ttl is msgspec.UNSET else self.ttl

    @property
    def checked(self) -> tuple[Check, ...]:
        """What must not be false of any row."""
        return () if self.checks is msgspec.UNSET else self.checks

    @property
    def keeps_history_seconds(self) -> float:
        """How long what compaction has replaced is kept for reads as of an earlier time; 0: until vacuum comes."""
        return 0.0 if self.history_seconds is msgspec.UNSET else self.history_seconds

    @property
    def compacting(self) -> CompactionOptions:
        """What was said of its compaction."""
        return CompactionOptions() if self.compaction is msgspec.UNSET else self.compaction

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.name}"

    @property
    def numbered(self) -> tuple[Column, ...]:
        """The columns with their numbers and their names in files: those that were said, else their places, from 1."""
        if self.alterations is not msgspec.UNSET:
            return self.columns
        return tuple(
            msgspec.structs.replace(column, column_id=number, stored_as=column.stored_name)
            for number, column in enumerate(self.columns, 1)
        )

    @property
    def generated(self) -> tuple[Column, ...]:
        """The columns that are computed, with their numbers."""
        return tuple(column for column in self.numbered if column.generated is not msgspec.UNSET)

    @property
    def dropped(self) -> tuple[DroppedColumn, ...]:
        """The columns that it had once."""
        return () if self.alterations is msgspec.UNSET else self.alterations.dropped

    @property
    def dropped_fields(self) -> tuple[DroppedField, ...]:
        """The fields that structs in its columns had once."""
        if self.alterations is msgspec.UNSET or self.alterations.dropped_fields is msgspec.UNSET:
            return ()
        return self.alterations.dropped_fields

    def may_be_left_out(self, column: Column) -> bool:
        """Whether rows may be written without a column: who has written all the time need not know of a new one."""
        if column.default is not msgspec.UNSET or column.generated is not msgspec.UNSET:
            return True
        created = len(self.columns) if self.alterations is msgspec.UNSET else self.alterations.created
        return column.nullable and column.column_id is not msgspec.UNSET and column.column_id > created

    @property
    def last_column_id(self) -> int:
        """The highest number that a column of it, or a field within one, has had."""
        return len(self.columns) if self.alterations is msgspec.UNSET else self.alterations.last_column_id


class Transition(msgspec.Struct, frozen=True):
    """A tablet on its way from `replicas` to `new_replicas` (seed 000, "Tablet transitions").

    `leaving` is the replica that goes (None when nothing goes), `pending` the one that comes. Where none comes it is
    one of `replicas` that stay, which all take over what the leaving one has. `session` is the open session of the
    current stage's side effects, None where the stage has none.
    """

    table_id: TableId
    tablet: int
    kind: Kind
    stage: Stage
    replicas: tuple[VolumeId, ...]
    new_replicas: tuple[VolumeId, ...]
    leaving: VolumeId | None
    pending: VolumeId
    session: str | None = None
    reason: str = ""
    error: str | None = None
    started_epoch: int = 0
    epoch: int = 0

    @property
    def key(self) -> TabletKey:
        return (self.table_id, self.tablet)

    @property
    def comes(self) -> bool:
        """Whether `pending` is a new replica."""
        return self.pending not in self.replicas

    @property
    def receiving(self) -> tuple[VolumeId, ...]:
        """The replicas that rows are streamed to: the one that comes or, where none comes, all that stay.

        One of these would not be enough. Replicas that go one after the other, each with a row that one and the same
        other one has, would leave it on less than a majority of the rest.
        """
        return (self.pending,) if self.comes else tuple(dict.fromkeys((self.pending, *self.new_replicas)))


class TopologyRequest(msgspec.Struct, frozen=True):
    """A request for a change of the topology; kept after its end, until many are done (`ForgetRequests`).

    `tokens` are those asked for by a join, a replace or a move (empty: to be allocated, or those of the replaced node);
    `source_datacenter` is where a rebuild streams from (empty: anywhere). A `keyspace_rf_change` has node 0, a
    `keyspace` and the `strategy` and `replication` that it is to have. `force`: go below what replication asks for.
    While `paused` nothing new is done for it.
    """

    request_id: str
    kind: RequestKind
    node_id: NodeId
    state: RequestState = RequestState.PENDING
    reason: str = ""
    detail: str | None = None
    requested_epoch: int = 0
    started_epoch: int | None = None
    epoch: int = 0
    tokens: tuple[int, ...] = ()
    source_datacenter: str = ""
    keyspace: str = ""
    strategy: str = ""
    replication: dict[str, int] = {}
    force: bool = False
    paused: bool = False


class Switches(msgspec.Struct, frozen=True):
    """What is allowed now. `changes` off: nothing may be committed but what switches it on again, and snapshots."""

    changes: bool = True
    changes_reason: str = ""
    balancing: bool = True
    balancing_reason: str = ""
    epoch: int = 0
