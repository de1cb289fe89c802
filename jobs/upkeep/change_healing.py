"""Healing change streams: files that are damaged or gone are copied anew from replicas that still have them whole.

A file has the name that it has in the stream on each replica that was written with it, until it is cut, or merged with
others and swept. So the sooner a stream is looked at the more of it can be healed. Nothing that cannot be proved whole
is copied, and a copy that two make at once has the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochlake.jobs.replicas.change_entries import ChangeEntry
from epochlake.jobs.replicas.change_index import ChangeIndex
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.sealing import DamagedBytes, require_intact
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.change_streams import ChangeStream
from epochlake.metastore.metadata.model import NodeState, Table, VolumeId
from epochlake.metastore.storage import failures, places

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store

THREADS = 8

Kept = tuple[ChangeEntry, DataFile]


def heal(cluster: Store, stream: ChangeStream, table: Table) -> tuple[int, tuple[str, ...]]:
    """Read every byte that a stream keeps, and copy anew what is damaged: how many files were healed, and of each
    that could not be, which one it is and why. Raises StorageUnavailable for the root.
    """
    index, metadata = cluster.change_indexes.of(stream), cluster.catch_up()
    volumes = sorted(_with_replicas(metadata))
    kept = [(entry, file) for entry in index.entries(index.floor(), index.tail().position) for file in entry.files]

    def look(one: Kept) -> str | None:
        """Empty for a file that was healed, None for one that is whole or not kept any more."""
        entry, file = one
        damage = _damage(cluster, index, file)
        if damage is None or entry.position <= index.floor():
            return None
        missed = _copied_anew(cluster, index, metadata, table, file, volumes)
        if missed is None:
            return ""
        others = "; ".join(f"{metadata.describe(volume)}: {reason}" for volume, reason in missed.items())
        nowhere = f"it could not be copied anew ({others})" if others else "no replica has it any more"
        return f"position {entry.position}: {index.data_uri(file)} is damaged: {damage}; {nowhere}"

    found = [said for said in ThreadWorkers(THREADS).run(look, kept) if said is not None]
    return found.count(""), tuple(said for said in found if said)


def _with_replicas(metadata: ClusterMetadata) -> list[VolumeId]:
    nodes, lost = metadata.directory.node_of_volume, metadata.directory.lost
    return [volume for volume, node in nodes.items() if node.state is not NodeState.LEFT and volume not in lost]


def _damage(cluster: Store, index: ChangeIndex, file: DataFile) -> str | None:
    """What is wrong with a stream's file; None where it is whole."""
    try:
        require_intact(cluster.storage, file, index.data_uri(file))
    except DamagedBytes as error:
        return error.damage
    except failures.MissingFile:
        return "the file is not there"
    return None


def _copied_anew(
    cluster: Store,
    index: ChangeIndex,
    metadata: ClusterMetadata,
    table: Table,
    file: DataFile,
    volumes: list[VolumeId],
) -> dict[VolumeId, str] | None:
    """Copy a file from a volume that has it whole. None, or why it could not be had from those that may have it."""
    target = index.data_uri(file)
    missed: dict[VolumeId, str] = {}
    for volume in volumes:
        try:
            address = address_of(cluster.storage, metadata, table, volume)
            source = places.join(address.uri, file.path)
            if cluster.storage.size_of(source) is None:
                continue
            require_intact(cluster.storage, file, source)
            cluster.storage.copy_file(source, target)
            require_intact(cluster.storage, file, target)
        except (StorageUnavailable, WrongCluster) as error:
            missed[volume] = error.damage if isinstance(error, DamagedBytes) else error.reason
            continue
        cluster.storage.sync_always([target], [index.data_directory])
        return None
    return missed
