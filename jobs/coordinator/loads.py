"""Measuring what the balancer needs: the bytes of every tablet replica, from the replica tables themselves."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.states import FileTable
from epochlake.jobs.replicas.volumes import require_volume
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.jobs.workers.workers import Workers
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState, VolumeId
from epochlake.metastore.planning.balancing import Loads
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import MIN_TOKEN, tablet_of

THREADS = 16
MEASURING_PARTITIONS = 64
"""Of a Spark job that measures: it only opens tables, and there are many."""


PART_OF_THE_TIME = 0.05
"""Of a coordinator that has nothing to do but to look whether there is something."""

LONGEST_SECONDS = 60.0
"""What hung for a while is looked at again after so long at the latest."""


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


class Meter:
    """Measures loads, and gives those of a moment ago as long as they are good enough.

    Measuring takes no more than a part of the time, `PART_OF_THE_TIME`, however many replica tables there are: what
    took long is used for long. `seconds`: how old loads may be in any case.
    """

    def __init__(self, measure: Callable[[ClusterMetadata], Loads], seconds: float = 0.0) -> None:
        self._measure = measure
        self._seconds = seconds
        self._measured: tuple[object, float, Loads] | None = None

    def loads(self, metadata: ClusterMetadata, known: object) -> Loads:
        """The loads of now, or those before, of the same `known`: what nothing may have changed of meanwhile."""
        now = time.monotonic()
        if self._measured is None or self._measured[0] != known or now > self._measured[1]:
            found = self._measure(metadata)
            taken = time.monotonic() - now
            rest = max(self._seconds, min(taken / PART_OF_THE_TIME, LONGEST_SECONDS))
            self._measured = (known, now + taken + rest, found)
        return self._measured[2]


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


def bytes_by_tablet(files: FileTable, count: int) -> dict[int, int]:
    """The bytes of each of `count` tablets; of a file that straddles tablets, each has its share of the tokens."""
    if not files.files:
        return {}
    # A file without a row has its window's share.
    low, high = np.where(files.extents[0] <= files.extents[1], files.extents, files.windows)
    size = files.sizes
    first, last = tablet_of(low, count), tablet_of(high, count)
    width = float(1 << 64) / count
    # From here on in tokens from the lowest one, as numbers with a point: what is looked for are shares.
    start, end = (tokens.astype(np.float64) - float(MIN_TOKEN) for tokens in (low, high))
    dense = size / (end - start + 1)
    within = first == last
    of_first = np.where(within, size, dense * ((first + 1) * width - start))
    of_last = np.where(within, 0.0, dense * (end + 1 - last * width))
    # Each tablet between the first and the last one has as much as the next: only what changes is kept.
    change = np.zeros(count + 1)
    np.add.at(change, np.minimum(first + 1, last), np.where(within, 0.0, dense * width))
    np.add.at(change, last, np.where(within, 0.0, -dense * width))
    held = np.cumsum(change)[:count]
    np.add.at(held, first, of_first)
    np.add.at(held, last, of_last)
    begun = np.zeros(count + 1, dtype=np.int64)
    np.add.at(begun, first, 1)
    np.add.at(begun, last + 1, -1)
    tablets = np.flatnonzero(np.cumsum(begun)[:count])
    return dict(zip(tablets.tolist(), np.rint(held[tablets]).astype(np.int64).tolist(), strict=True))


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
        files = open_snapshot(place.address).table
    except (StorageUnavailable, WrongCluster):
        return TabletBytes(None)
    return TabletBytes(bytes_by_tablet(files, place.count))
