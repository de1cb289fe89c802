"""What the coordinator does to replica tables on behalf of a stage: preparing, streaming, cleaning up.

Side effects come before the commit of the step that relies on them and can all be done again, so a coordinator may die
anywhere. Each is refused where it comes too late: by the fence, or by the session of its stage (seed 000, "Topology
guards"). Whatever cannot be done is raised as `SideEffectFailed`, with what stands in the way.
"""

from __future__ import annotations

import logging

from epochlake.jobs.dataplane.commits import commit_files, drop_tablets
from epochlake.jobs.dataplane.copying import link_data_file
from epochlake.jobs.dataplane.outcomes import Acknowledged, AlreadyApplied, FencedOff, SessionClosed, Unreachable
from epochlake.jobs.dataplane.replica import ReplicaSnapshot, create_replica, open_snapshot
from epochlake.jobs.dataplane.streaming import Copier, ThreadCopier, plan_streaming
from epochlake.jobs.pipeline.replicas import address_of, describe
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState, TableId, Transition, VolumeId
from epochlake.placement.consistency import blocking
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.tokens import tablet_label
from epochlake.placement.transitions import Kind, Stage

logger = logging.getLogger(__name__)

GONE = frozenset({NodeState.LEFT, NodeState.REMOVING})
"""Nodes whose storage is not expected to answer any more."""

FIRST_STAGES = frozenset({Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.CLEANUP_TARGET, Stage.REVERT_MIGRATION})
"""Stages in which the pending replica's table need not be there yet."""


class SideEffectFailed(EpochlakeError):
    """A side effect was not done; the stage stays where it is, and it is tried again or rolled back."""

    exit_code = 75


def prepare_pending(metadata: ClusterMetadata, transition: Transition) -> None:
    """Make the pending replica ready for writes: its table is there, and nothing of the tablet is left in it.

    What an earlier transition left behind is dropped under the new fence, so that no late write of it can come after.
    """
    table = metadata.schema.tables[transition.table_id]
    address = address_of(metadata, table, transition.pending)
    try:
        if not _should_exist(metadata, transition.table_id, transition.pending):
            create_replica(address, table, 0)
    except (StorageUnavailable, WrongCluster) as error:
        raise SideEffectFailed(str(error)) from error
    _drop(metadata, transition, transition.pending)


def stream(metadata: ClusterMetadata, transition: Transition, copier: Copier) -> int:
    """Bring the tablet's files to the pending replica, under the session of the stage; the bytes that were copied.

    The sources are fenced at the epoch of `write_both_read_old` or above before they are looked at: what is not in
    their snapshots now can only come from pipelines that write to the pending replica as well.
    """
    assert transition.session is not None
    table = metadata.schema.tables[transition.table_id]
    label = tablet_label(transition.tablet, metadata.tablets.maps[transition.table_id].count)
    target = _open(metadata, transition.table_id, transition.pending)
    sources = _sources(metadata, transition)
    copies = plan_streaming(sources, target, label)
    within_node = transition.kind is Kind.INTRANODE_MIGRATION
    result = (ThreadCopier(how=link_data_file) if within_node else copier).copy(copies)
    if result.failed:
        raise SideEffectFailed("; ".join(sorted(set(result.failed.values()))))
    copied = sum(file.size for file in result.arrived)
    outcome = commit_files(
        address_of(metadata, table, transition.pending),
        [copy.file for copy in copies],
        epoch=metadata.epoch,
        app_id=transition.session,
        app_version=1,
        session=transition.session,
    )
    match outcome:
        case Acknowledged():
            return copied
        case AlreadyApplied(absent=absent) if not absent:
            return copied
        case AlreadyApplied():
            # An earlier try of this session has streamed; what has come to the sources since was written to both.
            return copied
        case SessionClosed():
            raise SideEffectFailed(f"session {transition.session} is closed: a newer coordinator has moved on")
        case FencedOff(fence=fence):
            raise SideEffectFailed(f"the pending replica is fenced at {fence}: a newer coordinator is at work")
        case Unreachable(reason=reason):
            raise SideEffectFailed(reason)


def clean_up_leaving(metadata: ClusterMetadata, transition: Transition) -> None:
    """Drop the tablet from the replica that it has left. A node that is gone for good has nothing to clean."""
    if transition.leaving is not None:
        _drop_unless_gone(metadata, transition, transition.leaving)


def clean_up_target(metadata: ClusterMetadata, transition: Transition) -> None:
    """Drop the tablet from the replica that it was to come to."""
    _drop_unless_gone(metadata, transition, transition.pending)


def _sources(metadata: ClusterMetadata, transition: Transition) -> list[ReplicaSnapshot]:
    """Snapshots that together hold every acknowledged write: the leaving replica, or what meets every quorum."""
    if transition.kind is not Kind.REBUILD:
        assert transition.leaving is not None
        return [_fenced_source(metadata, transition, transition.leaving)]
    found, failed = [], []
    for volume in transition.replicas:
        try:
            found.append(_fenced_source(metadata, transition, volume))
        except SideEffectFailed as error:
            failed.append(f"{describe(metadata, volume)}: {error}")
    need = blocking(len(transition.replicas))
    if len(found) < need:
        raise SideEffectFailed(
            f"rebuilding needs {need} of the {len(transition.replicas)} replicas, {len(found)} can be read "
            f"({'; '.join(failed)}): bring one back, acknowledged rows may be on it alone"
        )
    return found


def _fenced_source(metadata: ClusterMetadata, transition: Transition, volume: VolumeId) -> ReplicaSnapshot:
    snapshot = _open(metadata, transition.table_id, volume)
    if snapshot.fence < transition.epoch:
        raise SideEffectFailed(f"it is fenced at {snapshot.fence} only, {transition.epoch} is needed")
    return snapshot


def _open(metadata: ClusterMetadata, table_id: TableId, volume: VolumeId) -> ReplicaSnapshot:
    try:
        return open_snapshot(address_of(metadata, metadata.schema.tables[table_id], volume))
    except (StorageUnavailable, WrongCluster) as error:
        raise SideEffectFailed(str(error)) from error


def _should_exist(metadata: ClusterMetadata, table_id: TableId, volume: VolumeId) -> bool:
    """Whether a replica table must be on the volume already: making one where it was lost would hide the loss."""
    if len(metadata.tablets.maps[table_id].tablets_on([volume])):
        return True
    return any(
        transition.pending == volume and transition.stage not in FIRST_STAGES
        for key, transition in metadata.tablets.transitions.items()
        if key[0] == table_id
    )


def _drop_unless_gone(metadata: ClusterMetadata, transition: Transition, volume: VolumeId) -> None:
    try:
        _drop(metadata, transition, volume)
    except SideEffectFailed:
        node = metadata.directory.node_of_volume[volume]
        if node.state not in GONE:
            raise
        logger.info("node %s is %s: nothing to clean up on it", node.name, node.state)


def _drop(metadata: ClusterMetadata, transition: Transition, volume: VolumeId) -> None:
    table = metadata.schema.tables[transition.table_id]
    label = tablet_label(transition.tablet, metadata.tablets.maps[transition.table_id].count)
    outcome = drop_tablets(address_of(metadata, table, volume), [label], metadata.epoch)
    match outcome:
        case FencedOff(fence=fence):
            raise SideEffectFailed(f"{describe(metadata, volume)} is fenced at {fence}: a newer coordinator is at work")
        case Unreachable(reason=reason):
            raise SideEffectFailed(f"{describe(metadata, volume)}: {reason}")
