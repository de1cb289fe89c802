"""Which volumes answer now: the marker of each is read, by threads, and what is in the way is told."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from epochlake.jobs.replicas.volumes import require_volume
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Volume, VolumeId
from epochlake.metastore.storage.storage import Storage

THREADS = 16


class Probed(msgspec.Struct, frozen=True):
    """What a volume answered. `free` are the bytes that its file system has left, None where that cannot be told.

    `obstacle` says why it cannot be used, None when it can.
    """

    volume_id: VolumeId
    free: int | None = None
    obstacle: str | None = None


def probe(storage: Storage, metadata: ClusterMetadata, volumes: Iterable[Volume]) -> dict[VolumeId, Probed]:
    """Ask each volume whether it is there and ours."""

    def ask(volume: Volume) -> Probed:
        try:
            require_volume(storage, volume.uri, metadata.identity.cluster_id, volume.volume_id)
            space = storage.space(volume.uri)
        except (StorageUnavailable, WrongCluster) as error:
            return Probed(volume.volume_id, obstacle=str(error))
        return Probed(volume.volume_id, free=space.free if space is not None else None)

    return {found.volume_id: found for found in ThreadWorkers(THREADS).run(ask, volumes)}
