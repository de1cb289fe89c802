"""Settling what earlier compactions have left half done: merged files that the ledger knows and no replica has.

Such a file keeps what it would replace from ever being compacted, so it is finished or taken back. It can
be finished while the cluster is at the epoch that it was planned at: its bytes lie on the replicas, they only have to
be committed. It is taken back at a later epoch, when every replica is fenced there: whoever planned it, and may only
be slow, is refused from then on, so if no replica has it then, none ever will. A file that at least one replica has is
neither: repair brings it to the others.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.copying import copy_data_file, file_copy
from epochlake.jobs.replicas.cutting import described
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.files import DataFile, path_of
from epochlake.jobs.replicas.intervals import meet, without
from epochlake.jobs.replicas.ledger import Merge
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.sealing import require_intact
from epochlake.jobs.upkeep.comparing import Range
from epochlake.jobs.upkeep.repair import ReplicaView
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.storage import places
from epochlake.placement.tokens import range_label

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store


class Settled(msgspec.Struct, frozen=True):
    """How many merged files were `finished` and `voided`; `pending` ones can be settled only later."""

    finished: int
    voided: int
    pending: tuple[Merge, ...]

    def stands_in_the_way(self, low: int, high: int) -> bool:
        """Whether a compaction of these tokens might be refused for the sake of one that is pending."""
        return any(meet((low, high), (merge.low, merge.high)) for merge in self.pending)


def unsettled(cluster: Store, view: ReplicaView) -> list[Merge]:
    """Merged files of the table that no replica at rest has, and that nothing has replaced."""
    merges = cluster.ledger.merges(view.table.table_id)
    known = {file.origin for snapshot in view.snapshots.values() for file in snapshot.all_files.values()}
    known |= {one.origin for merge in merges.values() for one in merge.replaced}
    return [merge for merge in merges.values() if merge.file_id not in known]


def settle(cluster: Store, view: ReplicaView, *, dry_run: bool = False) -> Settled:
    """Finish or void what can be; with `dry_run` all is left pending. Raises StorageUnavailable for the ledger."""
    waiting = unsettled(cluster, view)
    if dry_run:
        return Settled(0, 0, tuple(waiting))
    finished = [merge for merge in waiting if merge.epoch == view.metadata.fence and _finish(cluster, view, merge)]
    voided = [merge for merge in waiting if merge.epoch < view.metadata.fence and _is_nowhere(cluster, view, merge)]
    taken_back = cluster.ledger.void(voided)
    done = {merge.file_id for merge in (*finished, *voided)}
    return Settled(len(finished), len(taken_back), tuple(merge for merge in waiting if merge.file_id not in done))


def _ranges_of(view: ReplicaView, merge: Merge) -> list[Range] | None:
    """The ranges that a merged file is for, None unless all of them are at rest and all of their replicas answer."""
    ranges = [range_ for range_ in view.ranges if meet((range_.low, range_.high), (merge.low, merge.high))]
    if without((merge.low, merge.high), [(range_.low, range_.high) for range_ in ranges]):
        return None
    if any(volume not in view.snapshots for range_ in ranges for volume in range_.replicas):
        return None
    return ranges


def _addresses(cluster: Store, view: ReplicaView, ranges: Sequence[Range]) -> list[ReplicaAddress]:
    volumes = sorted({volume for range_ in ranges for volume in range_.replicas})
    return [address_of(cluster.storage, view.metadata, view.table, volume) for volume in volumes]


def _is_nowhere(cluster: Store, view: ReplicaView, merge: Merge) -> bool:
    """Whether no replica has the file and none can get it any more; fences the replicas to be sure."""
    ranges = _ranges_of(view, merge)
    if ranges is None:
        return False
    try:
        for address in _addresses(cluster, view, ranges):
            if raise_fence(address, view.metadata.fence) != view.metadata.fence:
                return False
        # Only now: a commit that looked before the fence was raised is in the table by now, or never will be.
        snapshots = [open_snapshot(address) for address in _addresses(cluster, view, ranges)]
    except (StorageUnavailable, WrongCluster):
        return False
    return not any(file.origin == merge.file_id for snapshot in snapshots for file in snapshot.all_files.values())


def _finish(cluster: Store, view: ReplicaView, merge: Merge) -> bool:
    """Commit the file on the replicas from the bytes that lie there; whether at least one of them has it now."""
    ranges = _ranges_of(view, merge)
    if ranges is None or len({frozenset(range_.replicas) for range_ in ranges}) != 1:
        return False
    addresses = _addresses(cluster, view, ranges)
    found = [(address, file) for address in addresses if (file := _stored(address, merge, ranges[0].label))]
    if not found:
        return False
    source, file = found[0]
    committed = False
    for address in addresses:
        try:
            if not any(address == holder for holder, _ in found):
                copy_data_file(file_copy(file, source, address))
        except (StorageUnavailable, WrongCluster):
            continue
        outcome = commit_files(
            address,
            [file],
            epoch=merge.epoch,
            app_id=f"compaction-{uuid.uuid4()}",
            app_version=1,
            ledger=cluster.ledger,
        )
        committed = committed or isinstance(outcome, Acknowledged | AlreadyApplied)
    return committed


def _stored(address: ReplicaAddress, merge: Merge, label: str) -> DataFile | None:
    """The merged file as it lies in a replica's directory."""
    window = (merge.low, merge.high)
    path = path_of(range_label(*window), merge.file_id)
    uri = places.join(address.uri, path)
    try:
        found = described(address.storage, uri, path, label, window)
        if found is not None:
            require_intact(address.storage, found, uri)  # damaged bytes are finished nowhere
            # Whoever has stored it may not have come to that.
            address.storage.sync_data([uri])
        return found
    except StorageUnavailable:
        return None
