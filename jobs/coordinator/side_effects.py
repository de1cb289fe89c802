"""What the coordinator does to replica tables on behalf of a stage: preparing, streaming, cleaning up.

Side effects come before the commit of the step that relies on them and can all be done again, so a coordinator may die
anywhere. Each is refused where it comes too late: by the fence, or by the session of its stage (seed 000, "Topology
guards"). Whatever cannot be done is raised as `SideEffectFailed`, with what stands in the way.
"""

from __future__ import annotations

import logging

from epochlake.jobs.coordinator.fencing import is_gone, sessions_by_place
from epochlake.jobs.dataplane.commits import commit_files, drop_tablets
from epochlake.jobs.dataplane.copying import link_data_file
from epochlake.jobs.dataplane.fences import raise_fence
from epochlake.jobs.dataplane.outcomes import Acknowledged, AlreadyApplied, FencedOff, SessionClosed, Unreachable
from epochlake.jobs.dataplane.replica import ReplicaAddress, ReplicaSnapshot, create_replica, open_snapshot
from epochlake.jobs.dataplane.streaming import Copier, ThreadCopier, plan_streaming
from epochlake.jobs.dataplane.volumes import require_volume
from epochlake.jobs.pipeline.replicas import address_of, describe
from epochlake.metastore import storage
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import TableId, Transition, VolumeId
from epochlake.placement.consistency import blocking
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.tokens import tablet_label, tokens_of_label
from epochlake.placement.transitions import Kind, Stage

logger = logging.getLogger(__name__)

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
    copies = plan_streaming(_sources(metadata, transition), target, *tokens_of_label(label))
    if transition.kind is Kind.INTRANODE_MIGRATION:
        copier = ThreadCopier(how=link_data_file)
    copied = copier.copy(copies)
    if copied.failed:
        # What has arrived stays in the directory and need not be copied again; none of it is committed by itself.
        first = next(iter(copied.failed.values()))
        raise SideEffectFailed(f"{len(copied.failed)} of {len(copies)} files could not be copied, for one: {first}")
    outcome = commit_files(
        address_of(metadata, table, transition.pending),
        copied.arrived,
        epoch=metadata.epoch,
        app_id=transition.session,
        # A later try of the session brings what has come to the sources since.
        app_version=metadata.epoch,
        session=transition.session,
    )
    match outcome:
        case Acknowledged() | AlreadyApplied():
            return sum(file.size for file in copied.arrived)
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
    """Drop the tablet from the replica that it was to come to, and close the session of its streaming there."""
    table = metadata.schema.tables[transition.table_id]
    address = address_of(metadata, table, transition.pending)
    if not _should_exist(metadata, transition.table_id, transition.pending) and _was_never_made(address):
        return
    place = (transition.table_id, transition.pending)
    fence = raise_fence(address, metadata.epoch, open_sessions=sessions_by_place(metadata).get(place, frozenset()))
    if isinstance(fence, Unreachable) and not is_gone(metadata, transition.pending):
        raise SideEffectFailed(f"{describe(metadata, transition.pending)}: {fence.reason}")
    _drop_unless_gone(metadata, transition, transition.pending)


def _sources(metadata: ClusterMetadata, transition: Transition) -> list[ReplicaSnapshot]:
    """Snapshots that together hold every acknowledged write: the leaving replica, or what meets every quorum.

    Within the datacenter of the pending replica they meet every LOCAL_QUORUM too, unless all that is missing there is
    gone for good.
    """
    if transition.kind is not Kind.REBUILD:
        assert transition.leaving is not None
        return [_fenced_source(metadata, transition, transition.leaving)]
    found: dict[VolumeId, ReplicaSnapshot] = {}
    failed: dict[VolumeId, str] = {}
    for volume in transition.replicas:
        try:
            found[volume] = _fenced_source(metadata, transition, volume)
        except SideEffectFailed as error:
            failed[volume] = str(error)
    datacenter = metadata.directory.datacenter_of(transition.pending)
    local = [volume for volume in transition.replicas if metadata.directory.datacenter_of(volume) == datacenter]
    waits_for_local = any(volume in failed and not is_gone(metadata, volume) for volume in local)
    for replicas, where in ((transition.replicas, ""), (local if waits_for_local else [], f" in {datacenter}")):
        need, have = blocking(len(replicas)), sum(volume in found for volume in replicas)
        if have < need:
            said = "; ".join(f"{describe(metadata, volume)}: {reason}" for volume, reason in failed.items())
            raise SideEffectFailed(
                f"rebuilding needs {need} of the {len(replicas)} replicas{where}, {have} can be read ({said}): "
                "bring one back, acknowledged rows may be on it alone"
            )
    return list(found.values())


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


def _was_never_made(address: ReplicaAddress) -> bool:
    """Whether the volume answers and has no table: preparing the replica had failed before it was made."""
    try:
        require_volume(address.volume_uri, address.cluster_id, address.volume_id)
        return not storage.exists(address.uri)
    except (StorageUnavailable, WrongCluster):
        return False


def _drop_unless_gone(metadata: ClusterMetadata, transition: Transition, volume: VolumeId) -> None:
    try:
        _drop(metadata, transition, volume)
    except SideEffectFailed:
        node = metadata.directory.node_of_volume[volume]
        if not is_gone(metadata, volume):
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
