"""Measuring what the balancer needs: the bytes of every tablet replica, from the replica tables themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import overlap
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.replicas.volumes import require_volume
from epochlake.jobs.workers import Workers
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState, TableId, Volume, VolumeId
from epochlake.metastore.planning.balancing import Loads
from epochlake.placement.tokens import tablet_label, tablet_of, tokens_of_label

THREADS = 16


def measure_loads(metadata: ClusterMetadata) -> Loads:
    """Open every replica table of every node that is there, and add up its files by tablet.

    A volume that does not answer, or on which a replica table does not, counts as not measured: it is no target then.
    """
    nodes = [node for node in metadata.directory.nodes.values() if node.state is NodeState.NORMAL]
    volumes = [volume for node in nodes if not node.lost for volume in node.volumes]
    answers = Workers(THREADS).run(lambda volume: _answers(metadata, volume), volumes)
    answering = {volume.volume_id for volume, there in zip(volumes, answers, strict=True) if there}
    unmeasured = {volume.volume_id for node in nodes for volume in node.volumes} - answering
    places: list[tuple[TableId, VolumeId]] = []
    for table_id, tablet_map in metadata.tablets.maps.items():
        used = {int(volume) for volume in set(tablet_map.to_array().ravel().tolist())}
        places += [
            (table_id, volume)
            for volume in sorted(used)
            if volume in metadata.directory.volumes
            and metadata.directory.node_of_volume[volume].state is not NodeState.LEFT
            and volume not in metadata.directory.lost
        ]

    def attempt(place: tuple[TableId, VolumeId]) -> tuple[tuple[TableId, VolumeId], dict[int, int] | None]:
        table_id, volume = place
        try:
            files = open_snapshot(address_of(metadata, metadata.schema.tables[table_id], volume)).all_files
        except (StorageUnavailable, WrongCluster):
            return place, None
        return place, bytes_by_tablet(files.values(), metadata.tablets.maps[table_id].count)

    sizes: dict[tuple[TableId, int, VolumeId], int] = {}
    for (table_id, volume), tablets in Workers(THREADS).run(attempt, places):
        if tablets is None:
            unmeasured.add(volume)
            continue
        for tablet, size in tablets.items():
            sizes[(table_id, tablet, volume)] = size
    return Loads(sizes, frozenset(unmeasured))


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


def _answers(metadata: ClusterMetadata, volume: Volume) -> bool:
    try:
        require_volume(volume.uri, metadata.identity.cluster_id, volume.volume_id)
    except (StorageUnavailable, WrongCluster):
        return False
    return True
