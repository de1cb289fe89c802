"""The switches of a cluster, and snapshots on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from epochlake.jobs.administration.changes import Options, in_words
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.metadata.events import PauseChanges, ResumeChanges, SwitchBalancing, TakeSnapshot

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster


@in_words
def pause_changes(cluster: Cluster, **options: Unpack[Options]) -> Committed:
    """Refuse every change of the metadata until `resume_changes`; `reason` is shown to those who are refused."""
    return cluster.commit(plan_pause_changes(options.get("reason", "")), **options)


@in_words
def resume_changes(cluster: Cluster, **options: Unpack[Options]) -> Committed:
    """Allow changes again. Rejected (not-paused) when they are allowed."""
    return cluster.commit(plan_resume_changes(), **options)


@in_words
def pause_balancing(cluster: Cluster, **options: Unpack[Options]) -> Committed:
    """Begin no move that only evens out; draining and rebuilding go on. Rejected (nothing-to-do) when it is off."""
    return cluster.commit(plan_pause_balancing(options.get("reason", "")), **options)


@in_words
def resume_balancing(cluster: Cluster, **options: Unpack[Options]) -> Committed:
    """Let the coordinator balance again. Rejected (nothing-to-do) when it does already."""
    return cluster.commit(plan_resume_balancing(options.get("reason", "")), **options)


@in_words
def take_snapshot(cluster: Cluster, **options: Unpack[Options]) -> Committed:
    """Ask every follower for a snapshot of the next epoch; this process writes one itself.

    Rejected (nothing-to-do) when the newest epoch is a snapshot.
    """
    return cluster.commit(plan_take_snapshot(), **options)


def plan_pause_changes(why: str) -> PauseChanges:
    return PauseChanges(why)


def plan_resume_changes() -> ResumeChanges:
    return ResumeChanges()


def plan_pause_balancing(why: str) -> SwitchBalancing:
    return SwitchBalancing(False, why)


def plan_resume_balancing(why: str) -> SwitchBalancing:
    return SwitchBalancing(True, why)


def plan_take_snapshot() -> TakeSnapshot:
    return TakeSnapshot()
