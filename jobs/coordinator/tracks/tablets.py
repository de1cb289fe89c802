"""The track of tablets: each transition is moved on through its stages, and new ones begin when there is room.

Fences first, then the side effects of every stage, then one commit of all the stages that may follow: many tablets in
one epoch (seed 000, "Tablet transitions").
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from epochlake.jobs.coordinator.effects.tablets import (
    clean_up_leaving,
    clean_up_target,
    prepare_pending,
    receiving,
    stream,
    way,
)
from epochlake.jobs.coordinator.errors import SideEffectFailed
from epochlake.jobs.coordinator.fencing import Barrier, Fences, Patience, barrier_of, is_gone
from epochlake.jobs.coordinator.loads import Meter, measure_loads
from epochlake.jobs.coordinator.tracks.track import Tally
from epochlake.jobs.replicas.store import Store
from epochlake.jobs.replicas.streaming import Copier
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.committing.committer import Planner
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AdvanceTransitions,
    ChangeReplicas,
    Event,
    FinishTabletReplication,
    FinishTransitions,
    StageChange,
    StartTransitions,
)
from epochlake.metastore.metadata.model import TableId, TabletKey, Transition, VolumeId
from epochlake.metastore.metadata.replica_numbers import altering, tables_altering, tablets_left
from epochlake.metastore.planning.balancing import Loads, next_transitions
from epochlake.metastore.planning.streams import BEFORE_STREAMED, StreamLimits
from epochlake.metastore.planning.tablet_replication import next_replica_changes
from epochlake.placement.rejections import Code
from epochlake.placement.tablets.transitions import BACKWARD, FORWARD, SESSION_STAGES, Stage, goes_back

logger = logging.getLogger(__name__)

STREAMS = 4
"""Side effects that run at the same time in one coordinator."""

FAILURES_BEFORE_ROLLBACK = 3
"""How often a side effect on the pending replica fails before the transition is taken back."""

AVOIDED_SECONDS = 60.0
"""How long a volume is no target after a transition to it was taken back: else it would be tried again at once."""


class TabletTrack:
    """Transitions of tablets, from their beginning to their end.

    `errors`: why the side effects of a tablet in transition last failed. `held` gives tables that are not balanced now.
    """

    def __init__(self, cluster: Store, copier: Copier, fences: Fences, tally: Tally) -> None:
        self._cluster = cluster
        self._settings = cluster.configuration.coordinator
        self._copier = copier
        self._fences = fences
        self._tally = tally
        self._meter = Meter(partial(measure_loads, cluster.storage))
        self._failures: Counter[TabletKey] = Counter()
        self._patience = Patience(self._settings)
        self._avoided: dict[VolumeId, tuple[float, str]] = {}
        self.held: Callable[[], frozenset[TableId]] = frozenset
        self.errors: dict[TabletKey, str] = {}
        self.blocked: list[str] = []

    def advance(self, metadata: ClusterMetadata) -> bool:
        progressed = self._advance_transitions(metadata)
        progressed = self._finish_replication(self._cluster.catch_up()) or progressed
        return self._begin_transitions(self._cluster.catch_up()) or progressed

    def idle(self, metadata: ClusterMetadata) -> bool:
        return not metadata.tablets.transitions and not altering(metadata)

    def _advance_transitions(self, metadata: ClusterMetadata) -> bool:
        transitions = list(metadata.tablets.transitions.values())
        if not transitions:
            return False
        self._prepare(metadata, [t for t in transitions if t.stage is Stage.ALLOW_WRITE_BOTH_READ_OLD and t.comes])
        self._fences.raise_for(metadata, map(barrier_of, transitions))
        found = ThreadWorkers(STREAMS).run(
            lambda group: self._next_stages(metadata, group), _groups(metadata, transitions)
        )
        changes = [change for group in found for change in group]
        self._patience.tell(self._cluster.commit)
        if changes:
            self._cluster.commit(advance_unless_moved(metadata, changes))
        ended = [
            transition
            for transition in self._cluster.metadata.tablets.transitions.values()
            if FORWARD[transition.stage] is None
        ]
        if ended:
            self._cluster.commit(FinishTransitions(tuple(t.key for t in ended)))
            self._tally.tablets_moved += sum(t.stage is Stage.END_MIGRATION for t in ended)
            self._tally.tablets_reverted += sum(t.stage is Stage.REVERT_MIGRATION for t in ended)
            for transition in ended:
                self._failures.pop(transition.key, None)
                if transition.stage is Stage.REVERT_MIGRATION:
                    until = time.monotonic() + AVOIDED_SECONDS
                    self._avoided[transition.pending] = (until, transition.error or "")
        return bool(changes or ended)

    def _prepare(self, metadata: ClusterMetadata, transitions: Sequence[Transition]) -> None:
        """Prepare pending replicas; each place by itself, because creating a table twice at once is wasted work."""
        by_place: dict[tuple[str, int], list[Transition]] = defaultdict(list)
        for transition in transitions:
            by_place[(transition.table_id, transition.pending)].append(transition)

        def attempt(group: list[Transition]) -> None:
            try:
                prepare_pending(self._cluster.storage, metadata, group, self._cluster.receipts)
            except SideEffectFailed as failure:
                if len(group) > 1:
                    for transition in group:
                        attempt([transition])
                else:
                    self._fail(metadata, group[0], failure)
            else:
                for transition in group:
                    self._failures.pop(transition.key, None)

        ThreadWorkers(STREAMS).run(attempt, by_place.values())

    def _next_stages(self, metadata: ClusterMetadata, group: Sequence[Transition]) -> list[StageChange]:
        """Do what the stage of a group asks for; the stages that may follow. What has to wait is not among them.

        What cannot be done of several together is done of each by itself, so that none waits for another.
        """
        stage = group[0].stage
        if FORWARD[stage] is None:
            return []
        back = [one for one in group if stage in BACKWARD and self._should_go_back(metadata, one)]
        on = [one for one in group if one not in back]
        try:
            ready = self._do(metadata, stage, on) if on else []
        except SideEffectFailed as failure:
            if len(on) > 1:
                logger.info("%d tablets in %s, each by itself now: %s", len(on), stage, failure)
                return [change for one in group for change in self._next_stages(metadata, [one])]
            self._fail(metadata, on[0], failure)
            ready = []
        for one in ready:
            self._failures.pop(one.key, None)
        changes = [self._way_back(metadata, one) for one in back]
        for one in ready:
            turned = stage is Stage.WRITE_BOTH_READ_OLD and one.error is not None
            changes.append(self._change(one, BACKWARD[stage] if turned else FORWARD[stage]))
        return changes

    def _do(self, metadata: ClusterMetadata, stage: Stage, group: Sequence[Transition]) -> Sequence[Transition]:
        """Do what a stage asks for; those for which it is done. Raises SideEffectFailed."""
        cluster = self._cluster
        match stage:
            case (
                Stage.ALLOW_WRITE_BOTH_READ_OLD | Stage.WRITE_BOTH_READ_OLD | Stage.WRITE_BOTH_READ_NEW | Stage.USE_NEW
            ):
                return [one for one in group if self._is_prepared(one) and self._acknowledged(metadata, one)]
            case Stage.STREAMING:
                self._tally.bytes_streamed += stream(
                    cluster.storage, metadata, group, self._copier, cluster.ledger, cluster.receipts
                )
            case Stage.CLEANUP:
                clean_up_leaving(cluster.storage, metadata, group)
            case Stage.CLEANUP_TARGET:
                for one in group:
                    clean_up_target(cluster.storage, metadata, one)
        return group

    def _is_prepared(self, transition: Transition) -> bool:
        """Whether a replica that comes is there to be fenced; those that only take over rows always are."""
        begins = transition.stage is Stage.ALLOW_WRITE_BOTH_READ_OLD and transition.comes
        return not (begins and self._failures[transition.key])

    def _acknowledged(self, metadata: ClusterMetadata, transition: Transition) -> bool:
        """Whether the progress barrier of the stage is passed; it relaxes with time, never below what safety needs.

        On the way there the replicas that rows are streamed to must be among the fenced ones: it is where closed
        sessions are closed. By `use_new` they are, and count like any other.
        """
        barrier = _barrier(metadata, transition)
        name = self._name(metadata, transition)
        if self._patience.passed(self._fences, metadata, (transition.key, transition.stage), barrier, name):
            return True
        missing = self._fences.missing(metadata, barrier)
        if barrier.required <= self._fences.fenced(barrier):
            self.blocked.append(f"{name} waits for fences in {transition.stage}: {missing}")
        else:
            self._fail(metadata, transition, SideEffectFailed(missing))
        return False

    def _fenced(self, transition: Transition) -> set[VolumeId]:
        return {volume for _, volume in self._fences.fenced(barrier_of(transition))}

    def _should_go_back(self, metadata: ClusterMetadata, transition: Transition) -> bool:
        if transition.error is not None:
            return False
        if is_gone(metadata, transition.pending):
            return True
        if self._failures[transition.key] < FAILURES_BEFORE_ROLLBACK:
            return False
        if transition.stage is not Stage.WRITE_BOTH_READ_NEW:
            return True
        fenced = self._fenced(transition)
        return goes_back(
            sum(volume not in fenced for volume in transition.replicas),
            sum(volume not in fenced for volume in transition.new_replicas),
        )

    def _way_back(self, metadata: ClusterMetadata, transition: Transition) -> StageChange:
        error = self.errors.pop(transition.key, None) or self._fences.missing(metadata, barrier_of(transition))
        self._failures.pop(transition.key, None)
        return self._change(transition, BACKWARD[transition.stage], error=error or "its side effects kept failing")

    def _begin_transitions(self, metadata: ClusterMetadata) -> bool:
        if not metadata.tablets.maps or not self._has_room(metadata):
            return False
        avoided = self.avoided()
        # What somebody has asked for is planned on the loads of now.
        asked = any(metadata.open_requests())
        measured = self._meter.loads(metadata, object() if asked else metadata.epoch)
        loads = msgspec.structs.replace(measured, avoided=frozenset(avoided), held=self.held())
        # What is to have other replicas is not balanced before it has them: each place would be chosen twice.
        balanced = msgspec.structs.replace(loads, held=loads.held | tables_altering(metadata))
        new, stuck = next_transitions(metadata, balanced, StreamLimits.of(self._settings))
        self.blocked += stuck
        if not new:
            if self._begin_replica_changes(metadata, loads):
                return True
            if asked:
                # Nothing else says why, when the only targets there are have just failed.
                self.blocked += [
                    f"no tablet goes to {metadata.describe(volume)} for a while, the last one was taken back: {error}"
                    for volume, error in avoided.items()
                ]
            return False
        self._cluster.commit(StartTransitions(tuple(new)), reason=new[0].reason)
        self._begin_replica_changes(self._cluster.metadata, loads)
        return True

    def _begin_replica_changes(self, metadata: ClusterMetadata, loads: Loads) -> bool:
        """Bring tablets of keyspaces whose replication was altered a replica closer to it."""
        changes, stuck = next_replica_changes(metadata, loads, StreamLimits.of(self._settings))
        self.blocked += stuck
        if changes:
            self._cluster.commit(ChangeReplicas(tuple(changes)), reason=changes[0].reason)
        return bool(changes)

    def _finish_replication(self, metadata: ClusterMetadata) -> bool:
        """Say of keyspaces that all their tablets have the replication that was asked for."""
        done = [one.name for one in altering(metadata) if not tablets_left(metadata, one.name)]
        for name in done:
            self._cluster.commit(FinishTabletReplication(name))
        return bool(done)

    def avoided(self) -> dict[VolumeId, str]:
        """Volumes that a transition to was taken back a moment ago, and why."""
        now = time.monotonic()
        return {volume: error for volume, (until, error) in self._avoided.items() if until > now}

    def _has_room(self, metadata: ClusterMetadata) -> bool:
        """Whether more should begin now: measuring loads is only worth it when what was begun has been streamed."""
        streaming = any(t.stage in BEFORE_STREAMED for t in metadata.tablets.transitions.values())
        return not streaming and (
            any(metadata.open_requests()) or metadata.switches.balancing or bool(altering(metadata))
        )

    def _change(self, transition: Transition, to_stage: Stage | None, *, error: str | None = None) -> StageChange:
        assert to_stage is not None
        return StageChange(
            transition.table_id,
            transition.tablet,
            transition.stage,
            to_stage,
            str(uuid.uuid4()) if to_stage in SESSION_STAGES else None,
            error,
        )

    def _fail(self, metadata: ClusterMetadata, transition: Transition, failure: SideEffectFailed) -> None:
        self._failures[transition.key] += 1
        self.errors[transition.key] = str(failure)
        self.blocked.append(f"{self._name(metadata, transition)} in {transition.stage}: {failure}")
        logger.info("%s", self.blocked[-1])

    def _name(self, metadata: ClusterMetadata, transition: Transition) -> str:
        table = metadata.schema.tables[transition.table_id].full_name
        if not transition.comes and transition.leaving is not None:
            return f"tablet {transition.tablet} of {table} gives up {metadata.describe(transition.leaving)}"
        return f"tablet {transition.tablet} of {table} to {metadata.describe(transition.pending)}"


def _barrier(metadata: ClusterMetadata, transition: Transition) -> Barrier:
    going_on = transition.error is None and transition.stage is not Stage.USE_NEW
    return barrier_of(transition, required=receiving(metadata, transition) if going_on else [])


def _groups(metadata: ClusterMetadata, transitions: Sequence[Transition]) -> list[list[Transition]]:
    """Transitions whose next step is done together: what streams the same way, what leaves the same replica."""
    groups: dict[tuple[object, ...], list[Transition]] = defaultdict(list)
    for one in transitions:
        match one.stage:
            case Stage.STREAMING:
                key: tuple[object, ...] = way(metadata, one)
            case Stage.CLEANUP:
                key = (one.table_id, one.leaving)
            case _:
                key = one.key
        groups[(one.stage, *key)].append(one)
    return list(groups.values())


def advance_unless_moved(planned_on: ClusterMetadata, changes: Sequence[StageChange]) -> Planner:
    """A planner of those `changes` whose transitions are still exactly what they were when their barriers were passed.

    A coordinator that was paused may find a tablet in the same stage of *another* transition, begun by its successor:
    the stage alone does not say whose fences and side effects it stands for.
    """

    def plan(metadata: ClusterMetadata) -> Event:
        now, then = metadata.tablets.transitions, planned_on.tablets.transitions
        keys = [(change.table_id, change.tablet) for change in changes]
        valid = [change for change, key in zip(changes, keys, strict=True) if now.get(key) == then[key]]
        if not valid:
            raise Rejected(Code.STALE_PLAN, "another coordinator has moved these tablets on")
        return AdvanceTransitions(tuple(valid))

    return plan
