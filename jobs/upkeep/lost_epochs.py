"""Epochs that were committed and are not in the log any more: finding them, and going on without them.

What is lost is lost as a whole, and everybody can tell. A new incarnation begins in the log; ZooKeeper's
head, snapshots and replicas' fences of what is lost come before it, however high their epochs are, so nothing that was
planned there lands, and replicas that were fenced there work again (seed 003, "Cluster reset").
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import msgspec
from epochlake.jobs.coordinator.fencing import sessions_by_replica
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.outcomes import Unreachable
from epochlake.jobs.upkeep.known_to_replicas import THREADS, Address, addresses, fences, strangers, with_rows
from epochlake.jobs.upkeep.log_members import from_members, named_at
from epochlake.jobs.upkeep.log_upkeep import plan_healing
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.committing.queue import CommitQueue
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.head import Head, correct_head, read_head
from epochlake.metastore.coordination.root import known_root, replace_root
from epochlake.metastore.errors import (
    CoordinationUnavailable,
    NotInitialised,
    Rejected,
    StorageUnavailable,
    UnknownFormat,
    WrongCluster,
)
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.cutting import Behind, CutLog, after_hole, behind
from epochlake.metastore.log.entry import Entry, Position
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.log.holes import Unfillable
from epochlake.metastore.log.rescued import RescuedLog
from epochlake.metastore.log.restoring import Lost
from epochlake.metastore.log.shortening import ShortLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import AcceptLoss
from epochlake.metastore.metadata.fence import Fence
from epochlake.metastore.metastore import Metastore
from epochlake.metastore.root import Root
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.rejections import Code

logger = logging.getLogger(__name__)


class Known(msgspec.Struct, frozen=True):
    """An epoch that somebody knows and the log does not hold. `hash` is empty where only the number is known."""

    by: str
    incarnation: int
    epoch: int
    hash: str = ""


class Look(msgspec.Struct, frozen=True):
    """What the log was compared with: what is known beyond it, and what could not be asked."""

    known: tuple[Known, ...]
    unasked: tuple[str, ...]


class AcceptedLoss(msgspec.Struct, frozen=True):
    """What was accepted as lost, and where the cluster goes on (with `dry_run`: would).

    `log_epoch` is the last epoch of the log that is left, `epoch` the first of the new `incarnation`. `snapshots`:
    epochs whose snapshots were put aside; `fenced`: how many replica tables are in the new incarnation, `unreachable`:
    those that are not. `lost`: the first and the last epoch that is lost, as far as that is known; `hole`: the commit
    of the log that is torn or missing, when that is why; `put_aside`: files of the log after it.
    """

    dry_run: bool
    log_epoch: int
    incarnation: int
    epoch: int | None
    known: tuple[Known, ...]
    unasked: tuple[str, ...]
    snapshots: tuple[int, ...] = ()
    fenced: int = 0
    unreachable: tuple[str, ...] = ()
    lost: tuple[int, int] | None = None
    hole: str = ""
    put_aside: tuple[str, ...] = ()


def beyond(cluster: Metastore, *, replicas: bool) -> Look:
    """What ZooKeeper's head, the snapshots and (if asked for) the replicas' fences know that the log does not hold."""
    known: list[Known] = []
    unasked: list[str] = []
    try:
        head = read_head(cluster.coordination())
        if head is not None:
            known.append(Known("ZooKeeper", head.incarnation, head.epoch, head.hash))
    except (CoordinationUnavailable, WrongCluster) as error:
        unasked.append(f"the log was not compared with ZooKeeper: {error}")
    known += [Known("a snapshot", found.incarnation, found.epoch, found.hash) for found in _snapshots(cluster)]
    for name, found in fences(cluster.storage, cluster.metadata) if replicas else ():
        if isinstance(found, str):
            unasked.append(f"{name} was not asked: {found}")
        else:
            known.append(Known(f"replica table {name}", found.incarnation, found.epoch))
    unknown = strangers(cluster.storage, cluster.metadata) if replicas else []
    # The log last: what is committed meanwhile is in it then.
    hashes, metadata = _hashes(cluster), cluster.catch_up()
    known += [Known(f"replica table {one.name}", one.fence.incarnation, one.fence.epoch) for one in unknown]
    without = [
        Known(f"replica table {name}, which has rows", fence.incarnation, fence.epoch)
        for name, fence in with_rows(metadata, cluster.log, unknown)
    ]

    def is_beyond(one: Known) -> bool:
        if one.hash:
            return one.incarnation >= metadata.identity.incarnation and hashes.get(one.epoch) != one.hash
        return Fence(one.epoch, one.incarnation) > metadata.fence

    return Look((*(one for one in known if is_beyond(one)), *without), tuple(unasked))


def accept_loss(
    configuration: Configuration,
    *,
    reason: str = "",
    request_id: str | None = None,
    dry_run: bool = False,
    storage: Storage | None = None,
) -> AcceptedLoss:
    """Begin a new incarnation where the log ends. Raises Rejected (nothing-lost) when it holds all that is known.

    A log with a hole ends there: what comes after it is put aside. Raises Rejected (can-be-healed) where the hole can
    be filled, and of a log that has members. Safe to repeat: what a run that was killed has left to do is done by
    the next one.
    """
    storage, root = storage or Storage(configuration.storage), Root(configuration.root)
    hole, members = _hole(storage, root), named_at(storage, root)
    if hole is not None and members:
        raise Rejected(
            Code.CAN_BE_HEALED,
            f"{', '.join(members)} keep copies of the log, and nothing is lost that these have",
            hint=from_members(root, members),
        )
    with _Rescued(configuration, storage, hole) as cluster:
        before = cluster.metadata
        look = beyond(cluster, replicas=True)
        if hole is not None:
            look = Look((*_behind(cluster, hole), *look.known), look.unasked)
        incarnation = max([before.identity.incarnation, *(known.incarnation for known in look.known)]) + 1
        highest = max((known.epoch for known in look.known), default=before.epoch)
        planned = AcceptedLoss(
            dry_run,
            before.epoch,
            incarnation,
            None,
            look.known,
            look.unasked,
            lost=(before.epoch + 1, highest) if highest > before.epoch else None,
            hole=_said_of(hole),
            put_aside=_put_aside_for(cluster, hole),
        )
        if dry_run:
            if not look.known:
                raise _nothing_lost(before, look)
            return planned
        committed = None
        if look.known:
            most = max(look.known, key=lambda known: (known.incarnation, known.epoch, known.hash))
            event = AcceptLoss(incarnation, most.epoch, most.hash, most.by)
            committed = cluster.commit(event, reason=reason, request_id=request_id)
        hashes = _hashes(cluster)
        aside = tuple(found.epoch for found in _snapshots(cluster) if hashes.get(found.epoch) != found.hash)
        for epoch in aside:
            cluster.snapshots.put_aside(epoch)
        _tell_zookeeper(cluster)
        fenced, unreachable = _fence_all(storage, cluster.metadata)
        if committed is None:
            raise _nothing_lost(before, look)
        return msgspec.structs.replace(
            planned,
            incarnation=cluster.metadata.identity.incarnation,
            epoch=committed.epoch,
            snapshots=aside,
            fenced=fenced,
            unreachable=tuple(unreachable),
        )


def _hole(storage: Storage, root: Root) -> Unfillable | Lost | None:
    """What the log has lost that nothing puts back; None when it has lost nothing. Raises Rejected for what can be put
    back, LogUnreadable.
    """
    try:
        mendings = plan_healing(storage, root)
    except (Unfillable, Lost) as hole:
        return hole
    except NotInitialised:
        return None  # who opens it says what is missing
    if mendings:
        raise Rejected(Code.CAN_BE_HEALED, "nothing has to be lost", hint="Run `epochlake log heal`")
    return None


def _said_of(hole: Unfillable | Lost | None) -> str:
    if hole is None:
        return ""
    if isinstance(hole, Lost):
        return f"what {', '.join(hole.paths)} held"
    return f"commit {hole.version} of the log {hole.how}"


def _put_aside_for(cluster: _Rescued, hole: Unfillable | Lost | None) -> tuple[str, ...]:
    log = cluster.follower.log
    if isinstance(log, ShortLog):
        return tuple(file.path for file in log.gone)
    return (
        () if not isinstance(hole, Unfillable) else tuple(after_hole(cluster.storage, cluster.root.log, hole.version))
    )


def _behind(cluster: _Rescued, hole: Unfillable | Lost) -> list[Known]:
    """What is known of a log behind a hole; at least that the commit is lost, and maybe an epoch with it."""
    log, incarnation = cluster.follower.log, cluster.metadata.identity.incarnation
    if isinstance(hole, Lost):
        by = f"the log's {hole.paths[0]}"
        found = Behind(log.beyond if isinstance(log, ShortLog) else None, hole.last)
    else:
        by = f"the log behind its commit {hole.version}"
        found = behind(cluster.storage, cluster.root.log, hole.version)
    known = []
    if found.position is not None and found.position.incarnation >= incarnation:
        known.append(Known(by, found.position.incarnation, found.position.epoch, found.position.hash))
    epoch = max(found.epoch, cluster.metadata.epoch + 1)
    if not known or known[0].epoch < epoch:
        known.append(Known(by, incarnation, epoch))
    return known


class _Rescued(Metastore):
    """A cluster whose log has lost its end: it is opened without snapshots, and no announcement is compared."""

    def __init__(self, configuration: Configuration, storage: Storage, hole: Unfillable | Lost | None) -> None:
        uri = Root(configuration.root).log
        log: RescuedLog | None = None
        if hole is not None:
            log = CutLog(storage, uri, hole) if isinstance(hole, Unfillable) else ShortLog(storage, uri)
        super().__init__(configuration, storage=storage, log=log)

    def _follow(self, log: EpochLog) -> Follower:
        return Follower(log)

    def entries(self) -> list[Entry]:
        """What the log holds, or held before its hole; not through the follower's handle."""
        log = self.follower.log
        return log.entries() if isinstance(log, RescuedLog) else self.log().read(0)

    def commit_queue(self) -> CommitQueue:
        return _Unannounced(super().commit_queue())

    def _require_root(self, coordination: Coordination, known: str | None) -> None:
        """Whichever root this is, the operator says that the cluster goes on here."""


class _Unannounced:
    """A line like the one it stands for, but silent about what was announced in it."""

    def __init__(self, queue: CommitQueue) -> None:
        self._queue = queue

    def announced(self) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def _nothing_lost(metadata: ClusterMetadata, look: Look) -> Rejected:
    unasked = f" ({'; '.join(look.unasked)})" if look.unasked else ""
    return Rejected(
        Code.NOTHING_LOST,
        f"the log ends at epoch {metadata.epoch} and holds all that is known{unasked}: nothing to accept",
    )


def _hashes(cluster: Metastore) -> dict[int, str]:
    entries = cluster.entries() if isinstance(cluster, _Rescued) else cluster.log().read(0)
    return {entry.epoch: entry.hash for entry in entries}


def _snapshots(cluster: Metastore) -> list[Position]:
    """The positions of all snapshots that can be read."""
    found = []
    for epoch in cluster.snapshots.epochs():
        with suppress(UnknownFormat, StorageUnavailable):
            found.append(cluster.snapshots.read(epoch)[1])
    return found


def _tell_zookeeper(cluster: Metastore) -> None:
    """Set the head back and register the root; where ZooKeeper does not answer the next commit does the first."""
    position = cluster.follower.position
    try:
        coordination = cluster.coordination()
        correct_head(coordination, Head(position.epoch, position.state_id, position.hash, position.incarnation))
        known = known_root(coordination)
        if known is None or not cluster.storage.is_same_place(known, cluster.root.uri):
            replace_root(coordination, cluster.root.uri)
    except CoordinationUnavailable as error:
        logger.warning("ZooKeeper was not told: %s", error)


def _fence_all(storage: Storage, metadata: ClusterMetadata) -> tuple[int, list[str]]:
    """Fence every replica table at the present epoch, with the sessions that are open now; how many, and the others."""
    sessions = sessions_by_replica(metadata)

    def fence(place: Address) -> str | None:
        name, table_id, address = place
        try:
            if not storage.exists(address.uri):
                return ""
        except StorageUnavailable as error:
            return f"{name}: {error}"
        open_here = sessions.get((table_id, address.volume_id), frozenset())
        outcome = raise_fence(address, metadata.fence, open_sessions=open_here)
        return f"{name}: {outcome.reason}" if isinstance(outcome, Unreachable) else None

    outcomes = ThreadWorkers(THREADS).run(fence, addresses(storage, metadata))
    return outcomes.count(None), [outcome for outcome in outcomes if outcome]
