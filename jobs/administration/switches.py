"""The switches of a cluster, and snapshots on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from epochlake.metastore.committing.changes import Call, FixedChange, Options
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.metadata.events import PauseChanges, ResumeChanges, SwitchBalancing, TakeSnapshot

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster


def pause_changes(cluster: Cluster, **options: Unpack[Options]) -> Committed:
    """Refuse every change of the metadata until `resume_changes`; `reason` is shown to those who are refused."""
    return cluster.commit(ChangesPause(), **options)


def resume_changes(cluster: Cluster, **options: Unpack[Options]) -> Committed:
    """Allow changes again. Rejected (not-paused) when they are allowed."""
    return cluster.commit(ChangesResumption(), **options)


def pause_balancing(cluster: Cluster, **options: Unpack[Options]) -> Committed:
    """Begin no move that only evens out; draining and rebuilding go on. Rejected (nothing-to-do) when it is off."""
    return cluster.commit(BalancingPause(), **options)


def resume_balancing(cluster: Cluster, **options: Unpack[Options]) -> Committed:
    """Let the coordinator balance again. Rejected (nothing-to-do) when it does already."""
    return cluster.commit(BalancingResumption(), **options)


def take_snapshot(cluster: Cluster, **options: Unpack[Options]) -> Committed:
    """Ask every follower for a snapshot of the next epoch; this process writes one itself.

    Rejected (nothing-to-do) when the newest epoch is a snapshot.
    """
    return cluster.commit(SnapshotOnDemand(), **options)


class ChangesPause(FixedChange[PauseChanges], frozen=True):
    """What `pause_changes` commits."""

    verb: ClassVar[str] = "pause changes"

    def event(self, call: Call) -> PauseChanges:
        return PauseChanges(call.reason)


class ChangesResumption(FixedChange[ResumeChanges], frozen=True):
    """What `resume_changes` commits."""

    verb: ClassVar[str] = "resume changes"

    def event(self, call: Call) -> ResumeChanges:
        return ResumeChanges()


class BalancingPause(FixedChange[SwitchBalancing], frozen=True):
    """What `pause_balancing` commits."""

    verb: ClassVar[str] = "pause balancing"

    def event(self, call: Call) -> SwitchBalancing:
        return SwitchBalancing(False, call.reason)


class BalancingResumption(FixedChange[SwitchBalancing], frozen=True):
    """What `resume_balancing` commits."""

    verb: ClassVar[str] = "resume balancing"

    def event(self, call: Call) -> SwitchBalancing:
        return SwitchBalancing(True, call.reason)


class SnapshotOnDemand(FixedChange[TakeSnapshot], frozen=True):
    """What `take_snapshot` commits."""

    verb: ClassVar[str] = "take snapshot"

    def event(self, call: Call) -> TakeSnapshot:
        return TakeSnapshot()
