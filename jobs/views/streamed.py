"""How far streaming has come, and how long the rest will take, for people: from the replica tables as they are now."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.coordinator.progress import (
    ON_THE_WAY,
    StreamProgress,
    operation_progress,
    seconds_left,
    transition_progress,
)
from epochlake.metastore.errors import LogUnreadable
from epochlake.metastore.following.history import entries
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.placement.ring.state import STEPS, Operation, Step

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

MEASURED_TRANSITIONS = 10_000
"""Above so many tablets on their way a status does not look at each: it would take seconds."""


class Streamed(msgspec.Struct, frozen=True):
    """How much of what has to be streamed has arrived; `percent` of the bytes.

    `seconds_left` is reckoned from the speed so far, null as long as there is none. `unreachable`: volumes that could
    not be looked at.
    """

    bytes_total: int
    bytes_streamed: int
    rows_total: int
    rows_streamed: int
    percent: float
    seconds_left: float | None
    unreachable: tuple[str, ...]


def operation_streamed(cluster: Cluster, metadata: ClusterMetadata, operation: Operation) -> Streamed:
    """How far an operation in flight is with streaming its ranges."""
    running = metadata.rings.running[operation.operation_id]
    streaming = operation.next_step == STEPS.index(Step.START) + 1
    since = _seconds_since(cluster, running.epoch) if streaming else 0.0
    return _streamed(metadata, operation_progress(cluster.storage, metadata, operation), since)


def transitions_streamed(cluster: Cluster, metadata: ClusterMetadata) -> Streamed | None:
    """How far the tablets on their way are; None when there are none, or too many to look at."""
    going = [one for one in metadata.tablets.transitions.values() if one.stage in ON_THE_WAY and one.error is None]
    if not going or len(going) > MEASURED_TRANSITIONS:
        return None
    since = _seconds_since(cluster, min(one.started_epoch for one in going))
    return _streamed(metadata, transition_progress(cluster.storage, metadata, going), since)


def _streamed(metadata: ClusterMetadata, found: StreamProgress, seconds_so_far: float) -> Streamed:
    return Streamed(
        bytes_total=found.bytes_total,
        bytes_streamed=found.bytes_streamed,
        rows_total=found.rows_total,
        rows_streamed=found.rows_streamed,
        percent=round(100 * found.fraction, 1),
        seconds_left=seconds_left(found, seconds_so_far),
        unreachable=tuple(metadata.describe(volume) for volume in found.unreachable),
    )


def _seconds_since(cluster: Cluster, epoch: int) -> float:
    """Seconds since an epoch was committed; 0 where its entry cannot be read."""
    try:
        return max(0.0, time.time() - entries(cluster.log(), epoch, epoch)[0].committed_at / 1e6)
    except LogUnreadable:
        return 0.0
