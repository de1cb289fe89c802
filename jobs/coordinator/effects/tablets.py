"""What the coordinator does to replica tables on behalf of a tablet's stage: preparing, streaming, cleaning up.

Side effects come before the commit of the step that relies on them and can all be done again, so a coordinator may die
anywhere. Whatever cannot be done is raised as `SideEffectFailed`, with what stands in the way.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from epochlake.jobs.coordinator.effects.replicas import (
    Begun,
    commit_streamed,
    copies_for,
    drop,
    drop_before,
    make_replica,
    open_replica,
    replica_address,
    was_never_made,
)
from epochlake.jobs.coordinator.effects.sources import Sources
from epochlake.jobs.coordinator.errors import SideEffectFailed
from epochlake.jobs.coordinator.fencing import is_gone, sessions_by_replica
from epochlake.jobs.replicas.copying import link_data_file
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.intervals import merged
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.replicas.outcomes import Unreachable
from epochlake.jobs.replicas.receipts import Receipts
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.replicas.streaming import Copier
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import TableId, Transition, VolumeId
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tablets.transitions import Kind, Stage
from epochlake.placement.tokens import Interval, tablet_label, tokens_of_label

logger = logging.getLogger(__name__)

FIRST_STAGES = frozenset({Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.CLEANUP_TARGET, Stage.REVERT_MIGRATION})
"""Stages in which the pending replica's table need not be there yet."""


def prepare_pending(
    storage: Storage, metadata: ClusterMetadata, transitions: Sequence[Transition], receipts: Receipts | None = None
) -> None:
    """Make one pending replica ready for writes of tablets: its table is there, and nothing of them is left in it.

    What an earlier transition left behind is dropped under the new fence, so that no late write of it can come after.
    That happens once for each transition: a coordinator that was paused just before would take rows away which have
    been acknowledged since (tests/support/stage_model.py).
    """
    table_id, pending = transitions[0].table_id, transitions[0].pending
    if not _should_exist(metadata, table_id, pending):
        make_replica(storage, metadata, table_id, pending, metadata.fence, receipts)
    begun = [
        Begun(f"prepare-{table_id}-{one.tablet}-{one.started_epoch}", one.started_epoch, [tokens_of(metadata, one)])
        for one in transitions
    ]
    drop_before(storage, metadata, table_id, pending, begun)


def way(metadata: ClusterMetadata, transition: Transition) -> tuple[object, ...]:
    """From whom to whom a tablet is streamed; what goes the same way can go together."""
    sources = transition.replicas if _is_rebuilt(metadata, transition) else (transition.leaving,)
    return (transition.table_id, transition.receiving, transition.kind, transition.epoch, *sources)


def stream(
    storage: Storage,
    metadata: ClusterMetadata,
    transitions: Sequence[Transition],
    copier: Copier,
    ledger: Ledger,
    receipts: Receipts | None = None,
) -> int:
    """Bring the files of tablets that go the same way to the replicas that receive them; the bytes copied.

    One commit for each of these, under the session of each tablet: where one is not open any more, nothing lands. Where
    the tablets are neighbours, what they share in a file comes in one piece.
    """
    transition = transitions[0]
    sessions = [one.session for one in transitions if one.session is not None]
    assert len(sessions) == len(transitions)
    ranges = merged(tokens_of(metadata, one) for one in transitions)
    if transition.kind is Kind.INTRANODE_MIGRATION:
        copier = Copier(how=link_data_file)
    streamed = 0
    for volume in receiving(metadata, transition):
        sources = _sources(storage, metadata, transition, volume, receipts)
        target = open_replica(storage, metadata, transition.table_id, volume)
        copies = copies_for(ledger, sources, target, *ranges)
        copied = copier.copy(copies)
        if copied.failed:
            # What has arrived stays in the directory and need not be copied again; none of it is committed by itself.
            first = next(iter(copied.failed.values()))
            raise SideEffectFailed(f"{len(copied.failed)} of {len(copies)} files could not be copied, for one: {first}")
        # A later try of the session brings what has come to the sources since.
        place = (transition.table_id, volume)
        commit_streamed(storage, ledger, metadata, *place, copied.arrived, sessions, metadata.epoch, receipts)
        streamed += sum(file.size for file in copied.arrived)
    return streamed


def receiving(metadata: ClusterMetadata, transition: Transition) -> list[VolumeId]:
    """The replicas that a transition streams to, but for those whose storage was declared lost meanwhile."""
    return [v for v in transition.receiving if v == transition.pending or not is_gone(metadata, v)]


def clean_up_leaving(storage: Storage, metadata: ClusterMetadata, transitions: Sequence[Transition]) -> None:
    """Drop tablets from the replica that they have left. A node that is gone for good has nothing to clean."""
    leaving = transitions[0].leaving
    if leaving is not None:
        _drop_unless_gone(storage, metadata, transitions, leaving)


def clean_up_target(storage: Storage, metadata: ClusterMetadata, transition: Transition) -> None:
    """Drop the tablet from the replica that it was to come to, and close the session of its streaming there.

    Those that only took over rows stay replicas, and keep them.
    """
    sessions = sessions_by_replica(metadata)
    for volume in transition.receiving:
        place = (transition.table_id, volume)
        address = replica_address(storage, metadata, *place)
        if not _should_exist(metadata, *place) and was_never_made(address):
            continue
        fence = raise_fence(address, metadata.fence, open_sessions=sessions.get(place, frozenset()))
        if isinstance(fence, Unreachable) and not is_gone(metadata, volume):
            raise SideEffectFailed(f"{metadata.describe(volume)}: {fence.reason}")
        if transition.comes:
            _drop_unless_gone(storage, metadata, [transition], volume)


def tokens_of(metadata: ClusterMetadata, transition: Transition) -> Interval:
    """First and last token of a tablet in transition."""
    count = metadata.tablets.maps[transition.table_id].count
    return tokens_of_label(tablet_label(transition.tablet, count))


def _sources(
    storage: Storage, metadata: ClusterMetadata, transition: Transition, target: VolumeId, receipts: Receipts | None
) -> list[ReplicaSnapshot]:
    """Snapshots that together hold every acknowledged write: the leaving replica, or what meets every quorum.

    The second also where the leaving replica has been declared lost since its migration began.
    """
    sources = Sources(storage, metadata, transition.table_id, metadata.fence_at(transition.epoch), receipts)
    leaving = transition.leaving
    if leaving is None or _is_rebuilt(metadata, transition):
        return sources.quorum(transition.replicas, target)
    return [sources.of(leaving)]


def _is_rebuilt(metadata: ClusterMetadata, transition: Transition) -> bool:
    leaving = transition.leaving
    return transition.kind is Kind.REBUILD or leaving is None or is_gone(metadata, leaving)


def _should_exist(metadata: ClusterMetadata, table_id: TableId, volume: VolumeId) -> bool:
    """Whether a replica table must be on the volume already: making one where it was lost would hide the loss."""
    if len(metadata.tablets.maps[table_id].tablets_on([volume])):
        return True
    return any(
        transition.pending == volume and transition.stage not in FIRST_STAGES
        for key, transition in metadata.tablets.transitions.items()
        if key[0] == table_id
    )


def _drop_unless_gone(
    storage: Storage, metadata: ClusterMetadata, transitions: Sequence[Transition], volume: VolumeId
) -> None:
    try:
        drop(storage, metadata, transitions[0].table_id, volume, [tokens_of(metadata, one) for one in transitions])
    except SideEffectFailed:
        node = metadata.directory.node_of_volume[volume]
        if not is_gone(metadata, volume):
            raise
        logger.info("node %s is %s: nothing to clean up on it", node.name, node.state)
