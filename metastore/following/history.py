"""Reading history without changing anything: the metadata as of an epoch, the entries of a range, what differs.

An epoch of the past is had like the newest one, from a snapshot and the entries after it, so it needs
nothing that was not kept anyway. Read with a log handle of its own, never with that of a follower: a handle that was
moved to the tail behind a committer's back would let it append on top of what it has not seen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from epochlake.metastore.committing.arguments import require_epoch_number
from epochlake.metastore.errors import LogUnreadable, NotInitialised
from epochlake.metastore.following.snapshots import Snapshots, is_proved
from epochlake.metastore.following.verification import Finding, VerificationReport, verify
from epochlake.metastore.log.entry import Entry, Position, verify_next
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.differences import Difference, diff
from epochlake.placement.errors import InvalidRequest

logger = logging.getLogger(__name__)

MAX_EPOCH = 2**63 - 1
"""Epochs are 64-bit numbers in the log: a greater one cannot even be asked for."""

__all__ = [
    "Difference",
    "Finding",
    "VerificationReport",
    "diff",
    "entries",
    "metadata_at",
    "replay",
    "verify",
]


def metadata_at(log: EpochLog, snapshots: Snapshots | None, epoch: int) -> ClusterMetadata:
    """The cluster metadata as of `epoch`: the newest usable snapshot at or before it, and the entries in between.

    A snapshot is usable when it is whole and the log proves it, by the entry that asked for it. Raises
    InvalidRequest, naming the epochs that are there, for one that is not; LogUnreadable when the log cannot be trusted,
    or is shorter than its snapshots say.
    """
    _require_possible(log, epoch)
    at_most = epoch
    while True:
        found = snapshots.newest(at_most) if snapshots is not None else None
        metadata, position = found or (ClusterMetadata.empty(), Position())
        tail = log.read(max(position.epoch - 1, 0), epoch)
        if position.epoch == 0:
            break
        if is_proved(tail[0] if tail else None, metadata, position):
            del tail[0]
            break
        logger.warning("the snapshot of epoch %d is not used: the log does not prove it", position.epoch)
        at_most = position.epoch - 1
    metadata, _ = replay(metadata, position, tail)
    if metadata.epoch != epoch:
        raise no_such_epoch(epoch, metadata.epoch)
    return metadata


def entries(log: EpochLog, first: int = 1, last: int | None = None) -> list[Entry]:
    """The entries of epochs `first` to `last`, both included; to the tail when `last` is None or beyond it.

    What is there is returned as it is: whether it can be trusted is for `verify`. Raises InvalidRequest when the range
    is empty or begins after the tail.
    """
    _require_possible(log, first)
    if last is not None:
        require_epoch_number(last)
    if last is not None and last < first:
        raise InvalidRequest(f"there is no epoch from {first} to {last}: the first of a range comes first")
    try:
        found = log.read(first - 1, None if last is None else min(last, MAX_EPOCH))
    except LogUnreadable:
        if _tail(log) >= first:
            raise
        found = []
    if not found:
        raise no_such_epoch(first, _tail(log))
    return list(found)


def replay(
    metadata: ClusterMetadata, position: Position, following: Iterable[Entry]
) -> tuple[ClusterMetadata, Position]:
    """Apply the entries that follow `position` to the metadata there, their chain verified; what comes out at the end.

    Raises LogGap, HashMismatch or UnknownFormat, each naming the epoch.
    """
    for entry in following:
        position = verify_next(position, entry)
        metadata = metadata.apply(entry.decode(), entry.state_id)
    return metadata, position


def _require_possible(log: EpochLog, epoch: int) -> None:
    require_epoch_number(epoch)
    if not 1 <= epoch <= MAX_EPOCH:
        raise no_such_epoch(epoch, _tail(log))


def _tail(log: EpochLog) -> int:
    return max((entry.epoch for entry in log.read(0)), default=0)


def no_such_epoch(epoch: int, last: int) -> InvalidRequest | NotInitialised:
    """The error for an epoch that is not in the log, whose newest one is `last`."""
    if last == 0:
        return NotInitialised("the log holds no epoch yet", hint="Run `epochlake init` first")
    return InvalidRequest(f"epoch {epoch} is not in the log", hint=f"Ask for one from 1 to {last}")
