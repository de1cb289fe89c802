"""Events of tablets: beginning, advancing and ending transitions, many tablets in one epoch.

INV-TABL-2 (at most one transition for each tablet) is the condition of `StartTransitions`; the order of the stages and
their way back are those of `placement/tablets/transitions.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.model import Node, NodeState, TableId, TabletKey, Transition, VolumeId
from epochlake.metastore.metadata.rules import has_tags
from epochlake.placement.rejections import Code
from epochlake.placement.showing import plural
from epochlake.placement.tablets.transitions import (
    OUTCOME_NEW,
    OUTCOME_OLD,
    SESSION_STAGES,
    Kind,
    Stage,
    may_follow,
)

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class NewTransition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica of a tablet that is to be replaced: `leaving` by `pending`."""

    table_id: TableId
    tablet: int
    kind: Kind
    leaving: VolumeId
    pending: VolumeId
    reason: str = ""


class StartTransitions(Event, frozen=True):
    """Tablets begin to move, in the stage `allow_write_both_read_old`."""

    transitions: tuple[NewTransition, ...]

    def check(self, metadata: ClusterMetadata) -> None:
        require_each_once([(new.table_id, new.tablet) for new in self.transitions], "transition")
        for new in self.transitions:
            self._check_one(metadata, new)

    def _check_one(self, metadata: ClusterMetadata, new: NewTransition) -> None:
        name, replicas = require_at_rest(metadata, new.table_id, new.tablet)
        require(new.leaving in replicas, Code.NOT_A_REPLICA, f"volume {new.leaving} is no replica of {name}")
        target = require_new_replica(metadata, new.table_id, new.pending, replicas, name, new.leaving)
        source = metadata.directory.node_of_volume[new.leaving]
        require(
            target.datacenter == source.datacenter,
            Code.WRONG_DATACENTER,
            f"{name} cannot go from datacenter {source.datacenter} to {target.datacenter}",
        )
        require(
            (new.kind is Kind.INTRANODE_MIGRATION) == (source.node_id == target.node_id),
            Code.WRONG_KIND,
            f"{name}: a {new.kind} from node {source.name!r} to node {target.name!r} cannot be",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        begun = []
        for new in self.transitions:
            old = metadata.tablets.maps[new.table_id].replicas(new.tablet)
            after = tuple(new.pending if replica == new.leaving else replica for replica in old)
            begun.append(
                first_stage(
                    (new.table_id, new.tablet), new.kind, (old, after), (new.leaving, new.pending), new.reason, epoch
                )
            )
        return with_transitions(metadata, begun, epoch)

    def summary(self) -> str:
        first = self.transitions[0]
        why = f": {first.reason}" if first.reason else ""
        return f"the move of {plural(len(self.transitions), 'tablet')} begins ({first.kind}{why})"


class StageChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tablet goes from a stage to another. `session` is given where the stage has one, `error` on the way back."""

    table_id: TableId
    tablet: int
    from_stage: Stage
    to_stage: Stage
    session: str | None = None
    error: str | None = None


class AdvanceTransitions(Event, frozen=True):
    """Tablets go to their next stages. Leaving a stage closes its session."""

    changes: tuple[StageChange, ...]

    def check(self, metadata: ClusterMetadata) -> None:
        require_each_once([(change.table_id, change.tablet) for change in self.changes], "stage change")
        for change in self.changes:
            stage = _stage_of(metadata, (change.table_id, change.tablet))
            require(
                stage is change.from_stage,
                Code.STALE_PLAN,
                f"tablet {change.tablet} of {change.table_id} is in stage {stage}, not {change.from_stage}",
            )
            require(
                may_follow(change.from_stage, change.to_stage),
                Code.WRONG_STAGE,
                f"stage {change.to_stage} cannot follow {change.from_stage}",
            )
            require(
                (change.session is not None) == (change.to_stage in SESSION_STAGES),
                Code.WRONG_SESSION,
                f"stage {change.to_stage} {'needs' if change.to_stage in SESSION_STAGES else 'has no'} session",
            )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        transitions = dict(metadata.tablets.transitions)
        for change in self.changes:
            key = (change.table_id, change.tablet)
            transitions[key] = msgspec.structs.replace(
                transitions[key],
                stage=change.to_stage,
                session=change.session,
                error=change.error or transitions[key].error,
                epoch=epoch,
            )
        tablets = msgspec.structs.replace(metadata.tablets, transitions=transitions, epoch=epoch)
        return msgspec.structs.replace(metadata, tablets=tablets)

    def summary(self) -> str:
        first = self.changes[0]
        why = f" because {first.error}" if first.error else ""
        return f"{plural(len(self.changes), 'tablet')}: {first.from_stage} → {first.to_stage}{why}"


class FinishTransitions(Event, frozen=True):
    """Transitions end: from `end_migration` with the new replicas, from `revert_migration` with the old ones."""

    tablets: tuple[TabletKey, ...]

    def check(self, metadata: ClusterMetadata) -> None:
        require_each_once(self.tablets, "tablet")
        for key in self.tablets:
            stage = _stage_of(metadata, key)
            require(
                stage in OUTCOME_NEW | OUTCOME_OLD,
                Code.WRONG_STAGE,
                f"tablet {key[1]} of {key[0]} is in stage {stage}: its transition cannot end there",
            )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        transitions = dict(metadata.tablets.transitions)
        moved: dict[TableId, dict[int, tuple[VolumeId, ...]]] = defaultdict(dict)
        for key in self.tablets:
            transition = transitions.pop(key)
            if transition.stage in OUTCOME_NEW:
                moved[transition.table_id][transition.tablet] = transition.new_replicas
        maps = dict(metadata.tablets.maps)
        for table_id, replicas in moved.items():
            maps[table_id] = maps[table_id].with_replicas(replicas, epoch)
        tablets = msgspec.structs.replace(metadata.tablets, maps=maps, transitions=transitions, epoch=epoch)
        return msgspec.structs.replace(metadata, tablets=tablets)

    def summary(self) -> str:
        return f"the transition of {plural(len(self.tablets), 'tablet')} ends"


def require_each_once(tablets: Sequence[TabletKey], what: str) -> None:
    """That an event names some tablets, and none of them twice. Raises Rejected."""
    require(bool(tablets), Code.NOTHING_TO_DO, f"no {what} was given")
    require(len(set(tablets)) == len(tablets), Code.TRANSITION_IN_THE_WAY, "a tablet is named twice")


def first_stage(
    tablet: TabletKey,
    kind: Kind,
    replicas: tuple[tuple[VolumeId, ...], tuple[VolumeId, ...]],
    ends: tuple[VolumeId | None, VolumeId],
    reason: str,
    epoch: int,
) -> Transition:
    """A transition that begins: `replicas` before and after, `ends` the one that goes, if any, and the one that gets
    rows.
    """
    return Transition(
        table_id=tablet[0],
        tablet=tablet[1],
        kind=kind,
        stage=Stage.ALLOW_WRITE_BOTH_READ_OLD,
        replicas=replicas[0],
        new_replicas=replicas[1],
        leaving=ends[0],
        pending=ends[1],
        reason=reason,
        started_epoch=epoch,
        epoch=epoch,
    )


def with_transitions(metadata: ClusterMetadata, begun: Iterable[Transition], epoch: int) -> ClusterMetadata:
    """The metadata with transitions that begin."""
    transitions = {**metadata.tablets.transitions, **{one.key: one for one in begun}}
    tablets = msgspec.structs.replace(metadata.tablets, transitions=transitions, epoch=epoch)
    return msgspec.structs.replace(metadata, tablets=tablets)


def require_at_rest(metadata: ClusterMetadata, table_id: TableId, tablet: int) -> tuple[str, tuple[VolumeId, ...]]:
    """A tablet's name for people, and its replicas, when there is one and it is in no transition. Raises Rejected."""
    tablet_map = metadata.tablets.maps.get(table_id)
    require(tablet_map is not None, Code.UNKNOWN_TABLE, f"there is no table with id {table_id}")
    assert tablet_map is not None
    name = f"tablet {tablet} of {metadata.schema.tables[table_id].full_name}"
    require(0 <= tablet < tablet_map.count, Code.UNKNOWN_TABLET, f"there is no {name}")
    current = metadata.tablets.transitions.get((table_id, tablet))
    require(
        current is None,
        Code.TRANSITION_IN_THE_WAY,
        f"{name} is in transition already ({current.kind if current else ''}, {current.stage if current else ''})",
    )
    return name, tablet_map.replicas(tablet)


def require_new_replica(
    metadata: ClusterMetadata,
    table_id: TableId,
    pending: VolumeId,
    replicas: tuple[VolumeId, ...],
    name: str,
    leaving: VolumeId | None = None,
) -> Node:
    """The node of a volume that is to be a replica beside those of `replicas` that stay. Raises Rejected."""
    directory = metadata.directory
    require(pending not in replicas, Code.IS_A_REPLICA, f"volume {pending} is a replica of {name} already")
    target = directory.node_of_volume.get(pending)
    require(target is not None, Code.UNKNOWN_VOLUME, f"there is no volume {pending}")
    assert target is not None
    require(
        target.state is NodeState.NORMAL,
        Code.WRONG_STATE,
        f"{name} cannot go to node {target.name!r}, which is {target.state}",
    )
    require(not target.lost, Code.LOST, f"{name} cannot go to node {target.name!r}: its storage is declared lost")
    if leaving is None or directory.node_of_volume[leaving].node_id != target.node_id:
        _require_may_get(metadata, table_id, target, name)
    staying = {directory.node_of_volume[replica].node_id for replica in replicas if replica != leaving}
    require(
        target.node_id not in staying,
        Code.REPLICA_ON_NODE,
        f"{name} has a replica on node {target.name!r} already",
    )
    return target


def _require_may_get(metadata: ClusterMetadata, table_id: TableId, target: Node, name: str) -> None:
    """That a node may get a replica: it is not in maintenance, and has the tags that the table asks for."""
    require(
        not target.maintenance,
        Code.IN_MAINTENANCE,
        f"{name} cannot go to node {target.name!r}, which is in maintenance: it gets no new replicas",
    )
    table = metadata.schema.tables[table_id]
    require(
        has_tags(table, target),
        Code.PLACEMENT_RULE,
        f"{name} cannot go to node {target.name!r}: its table asks for nodes with the tags "
        f"{', '.join(table.options.tags)}",
    )


def _stage_of(metadata: ClusterMetadata, key: TabletKey) -> Stage:
    transition = metadata.tablets.transitions.get(key)
    require(transition is not None, Code.NO_TRANSITION, f"tablet {key[1]} of {key[0]} is not in transition")
    assert transition is not None
    return transition.stage
