"""From whom rows are streamed: the replica that gives them up, or so many that together they have every row.

A source is fenced at the epoch of the step before it is looked at: what is not in its snapshot then can only come from
pipelines that write to the pending replica as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from epochlake.jobs.coordinator.effects.replicas import open_replica
from epochlake.jobs.coordinator.errors import SideEffectFailed
from epochlake.jobs.coordinator.fencing import is_gone
from epochlake.jobs.replicas.opening import unfilled
from epochlake.jobs.replicas.receipts import Receipts, went_back
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events.losses import DECLARING
from epochlake.metastore.metadata.events.nodes import nodes_given_up
from epochlake.metastore.metadata.model import TableId, VolumeId
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.consistency import blocking


class Sources:
    """Snapshots of the replicas of a table that are fenced at `epoch` or above; each is opened once.

    With `receipts`, none that lacks what it has acknowledged.
    """

    def __init__(
        self,
        storage: Storage,
        metadata: ClusterMetadata,
        table_id: TableId,
        epoch: int,
        receipts: Receipts | None = None,
    ) -> None:
        self._acknowledged = {} if receipts is None else receipts.of(table_id)
        self._storage = storage
        self._metadata = metadata
        self._table_id = table_id
        self._epoch = epoch
        self._opened: dict[VolumeId, ReplicaSnapshot | SideEffectFailed] = {}

    def of(self, volume: VolumeId) -> ReplicaSnapshot:
        """The replica on a volume. Raises SideEffectFailed when it does not answer, or is fenced below the epoch."""
        if volume not in self._opened:
            self._opened[volume] = self._open(volume)
        found = self._opened[volume]
        if isinstance(found, SideEffectFailed):
            raise found
        return found

    def answers(self, volume: VolumeId) -> bool:
        """Whether the replica on a volume can be a source."""
        try:
            self.of(volume)
        except SideEffectFailed:
            return False
        return True

    def quorum(
        self,
        replicas: Sequence[VolumeId],
        target: VolumeId,
        *,
        of: Sequence[VolumeId] | None = None,
        datacenter: str = "",
    ) -> list[ReplicaSnapshot]:
        """Snapshots that together hold every acknowledged write to `replicas`: they meet every quorum of them.

        With `of`, every quorum of these: of `replicas` and others that have lost their rows. Within the datacenter of
        `target` they meet every LOCAL_QUORUM too, unless all that is missing there is gone for good. With `datacenter`,
        only replicas there are taken, and rows that only a LOCAL_QUORUM elsewhere has acknowledged are not looked for.
        Raises SideEffectFailed.
        """
        of = replicas if of is None else of
        datacenter_of = self._metadata.directory.datacenter_of
        usable = [volume for volume in replicas if datacenter in ("", datacenter_of(volume))]
        found = [volume for volume in usable if self.answers(volume)]
        here = datacenter_of(target)
        local = [volume for volume in usable if datacenter_of(volume) == here]
        if all(volume in found or is_gone(self._metadata, volume) for volume in local):
            local = []
        where = f" of datacenter {datacenter}" if datacenter else ""
        wanted_here = blocking(sum(datacenter_of(volume) == here for volume in of)) if local else 0
        for group, count, which in ((usable, blocking(len(of)), where), (local, wanted_here, f" in {here}")):
            have = sum(volume in found for volume in group)
            if have < count and not self._is_given_up([volume for volume in usable if volume not in found]):
                said = "; ".join(f"{self._metadata.describe(v)}: {self._why(v)}" for v in usable if v not in found)
                raise SideEffectFailed(
                    f"rebuilding needs {count} of the {len(group)} replicas{which}, {have} can be read ({said})",
                    hint="Bring one back, acknowledged rows may be on it alone",
                )
        return [self.of(volume) for volume in found]

    def _is_given_up(self, missing: Sequence[VolumeId]) -> bool:
        """Whether an operator has given up, by force, the rows that only the missing replicas have.

        All of these have to be lost: one that may come back is waited for.
        """
        forced = {
            node.node_id
            for request in self._metadata.open_requests()
            if request.force and request.kind in DECLARING
            for node in nodes_given_up(self._metadata, request)
        }
        owners = {self._metadata.directory.node_of_volume[volume].node_id for volume in missing}
        return all(is_gone(self._metadata, volume) for volume in missing) and bool(owners & forced)

    def _open(self, volume: VolumeId) -> ReplicaSnapshot | SideEffectFailed:
        try:
            snapshot = open_replica(self._storage, self._metadata, self._table_id, volume)
        except SideEffectFailed as failure:
            return failure
        if snapshot.unfilled:
            return SideEffectFailed(unfilled(snapshot))
        if snapshot.fence < self._epoch:
            return SideEffectFailed(f"it is fenced at {snapshot.fence} only, {self._epoch} is needed")
        older_copy = went_back(snapshot, self._acknowledged.get(volume, ()))
        return SideEffectFailed(older_copy) if older_copy else snapshot

    def _why(self, volume: VolumeId) -> str:
        found = self._opened.get(volume)
        return str(found) if isinstance(found, SideEffectFailed) else "not looked at"
