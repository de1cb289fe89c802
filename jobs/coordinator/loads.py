"""Measuring what the balancer needs: the bytes of every tablet replica, from the replica tables themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec
import numpy as np
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import overlap
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.volumes import require_volume
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.jobs.workers.workers import Workers
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState, VolumeId
from epochlake.metastore.planning.balancing import Loads
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import tablet_label, tablet_of, tokens_of_label

THREADS = 16
MEASURING_PARTITIONS = 64
"""Of a Spark job that measures: it only opens tables, and there are many."""


class TabletBytes(msgspec.Struct, frozen=True):
    """The bytes that a replica table has of each tablet of which it has any; None: it does not answer."""

    sizes: dict[int, int] | None


def measure_loads(storage: Storage, metadata: ClusterMetadata, workers: Workers | None = None) -> Loads:
    """Open every replica table of every node that is there, and add up its files by tablet.

    A volume that does not answer, or on which a replica table does not, counts as not measured: it is no target then.
    """
    workers = workers or ThreadWorkers(THREADS)
    nodes = [node for node in metadata.directory.nodes.values() if node.state is NodeState.NORMAL]
    volumes = [volume for node in nodes if not node.lost for volume in node.volumes]
    cluster_id = metadata.identity.cluster_id
    asked = [_MarkedVolume(storage, volume.uri, cluster_id, volume.volume_id) for volume in volumes]
    answers = workers.run(_answers, asked, returns=bool)
    answering = {volume.volume_id for volume, there in zip(volumes, answers, strict=True) if there}
    unmeasured = {volume.volume_id for node in nodes for volume in node.volumes} - answering
    sizes = {}
    for address, measured in measure_tablets(storage, metadata, workers):
        if measured.sizes is None:
            unmeasured.add(address.volume_id)
            continue
        for tablet, size in measured.sizes.items():
            sizes[(address.table_id, tablet, address.volume_id)] = size
    return Loads(sizes, frozenset(unmeasured))


def measure_tablets(
    storage: Storage, metadata: ClusterMetadata, workers: Workers
) -> list[tuple[ReplicaAddress, TabletBytes]]:
    """What every replica table with tablets has of them, except where the node has left or the volume is lost.

    A replica table's own log says how many bytes each of its files has, so no data is read.
    """
    places = []
    for table_id, tablet_map in sorted(metadata.tablets.maps.items()):
        for volume in sorted(set(tablet_map.to_array().ravel().tolist())):
            if (
                volume in metadata.directory.volumes
                and metadata.directory.node_of_volume[volume].state is not NodeState.LEFT
                and volume not in metadata.directory.lost
            ):
                address = address_of(storage, metadata, metadata.schema.tables[table_id], volume)
                places.append(_ReplicaTable(address, tablet_map.count))
    measured = workers.run(_measure, places, returns=TabletBytes)
    return [(place.address, found) for place, found in zip(places, measured, strict=True)]


def bytes_by_tablet(files: Iterable[DataFile], count: int) -> dict[int, int]:
    """The bytes of each of `count` tablets; of a file that straddles tablets, each has its share of the tokens."""
    held: dict[int, int] = defaultdict(int)
    for file in files:
        low, high = file.extent if file.rows else file.window
        first, last = tablet_of(np.array([low, high], dtype=np.int64), count).tolist()
        if first == last:
            held[first] += file.size
            continue
        for tablet in range(first, last + 1):
            begin, end = overlap(tokens_of_label(tablet_label(tablet, count)), (low, high))
            held[tablet] += file.size * (end - begin + 1) // (high - low + 1)
    return dict(held)


class _MarkedVolume(msgspec.Struct, frozen=True):
    """A volume, and whose marker should be there."""

    storage: Storage
    uri: str
    cluster_id: str
    volume_id: VolumeId


class _ReplicaTable(msgspec.Struct, frozen=True):
    """A replica table, and how many tablets its table has."""

    address: ReplicaAddress
    count: int


def _answers(volume: _MarkedVolume) -> bool:
    try:
        require_volume(volume.storage, volume.uri, volume.cluster_id, volume.volume_id)
    except (StorageUnavailable, WrongCluster):
        return False
    return True


def _measure(place: _ReplicaTable) -> TabletBytes:
    try:
        files = open_snapshot(place.address).all_files
    except (StorageUnavailable, WrongCluster):
        return TabletBytes(None)
    return TabletBytes(bytes_by_tablet(files.values(), place.count))
