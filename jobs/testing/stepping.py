"""What every step between placements rests on, looked at from outside whenever an epoch becomes known.

- A step is followed when no quorum of before is free of a fence (docs/decisions/003-barriers.md). What the commits of
  replica tables say of their fences is read past the world's steps, so whoever goes on without one is seen, also where
  nobody happens to read or write by the placement of before.
- Of any two placements that follow each other every quorum that is read meets every quorum that is written, as some
  plan by the one while others plan by the other.
- A tablet is in one transition at a time.
- The replica that a tablet leaves is fenced when its rows have been taken from there.
- Storage is declared lost while of each range a quorum of those that are read is left. Nobody who knows of that fences
  it any more.

Nothing of production code is asked but what the metadata says of placements, and who is declared lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache

from epochlake.jobs.testing.replica_files import ReplicaFiles, Unreadable
from epochlake.jobs.testing.world import World
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table, Transition, VolumeId
from epochlake.metastore.metadata.placements import Placement, TablePlacements, index_of
from epochlake.placement.ring.state import STEPS, Step
from epochlake.placement.tablets.transitions import FORWARD, Kind, Stage

_AFTER_A_BARRIER = {
    Stage.ALLOW_WRITE_BOTH_READ_OLD: Stage.WRITE_BOTH_READ_OLD,
    Stage.WRITE_BOTH_READ_OLD: Stage.STREAMING,
    Stage.WRITE_BOTH_READ_NEW: Stage.USE_NEW,
    Stage.USE_NEW: Stage.CLEANUP,
}
"""The stages that are left behind a barrier on the way there, and where they lead."""

_STREAMED = (Stage.STREAMING, Stage.WRITE_BOTH_READ_NEW)
"""The step behind the streaming."""

_BACK_BEHIND_A_BARRIER = (Stage.WRITE_BOTH_READ_OLD, Stage.CLEANUP_TARGET)
"""The step of the way back from where the new replicas were read."""


class Steps:
    """Follows what the metadata says of placements. `harmed`: places whose storage is destroyed in this history, by
    operators, or by what the world does (`destroyed`): of their fences nothing is known.
    """

    def __init__(self, world: World, harmed: Collection[str], destroyed: Collection[str] = ()) -> None:
        self.wrong: list[str] = []
        """What did not hold."""
        self._world = world
        self._harmed = harmed
        self._destroyed = destroyed
        self._before: ClusterMetadata | None = None
        self._replicas: dict[str, ReplicaFiles] = {}
        self._declared: dict[VolumeId, int] = {}
        """At which epoch storage was declared lost."""

    def learn(self, metadata: ClusterMetadata) -> None:
        """An epoch has become known to somebody, who has not acted on it yet."""
        before, self._before = self._before, metadata
        if before is None or metadata.fence != before.fence + 1:
            return  # who began at a snapshot has not seen the steps before it, and lost epochs have none after them
        self.wrong += _without_quorum(before, metadata)
        self._declared |= dict.fromkeys(metadata.directory.lost - before.directory.lost, metadata.epoch)
        self.wrong += self._opened(metadata)
        if before.tablets is metadata.tablets and before.rings is metadata.rings:
            return
        self.wrong += self._transitions(before, metadata)
        self.wrong += self._operations(before, metadata)
        self.wrong += _apart(before, metadata)

    def _opened(self, metadata: ClusterMetadata) -> Iterator[str]:
        """Storage that is lost, and was fenced at an epoch at which that was known."""
        for volume, epoch in list(self._declared.items()):
            for table in metadata.schema.tables.values():
                fence = self._fence(metadata, table, volume)
                if fence is not None and fence >= metadata.fence_at(epoch):
                    del self._declared[volume]
                    name = metadata.describe(volume)
                    yield f"{name} was declared lost at epoch {epoch}, and fenced at {fence} after that"
                    break

    def _transitions(self, before: ClusterMetadata, now: ClusterMetadata) -> Iterator[str]:
        for key, then in before.tablets.transitions.items():
            table = before.schema.tables[then.table_id]
            after = now.tablets.transitions.get(key)
            name = f"tablet {then.tablet} of {table.full_name} in {then.stage}"
            if after is None:
                if FORWARD[then.stage] is not None and then.table_id in now.schema.tables:
                    yield f"{name} is in no transition any more at epoch {now.epoch}"
                continue
            if after.started_epoch != then.started_epoch:
                yield f"{name} is in another transition at epoch {now.epoch}, and the one before has not ended"
            elif _is_behind_a_barrier(then, after.stage):
                there = then.error is None and then.stage is not Stage.USE_NEW
                needed = [then.pending] if there and after.error is None else []
                sets = [then.replicas, then.new_replicas]
                yield from self._unfenced(before, now, table, sets, then.epoch, needed, f"{name} went on")
            elif (then.stage, after.stage) == _STREAMED:
                yield from self._taken_from(before, now, table, then, name)

    def _taken_from(
        self, before: ClusterMetadata, now: ClusterMetadata, table: Table, then: Transition, name: str
    ) -> Iterator[str]:
        """Where the replica that is left may take more rows of before after it was streamed."""
        leaving = then.leaving
        if leaving is None or then.kind is Kind.REBUILD or leaving in before.directory.lost | now.directory.lost:
            return  # others are the sources, as many as meet every quorum
        fence = self._fence(before, table, leaving)
        if fence is not None and fence < before.fence_at(then.epoch):
            yield (
                f"{name} was streamed at epoch {now.epoch}, and {before.describe(leaving)}, which it leaves, is fenced "
                f"at {fence} only"
            )

    def _operations(self, before: ClusterMetadata, now: ClusterMetadata) -> Iterator[str]:
        for name, then in before.rings.operations.items():
            after, last = now.rings.operations.get(name), STEPS[then.next_step - 1]
            went_on = last is Step.MID if after is None else after.next_step > then.next_step
            if last not in (Step.START, Step.MID) or (after is not None and after.next_step == then.next_step):
                continue
            if not went_on and (last is Step.MID or not then.cancelling):
                continue  # back from MID all go on to write to both, and before MID nobody has read the new replicas
            since = before.rings.running[name].epoch
            for table in before.schema.tables.values():
                if not before.is_on_ring(table.table_id) or table.table_id not in now.schema.tables:
                    continue
                for old, new in _changed(before.placements(table.table_id), now.placements(table.table_id)):
                    gaining = [volume for volume in new if volume not in old] if went_on else []
                    needed = [volume for volume in gaining if volume not in before.directory.lost]
                    what = f"{then} went on after {last}"
                    yield from self._unfenced(before, now, table, [old, new], since, needed, what)

    def _unfenced(
        self,
        before: ClusterMetadata,
        now: ClusterMetadata,
        table: Table,
        sets: Sequence[Sequence[VolumeId]],
        epoch: int,
        needed: Iterable[VolumeId],
        what: str,
    ) -> Iterator[str]:
        """Where a quorum of some replicas is free, as too few of them are fenced at `epoch`, or one that is `needed` is
        not.
        """
        everybody = {volume for replicas in sets for volume in replicas} | {*needed}
        fences = {volume: self._fence(before, table, volume) for volume in everybody}
        fenced = {volume for volume, fence in fences.items() if fence is None or fence >= before.fence_at(epoch)}
        lost = before.directory.lost | now.directory.lost
        said = {before.describe(volume): fence for volume, fence in sorted(fences.items()) if volume not in fenced}
        for replicas in sets:
            free = len(replicas) - (len(replicas) // 2 + 1)
            if len(fenced.intersection(replicas)) > free or not replicas:
                continue
            # Of storage that is lost and back whoever knows that it is lost takes nothing: the others tell him of it.
            left = [volume for volume in replicas if volume not in lost]
            if len(left) == len(replicas) or not fenced.issuperset(left):
                yield f"{what} at epoch {now.epoch}, and of {list(replicas)} a quorum is not fenced at {epoch}: {said}"
        if not fenced.issuperset(needed):
            yield f"{what} at epoch {now.epoch}, and who gets rows is not fenced at {epoch}: {said}"

    def _fence(self, metadata: ClusterMetadata, table: Table, volume: VolumeId) -> int | None:
        """Where a replica is fenced; None where nobody can tell. What was declared lost has what it had before."""
        uri = metadata.directory.volumes[volume].uri
        if uri in self._destroyed or (uri in self._harmed and volume not in metadata.directory.lost):
            return None
        path = f"{uri}/{table.directory}/{table.table_id}"
        replica = self._replicas.setdefault(path, ReplicaFiles(self._world, path))
        try:
            return replica.fence() if replica.is_there() else 0
        except Unreadable:
            return None


def _is_behind_a_barrier(then: Transition, stage: Stage) -> bool:
    return _AFTER_A_BARRIER.get(then.stage) is stage or (
        then.error is not None and (then.stage, stage) == _BACK_BEHIND_A_BARRIER
    )


def _changed(
    before: TablePlacements, now: TablePlacements
) -> Iterator[tuple[tuple[VolumeId, ...], tuple[VolumeId, ...]]]:
    """The old and the new replicas of ranges that an operation changes, where a step has changed who is read or
    written; each pair once.
    """
    found = dict.fromkeys(
        (then.write_sets[0], then.write_sets[-1])
        for then, after in _views(before, now)
        if len(then.write_sets) > 1 and (then.reads != after.reads or then.write_sets != after.write_sets)
    )
    yield from found


def _views(before: TablePlacements, now: TablePlacements) -> Iterator[tuple[Placement, Placement]]:
    """What either placement says of all tokens."""
    for low in sorted({*before.lows.tolist(), *now.lows.tolist()}):
        yield tuple(one.placement(int(index_of(one.lows, low))) for one in (before, now))  # type: ignore[misc]


def _apart(before: ClusterMetadata, now: ClusterMetadata) -> Iterator[str]:
    """Tables of which somebody who knows one epoch reads past what somebody who knows the other writes."""
    for table_id, table in now.schema.tables.items():
        if table_id not in before.schema.tables:
            continue
        for then, after in _views(before.placements(table_id), now.placements(table_id)):
            for reader, writer, told in ((then, after, "before"), (after, then, "after")):
                sets = tuple(tuple(sorted(replicas)) for replicas in writer.write_sets)
                if then != after and not _meet(tuple(sorted(reader.reads)), sets):
                    yield (
                        f"who reads {table.full_name} by the placement of {told} the step to epoch {now.epoch}, "
                        f"{list(reader.reads)}, can pass over what is written by the other one, {sets}"
                    )


def _without_quorum(before: ClusterMetadata, now: ClusterMetadata) -> Iterator[str]:
    """Ranges of which no quorum of those that are read is left, by a declaration that nobody has forced."""
    declared = now.directory.lost - before.directory.lost
    if not declared or any(one.force for one in now.open_requests()):
        return
    for table_id, table in now.schema.tables.items():
        if table_id not in before.schema.tables:
            continue
        placements = before.placements(table_id)
        for index in range(len(placements.lows)):
            reads = placements.placement(index).reads
            left = [volume for volume in reads if volume not in now.directory.lost]
            if declared.intersection(reads) and len(left) <= len(reads) - (len(reads) // 2 + 1):
                yield (
                    f"{sorted(declared)} were declared lost at epoch {now.epoch}, and of {list(reads)}, which are read "
                    f"of {table.full_name}, only {left} are left"
                )
                break


@cache
def _meet(reads: tuple[VolumeId, ...], write_sets: tuple[tuple[VolumeId, ...], ...]) -> bool:
    """Whether every quorum of `reads` has a replica of everything that has a quorum in each of the `write_sets`."""
    everybody = sorted({volume for replicas in write_sets for volume in replicas})
    for count in range(len(everybody) + 1):
        for taken in itertools.combinations(everybody, count):
            if any(len({*replicas}.intersection(taken)) < len(replicas) // 2 + 1 for replicas in write_sets):
                continue
            if len([volume for volume in reads if volume not in taken]) >= len(reads) // 2 + 1:
                return False
    return True
