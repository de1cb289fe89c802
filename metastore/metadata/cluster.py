"""`ClusterMetadata`: everything that the cluster agrees on, as of one epoch.

It is immutable. `apply` is the only way to the next one, and a pure function of the event, so that replaying a log
gives the same metadata everywhere. Components that an event does not touch are shared between epochs; each knows the
epoch that last changed it. Look-ups by name are built on first use and live as long as the component does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated, Self

import msgspec
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.components.change_streams import CHANGE_STREAMS, ChangeStreams
from epochlake.metastore.metadata.components.component import components_of
from epochlake.metastore.metadata.components.directory import DIRECTORY, Directory
from epochlake.metastore.metadata.components.dropped import DROPPED, Dropped
from epochlake.metastore.metadata.components.features import FEATURES, Features
from epochlake.metastore.metadata.components.identity import IDENTITY
from epochlake.metastore.metadata.components.last_snapshot import LAST_SNAPSHOT
from epochlake.metastore.metadata.components.pins import PINS, Pins
from epochlake.metastore.metadata.components.rings import RINGS, Rings
from epochlake.metastore.metadata.components.schema import SCHEMA, Schema
from epochlake.metastore.metadata.components.switches import SWITCHES
from epochlake.metastore.metadata.components.tablets import TABLETS, Tablets
from epochlake.metastore.metadata.components.topology_requests import REQUESTS, Requests
from epochlake.metastore.metadata.components.upgrade import UPGRADE, Upgrade, UpgradeState
from epochlake.metastore.metadata.features import lacks
from epochlake.metastore.metadata.fence import Fence
from epochlake.metastore.metadata.model import (
    Identity,
    Keyspace,
    Node,
    PlacementKind,
    RequestState,
    Switches,
    Table,
    TableId,
    TabletKey,
    TopologyRequest,
    VolumeId,
)
from epochlake.metastore.metadata.placements import (
    Placement,
    RingPlacements,
    TablePlacements,
    TabletPlacements,
)
from epochlake.metastore.metadata.replication import replication_setting
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.near_names import nearest, told
from epochlake.placement.rejections import Code
from epochlake.placement.showing import html_of

if TYPE_CHECKING:
    from epochlake.metastore.metadata.events import Event


OPEN = (RequestState.PENDING, RequestState.RUNNING, RequestState.CANCELLING)
"""States of a request that has not ended."""


class MetadataShown(msgspec.Struct, frozen=True):
    """What a notebook shows of the metadata."""

    cluster: str
    epoch: int
    there_are: dict[str, int]


class ClusterMetadata(msgspec.Struct, frozen=True):
    """The state of the cluster after `epoch`.

    The fields are the table of components, in the order in which differences are told and digests are made.
    """

    epoch: int
    state_id: str
    identity: Annotated[Identity, IDENTITY]
    directory: Annotated[Directory, DIRECTORY]
    schema: Annotated[Schema, SCHEMA]
    tablets: Annotated[Tablets, TABLETS]
    rings: Annotated[Rings, RINGS]
    requests: Annotated[Requests, REQUESTS]
    switches: Annotated[Switches, SWITCHES]
    last_snapshot_epoch: Annotated[int, LAST_SNAPSHOT]
    change_streams: Annotated[ChangeStreams, CHANGE_STREAMS]
    dropped: Annotated[Dropped, DROPPED]
    features: Annotated[Features, FEATURES]
    pins: Annotated[Pins, PINS]
    upgrade: Annotated[Upgrade, UPGRADE]

    def __repr__(self) -> str:
        told = (f"{name} {count}" for name, count in self._counts())
        return f"<metadata of cluster {self.identity.name} at epoch {self.epoch}: {', '.join(told)}>"

    def _repr_html_(self) -> str:
        return html_of(MetadataShown(self.identity.name, self.epoch, dict(self._counts())))

    def _counts(self) -> Iterator[tuple[str, int]]:
        yield "nodes", len(self.directory.nodes)
        yield "keyspaces", len(self.schema.keyspaces)
        yield "tables", len(self.schema.tables)
        yield "open requests", sum(1 for _ in self.open_requests())

    @classmethod
    def empty(cls) -> Self:
        """The metadata before the first epoch: no cluster yet."""
        return cls(epoch=0, state_id="", **{name: component.empty for name, component in components_of(cls).items()})

    def last_changes(self) -> dict[str, int]:
        """The epoch that last changed each component, by name; 0 where none has."""
        return {name: one.last_change(getattr(self, name)) for name, one in components_of(type(self)).items()}

    def check(self, event: Event) -> None:
        """Raise `Rejected` when the event is not valid on top of this metadata."""
        if self.epoch == 0 and not event.may_be_first:
            raise Rejected(Code.NOT_INITIALISED, "there is no cluster yet", hint="Run `epochlake init` first")
        if not self.switches.changes and not event.allowed_while_paused:
            raise Rejected(
                Code.CHANGES_PAUSED,
                f"changes of the cluster metadata are paused ({self.switches.changes_reason or 'no reason given'})",
                hint="Run `epochlake changes resume` first",
            )
        if self.upgrade.going_on and not self._fits_the_upgrade(event):
            raise Rejected(
                Code.UPGRADING,
                f"the cluster is taken over from elsewhere ({self.upgrade.state}): nothing else is changed meanwhile",
                hint="See `epochlake upgrade status`, and run `epochlake upgrade start` to go on with it",
            )
        self.require_enabled(*event.features_used())
        event.check(self)

    def _fits_the_upgrade(self, event: Event) -> bool:
        """Whether an event may come while a cluster is taken over: it moves that on, or builds what was described."""
        if event.during_upgrade:
            return True
        described = self.upgrade.described
        building = self.upgrade.state is UpgradeState.BUILD_COORDINATOR_STATE
        return building and described is not None and event.builds(described)

    def may_use(self, kind: type[Event]) -> bool:
        """Whether events of a kind may be committed: the features that they belong to are enabled."""
        return not lacks(kind.features_of_kind(), self.features.enabled)

    def require_enabled(self, *names: str) -> None:
        """Raise Rejected (feature-not-enabled) unless the cluster may use these features: members may not know them."""
        lacking = lacks(names, self.features.enabled)
        if lacking:
            raise Rejected(
                Code.FEATURE_NOT_ENABLED,
                f"the cluster does not use the feature {', '.join(lacking)} yet: members of an older version could not "
                "read what comes of it",
                hint=f"Run `epochlake feature enable {' '.join(lacking)}` when every member has been upgraded",
            )

    def apply(self, event: Event, state_id: str) -> ClusterMetadata:
        """The metadata after the next epoch, in which `event` happened. The event must have passed `check`."""
        epoch = self.epoch + 1
        changed = event.apply(self, epoch, state_id)
        return msgspec.structs.replace(changed, epoch=epoch, state_id=state_id)

    @property
    def fence(self) -> Fence:
        """What replicas know this epoch by: nothing that was planned before it lands on a replica fenced at it."""
        return self.fence_at(self.epoch)

    def fence_at(self, epoch: int) -> Fence:
        """What replicas know an earlier epoch by. One of an earlier incarnation counts as the one in which the present
        incarnation began: fences may have been raised to epochs whose loss was accepted then.
        """
        incarnation = self.identity.incarnation
        return Fence(epoch if incarnation == 1 else max(epoch, self.identity.epoch), incarnation)

    def incarnation_since(self, epoch: int) -> int:
        """The lowest incarnation that something of an epoch of the present history can have been done in.

        An epoch after the present incarnation began may have been one before as well, of those whose loss was accepted.
        """
        return self.identity.incarnation if epoch > self.identity.epoch else 1

    # --- looking things up, with errors that say what there is -------------------------------------------------

    def describe(self, volume: VolumeId) -> str:
        """A volume for people: its node and its own name."""
        return f"{self.directory.node_of_volume[volume].name}/{self.directory.volumes[volume].name}"

    def node(self, name: str) -> Node:
        node = self.directory.by_name.get(name)
        if node is None:
            known = self.directory.by_name
            raise Rejected(
                Code.UNKNOWN_NODE,
                f"there is no node {name!r} (nodes: {told(known)})",
                hint=_meant(name, known) or "`epochlake node list` lists them",
            )
        return node

    def require_datacenter(self, name: str | None) -> None:
        """Raises Rejected for the name of a datacenter that no node is in, or was in; None names none."""
        known = {node.datacenter for node in self.directory.nodes.values()}
        if name is not None and name not in known:
            raise Rejected(
                Code.UNKNOWN_DATACENTER,
                f"there is no datacenter {name!r} (datacenters: {told(known)})",
                hint=_meant(str(name), known) or "Name one that has nodes, or none",
            )

    def keyspace(self, name: str) -> Keyspace:
        keyspace = self.schema.keyspaces.get(name)
        if keyspace is None:
            known = self.schema.keyspaces
            raise Rejected(
                Code.UNKNOWN_KEYSPACE,
                f"there is no keyspace {name!r} (keyspaces: {told(known)})",
                hint=self.renamed_hint(name)
                or _meant(name, known)
                or ("`epochlake keyspace list` lists them" if known else "`epochlake keyspace create` makes one"),
            )
        return keyspace

    def table(self, full_name: str) -> Table:
        if not isinstance(full_name, str):
            raise InvalidRequest(f"{full_name!r} is no name of a table", hint="Name it keyspace.table")
        table = self.schema.by_name.get(full_name)
        if table is None:
            raise Rejected(
                Code.UNKNOWN_TABLE,
                f"there is no table {full_name!r} (tables: {told(self.schema.by_name)})",
                hint=self._table_hint(full_name),
            )
        return table

    def _table_hint(self, full_name: str) -> str:
        """What to do where there is no table of this name."""
        known = self.schema.by_name
        keyspace, dot, name = full_name.partition(".")
        if not dot:
            full = [one for one in sorted(known) if one.partition(".")[2] == full_name]
            dropped = {one.table.full_name for one in self.dropped.tables.values() if one.table.name == full_name}
            named = f"Name it keyspace.table{': ' if full else ''}{' or '.join(full[:3])}"
            return named if full else next(filter(None, map(self.restoration_hint, sorted(dropped))), named)
        return (
            self.renamed_hint(keyspace, dot + name)
            or self.restoration_hint(full_name)
            or _meant(full_name, known)
            or ("`epochlake table list` lists them" if known else "`epochlake table create` makes one")
        )

    def restoration_hint(self, full_name: str) -> str:
        """How a table of this name comes back; nothing where none was dropped that can still be restored."""
        there = full_name.partition(".")[0] in self.schema.keyspaces
        if not there or full_name in self.schema.by_name or not self.dropped.named(full_name):
            return ""
        return f"It was dropped: `epochlake table restore {full_name}` brings it back"

    def renamed_hint(self, keyspace: str, of_it: str = "") -> str:
        """What a keyspace that had this name, or something `of_it`, is called now; nothing where none had it."""
        if keyspace in self.schema.keyspaces:
            return ""
        now = next((one.name for one in self.schema.keyspaces.values() if keyspace in one.former_names), None)
        return "" if now is None else f"Keyspace {keyspace} was renamed to {now}: use {now}{of_it}"

    def request(self, request_id: str) -> TopologyRequest:
        request = self.requests.get(request_id)
        if request is None:
            raise Rejected(
                Code.UNKNOWN_REQUEST,
                f"there is no topology request {request_id!r}",
                hint="See `epochlake request list`",
            )
        return request

    def open_requests(self) -> Iterator[TopologyRequest]:
        """Requests that have not ended, oldest first."""
        return (r for r in self.requests.values() if r.state in OPEN)

    def placement(self, table_id: TableId, tablet: int) -> Placement:
        """Where a tablet is read and written now."""
        return TabletPlacements(table_id, self.tablets.maps[table_id], self.tablets.transitions).of_tablet(tablet)

    def placements(self, table_id: TableId) -> TablePlacements:
        """Where every token of a table is read and written now."""
        if self.is_on_ring(table_id):
            return self.ring_placements(self.schema.tables[table_id].keyspace)
        return TabletPlacements(table_id, self.tablets.maps[table_id], self.tablets.transitions)

    def is_on_ring(self, table_id: TableId) -> bool:
        """Whether a table is one of a ring keyspace: it has no tablet map then."""
        return self.schema.keyspaces[self.schema.tables[table_id].keyspace].placement is PlacementKind.RING

    def ring_placements(self, keyspace: str) -> RingPlacements:
        """Where every token of the tables of a ring keyspace is read and written now."""
        return self.rings.placements_for(replication_setting(self, keyspace), self.directory.nodes)

    def ring_volumes(self, table_id: TableId) -> tuple[VolumeId, ...]:
        """All volumes that may hold rows of a ring table now, because they are read or written there; ascending."""
        return self.ring_placements(self.schema.tables[table_id].keyspace).volumes

    def replicas_in_use(self, volumes: set[VolumeId]) -> list[TabletKey]:
        """Tablets that have, or are getting, a replica on any of `volumes`."""
        keys = [
            (table_id, int(tablet))
            for table_id, tablet_map in self.tablets.maps.items()
            for tablet in tablet_map.tablets_on(volumes)
        ]
        known = set(keys)
        keys += [
            key
            for key, transition in self.tablets.transitions.items()
            if key not in known and volumes & {*transition.replicas, *transition.new_replicas}
        ]
        return keys

    def open_sessions(self) -> frozenset[str]:
        """Sessions that work with side effects may go on under (seed 000, "Topology guards")."""
        of_tablets = (t.session for t in self.tablets.transitions.values())
        of_operations = (running.session for running in self.rings.running.values())
        return frozenset(s for s in (*of_tablets, *of_operations) if s is not None)


def _meant(name: object, known: Collection[str]) -> str:
    near = nearest(str(name), known)
    return "" if near is None else f"Did you mean {near!r}?"
