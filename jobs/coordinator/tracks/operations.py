"""The track of operations on the ring: each goes on a step at a time, or back when its request is cancelled.

A round fences the replicas of every operation's last step, does the side effects that come before the next one, and
commits that. Operations are on disjoint ranges, so each goes at its own pace; streams take turns, a group of files
each, so that none of them keeps the others waiting (seed 002, Bootstrap to Replace; decision 007).

FINISH has no barrier of its own: what is planned at MID writes to old and new replicas alike, and the sweep before the
request ends fences all that have lost ranges.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable

import msgspec
from epochlake.jobs.coordinator.effects.ring import (
    GROUP_BYTES,
    finish_rebuilt,
    prepare,
    prepare_rebuilt,
    stream_group,
    volumes_of,
)
from epochlake.jobs.coordinator.effects.sweeping import Sweeper
from epochlake.jobs.coordinator.errors import SideEffectFailed
from epochlake.jobs.coordinator.fencing import Barrier, Fences, Patience, ReplicaKey, Sides, is_gone
from epochlake.jobs.coordinator.tracks.track import Tally
from epochlake.jobs.replicas.store import Store
from epochlake.jobs.replicas.streaming import Copier
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.committing.committer import Planner
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.rings import Running
from epochlake.metastore.metadata.events import AdvanceOperation, Event, RetreatOperation
from epochlake.metastore.metadata.events.plans import with_names
from epochlake.metastore.metadata.model import RequestState, TopologyRequest
from epochlake.metastore.planning.ring_changes import Gain, RingChange, change_of
from epochlake.metastore.planning.streams import Room, StreamLimits
from epochlake.placement.rejections import Code
from epochlake.placement.ring.state import STEPS, Operation, Step

logger = logging.getLogger(__name__)

STREAMS = 4
"""Streams that run at the same time in one coordinator."""

GROUP_SECONDS = 5.0
"""How long a group of a stream takes at most where `[coordinator] bytes_per_second` is the limit."""


class Work(msgspec.Struct, frozen=True):
    """An operation in flight, with what there is to know of it."""

    operation: Operation
    running: Running
    request: TopologyRequest
    change: RingChange

    @property
    def last(self) -> Step:
        """The step that was done last, and not taken back."""
        return STEPS[self.operation.next_step - 1]

    @property
    def key(self) -> tuple[str, int]:
        """Tells the steps of operations apart, on the way and back."""
        return (self.running.operation_id, self.running.epoch)

    @property
    def going_back(self) -> bool:
        return self.request.state is RequestState.CANCELLING

    def barrier(self, metadata: ClusterMetadata) -> Barrier:
        """What has to be fenced before the step after the last one, in either direction.

        On the way there it includes every replica that gains ranges: it is where the session is opened and closed.
        """
        # What comes to lost storage comes from a node that is lost too: nothing is opened or closed there.
        gaining = (replica for replica in self.change.gaining if not is_gone(metadata, replica[1]))
        sides = (
            Sides(table_id, old, new)
            for setting in self.change.settings
            for table_id in setting.tables
            for old, new in setting.sides
        )
        required = frozenset() if self.going_back else frozenset(gaining)
        return Barrier(self.running.epoch, tuple(sides), required)


class Stream(msgspec.Struct, frozen=True):
    """What one replica table gains in an operation."""

    work: Work
    replica: ReplicaKey
    gains: tuple[Gain, ...]

    @property
    def key(self) -> tuple[str | None, ReplicaKey]:
        """It is another one under another session."""
        return (self.work.running.session, self.replica)


class OperationTrack:
    """Operations on the ring, from PREPARE to FINISH or back."""

    def __init__(self, cluster: Store, copier: Copier, fences: Fences, sweeper: Sweeper, tally: Tally) -> None:
        self._cluster = cluster
        self._settings = cluster.configuration.coordinator
        self._copier = copier
        self._fences = fences
        self._patience = Patience(self._settings)
        self._sweeper = sweeper
        self._tally = tally
        self._changes: dict[tuple[str, int], RingChange] = {}
        self._barriers: dict[tuple[str, int], tuple[tuple[object, ...], Barrier]] = {}
        self._passed: set[tuple[str, int]] = set()
        self._turns: Counter[tuple[str | None, ReplicaKey]] = Counter()
        self._streamed: set[tuple[str | None, ReplicaKey]] = set()
        self.blocked: list[str] = []

    def idle(self, metadata: ClusterMetadata) -> bool:
        return not metadata.rings.operations

    def advance(self, metadata: ClusterMetadata) -> bool:
        works = self._works(metadata)
        due = [work for work in works if work.last is not Step.PREPARE and self._is_ready(metadata, work)]
        # Also where the barrier is passed: a replica that was away is fenced when it is back, and is a source then.
        self._fences.raise_for(metadata, [self._barrier(metadata, work) for work in due])
        acknowledged = [work for work in due if self._acknowledged(metadata, work)]
        self._patience.tell(self._cluster.commit)
        streaming = [work for work in acknowledged if work.last is Step.START and not work.going_back]
        progressed = self._stream(metadata, streaming)
        for work in works:
            if work.last is Step.PREPARE:
                event = self._after_prepare(metadata, work)
            elif work in acknowledged and (work not in streaming or self._has_its_rows(metadata, work)):
                event = _next(work)
            else:
                continue
            if event is not None:
                progressed |= self._commit(metadata, work, event)
        return progressed

    def _works(self, metadata: ClusterMetadata) -> list[Work]:
        """The operations in flight that may go on; those of a paused request may not."""
        works = []
        for name, operation in metadata.rings.operations.items():
            running = metadata.rings.running[name]
            request = metadata.requests[running.request_id]
            self._sweeper.see(metadata, request.request_id, operation)
            if not request.paused:
                works.append(Work(operation, running, request, self._change(metadata, operation, running)))
        self._forget_others(metadata, works)
        return works

    def _forget_others(self, metadata: ClusterMetadata, works: Iterable[Work]) -> None:
        """Keep only what is about operations in flight."""
        running, sessions = metadata.rings.running, metadata.open_sessions()
        self._passed &= {work.key for work in works}
        self._changes = {key: change for key, change in self._changes.items() if key[0] in running}
        there = {work.key for work in works}
        self._barriers = {key: barrier for key, barrier in self._barriers.items() if key in there}
        self._streamed = {key for key in self._streamed if key[0] in sessions}
        self._turns = Counter({key: turns for key, turns in self._turns.items() if key[0] in sessions})

    def _change(self, metadata: ClusterMetadata, operation: Operation, running: Running) -> RingChange:
        """What an operation changes is the same from its beginning to its end, and takes a while in a big ring."""
        key = (operation.operation_id, running.started_epoch)
        if key not in self._changes:
            self._changes[key] = change_of(metadata, operation)
        return self._changes[key]

    def _barrier(self, metadata: ClusterMetadata, work: Work) -> Barrier:
        """The barrier of an operation's last step is the same until the next one, but for the way that it goes and what
        is lost.
        """
        follows_from = (work.going_back, metadata.directory.lost, work.change)
        before = self._barriers.get(work.key)
        if before is None or before[0][:2] != follows_from[:2] or before[0][2] is not work.change:
            before = self._barriers[work.key] = follows_from, work.barrier(metadata)
        return before[1]

    def _after_prepare(self, metadata: ClusterMetadata, work: Work) -> Event | None:
        if work.going_back:
            return RetreatOperation(work.operation.operation_id, Step.PREPARE)
        try:
            prepare(self._cluster.storage, metadata, work.operation, self._cluster.receipts)
        except SideEffectFailed as failure:
            self._blocked_by(metadata, work, str(failure))
            return None
        return AdvanceOperation(work.operation.operation_id, Step.START, str(uuid.uuid4()))

    def _is_ready(self, metadata: ClusterMetadata, work: Work) -> bool:
        """Make what has to be there before it can be fenced."""
        if work.last is not Step.START or work.going_back:
            return True
        try:
            prepare_rebuilt(self._cluster.storage, metadata, work.operation, self._cluster.receipts)
        except SideEffectFailed as failure:
            self._blocked_by(metadata, work, str(failure))
            return False
        return True

    def _has_its_rows(self, metadata: ClusterMetadata, work: Work) -> bool:
        """Whether all is streamed; what was rebuilt is let be read then, before the step that reads it."""
        if not self._is_streamed(metadata, work):
            return False
        try:
            finish_rebuilt(self._cluster.storage, metadata, work.operation, self._cluster.receipts)
        except SideEffectFailed as failure:
            self._blocked_by(metadata, work, str(failure))
            return False
        return True

    def _acknowledged(self, metadata: ClusterMetadata, work: Work) -> bool:
        """Whether the barrier of the last step is passed.

        Back from MID there is none: before and after, all write to old and new replicas. Fences are never lowered, so
        a barrier that is passed once need not be looked at again.
        """
        if work.key in self._passed or (work.going_back and work.last is Step.MID):
            return True
        barrier = self._barrier(metadata, work)
        if self._patience.passed(self._fences, metadata, work.key, barrier, str(work.operation)):
            self._passed.add(work.key)
            return True
        missing = self._fences.missing(metadata, barrier)
        if barrier.required <= self._fences.fenced(barrier):
            self._blocked_by(metadata, work, f"waits for fences after {work.last}: {missing}")
        else:
            self._blocked_by(
                metadata, work, f"what gains ranges does not answer ({missing}): bring it back, or cancel the request"
            )
        return False

    def _is_streamed(self, metadata: ClusterMetadata, work: Work) -> bool:
        return all(stream.key in self._streamed for stream in _streams(metadata, work))

    def _stream(self, metadata: ClusterMetadata, works: Iterable[Work]) -> bool:
        """A group of files of so many streams as may run at once; those that had fewer turns go first."""
        waiting = [stream for work in works for stream in _streams(metadata, work) if stream.key not in self._streamed]
        waiting.sort(key=lambda stream: self._turns[stream.key])
        chosen = _within_limits(waiting, self._settings.streams_per_volume)
        if not chosen:
            return False
        return any(ThreadWorkers(STREAMS).run(lambda stream: self._next_group(metadata, stream), chosen))

    def _next_group(self, metadata: ClusterMetadata, stream: Stream) -> bool:
        """Whether anything has come of it."""
        self._turns[stream.key] += 1
        work = stream.work
        rate = self._settings.bytes_per_second
        most = min(GROUP_BYTES, int(rate * GROUP_SECONDS)) if rate else GROUP_BYTES
        try:
            done = stream_group(
                self._cluster.storage,
                metadata,
                work.operation,
                work.running,
                stream.replica,
                stream.gains,
                self._copier,
                self._cluster.ledger,
                most,
                self._cluster.receipts,
            )
        except SideEffectFailed as failure:
            self._blocked_by(metadata, work, f"streaming to {metadata.describe(stream.replica[1])}: {failure}")
            return False
        self._tally.bytes_streamed += done.bytes
        if done.finished:
            self._streamed.add(stream.key)
        return True

    def _commit(self, metadata: ClusterMetadata, work: Work, event: Event) -> bool:
        try:
            self._cluster.commit(if_unmoved(work.running, event))
        except Rejected as rejected:
            self._blocked_by(metadata, work, rejected.text)
            return False
        return True

    def _blocked_by(self, metadata: ClusterMetadata, work: Work, why: str) -> None:
        self.blocked.append(f"{with_names(metadata, str(work.operation))}: {why}")
        logger.info("%s", self.blocked[-1])


def if_unmoved(running: Running, event: Event) -> Planner:
    """A planner of `event` as long as the operation is exactly as far as it was when its barrier was passed.

    A coordinator that was paused may find the same step of another time: taken back and made again by its successor.
    """

    def plan(metadata: ClusterMetadata) -> Event:
        if metadata.rings.running.get(running.operation_id) != running:
            raise Rejected(Code.STALE_PLAN, "another coordinator has moved it on")
        if metadata.requests[running.request_id].paused:
            raise Rejected(Code.REQUEST_PAUSED, "its request has been paused")
        return event

    return plan


def _next(work: Work) -> Event:
    """The step that follows when the last one is acknowledged. After MID is back the rest goes at once."""
    if not work.going_back:
        return AdvanceOperation(work.operation.operation_id, STEPS[work.operation.next_step])
    return RetreatOperation(work.operation.operation_id, Step.MID if work.last is Step.MID else Step.PREPARE)


def _streams(metadata: ClusterMetadata, work: Work) -> list[Stream]:
    """What is to be streamed: nothing to a node that has been lost on the way, whose ranges others get afterwards."""
    gains = work.change.gains_of().items()
    return [Stream(work, replica, gained) for replica, gained in gains if not is_gone(metadata, replica[1])]


def _within_limits(streams: Iterable[Stream], per_volume: int) -> list[Stream]:
    """The first of the streams that may run together: so many at a volume, and at this coordinator."""
    room = Room(StreamLimits(per_volume))
    chosen: list[Stream] = []
    for stream in streams:
        volumes = volumes_of(stream.gains)
        if len(chosen) < STREAMS and room.has(*volumes):
            room.take(*volumes)
            chosen.append(stream)
    return chosen
