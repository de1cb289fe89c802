"""The markers of a new node's volumes, written before the node is registered.

A marker is only believed together with the log: one that names a node which was never registered is what a killed try
has left, and the next try of the same node takes it over. A try whose name somebody else was faster to register takes
its own markers back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.administration.reusing import asides, clear_left_volume, left_volume
from epochlake.jobs.replicas.volumes import MARKER_FILE, VolumeMarker, marker_uri, prepare_volume, read_marker
from epochlake.metastore.committing.changes import Preparation
from epochlake.metastore.errors import Rejected, StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import RegisterNode
from epochlake.metastore.metadata.model import NodeState, Volume
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import EpochlakeError

if TYPE_CHECKING:
    from epochlake.metastore.metastore import Metastore

logger = logging.getLogger(__name__)


class Markers(Preparation[RegisterNode]):
    """The markers that one commit of a registration writes; with `reuse` volumes of nodes that have left are cleared.

    When the registration is rejected, they are taken back. At the end, whatever became of it, the markers of the node
    are made to agree with the log.
    """

    def __init__(self, metastore: Metastore, name: str, *, reuse: bool = False) -> None:
        self._metastore = metastore
        self._name = name
        self._reuse = reuse
        self._written: dict[str, str] = {}
        """The host id in each marker that was not there before, by the URI of its volume."""

    def prepare(self, event: RegisterNode, metadata: ClusterMetadata) -> None:
        storage = self._metastore.storage
        # All are looked at before one of them is written: a refused node leaves no place marked.
        for volume in event.volumes:
            require_claimable(storage, volume, event, metadata, reuse=self._reuse)
        for volume in event.volumes:
            if self._reuse and not _is_of(storage, volume, event, metadata):
                clear_left_volume(self._metastore, metadata, volume.uri)
            if _claim(storage, volume, event, metadata):
                self._written[volume.uri] = event.host_id

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Rejected):
                self._take_back()
        finally:
            self._follow_the_log()

    def _take_back(self) -> None:
        """Delete the markers that this rejected registration has written, so that the places can be used by others.

        Only when the node's name is another host's by now: then no other try of this registration, which would rely on
        the same markers, can land any more. Best effort: a marker that stays is taken over by the next try of this
        name.
        """
        storage = self._metastore.storage
        try:
            directory = self._metastore.catch_up().directory
            node = directory.by_name.get(self._name)
            registered = {one.host_id for one in directory.known.values()}
            for uri, host_id in self._written.items():
                there = _marker_at(storage, uri)
                if node is not None and host_id not in registered and there is not None and there.host_id == host_id:
                    storage.delete_file(marker_uri(uri))
        except EpochlakeError as error:
            logger.info("the markers of node %s were not taken back: %s", self._name, error)

    def _follow_the_log(self) -> None:
        """Correct markers that a racing try of the same node has numbered after this node was registered.

        Two tries share a host id, and one that was slow may have written numbers that it had planned before the other's
        commit. Whoever ends last sees the registration and puts it right. Best effort: a wrong number is found out by
        whoever opens the volume, never believed.
        """
        storage = self._metastore.storage
        try:
            node = self._metastore.catch_up().directory.by_name.get(self._name)
            for volume in node.volumes if node is not None else ():
                there = _marker_at(storage, volume.uri)
                if node is not None and there is not None and there.host_id == node.host_id:
                    right = msgspec.structs.replace(there, volume_id=volume.volume_id, volume=volume.name)
                    if there != right:
                        _replace_marker(storage, volume.uri, right)
        except EpochlakeError:
            return


def host_id_of_earlier_try(storage: Storage, metadata: ClusterMetadata, name: str, places: Sequence[str]) -> str | None:
    """The host id in a marker that was written for this node by a try whose registration did not land."""
    registered = {node.host_id for node in metadata.directory.known.values()}
    for uri in places:
        there = _marker_at(storage, uri)
        if (
            there is not None
            and (there.cluster_id, there.node) == (metadata.identity.cluster_id, name)
            and there.host_id not in registered
        ):
            return there.host_id
    return None


def _marker_at(storage: Storage, uri: str) -> VolumeMarker | None:
    try:
        return read_marker(storage, uri)
    except StorageUnavailable:
        return None


def _is_of(storage: Storage, volume: Volume, event: RegisterNode, metadata: ClusterMetadata) -> bool:
    """Whether the volume has the marker of an earlier try of this registration."""
    there = _marker_at(storage, volume.uri)
    return there is not None and (there.cluster_id, there.host_id) == (metadata.identity.cluster_id, event.host_id)


def require_claimable(
    storage: Storage, volume: Volume, event: RegisterNode, metadata: ClusterMetadata, *, reuse: bool
) -> None:
    """Raise WrongCluster where a place has the marker of another volume; what does not answer is found out later."""
    there = _marker_at(storage, volume.uri)
    if there is None or (there.cluster_id, there.host_id) == (metadata.identity.cluster_id, event.host_id):
        return
    if reuse:
        left_volume(metadata, volume.uri, there)
        return
    node = metadata.directory.node_of_volume.get(there.volume_id)
    has_left = there.cluster_id == metadata.identity.cluster_id and node is not None and node.state is NodeState.LEFT
    if not has_left:
        # A marker of this cluster that the log does not know: a try of that node was ended, and can be made again.
        ours = there.cluster_id == metadata.identity.cluster_id and (node is None or node.host_id != there.host_id)
        where = ", which was never registered" if ours else f" in cluster {there.cluster!r} ({there.cluster_id})"
        instead = "Add that node again" if ours else "Give another place"
        raise WrongCluster(
            f"{volume.uri} cannot become volume {volume.name!r} of node {event.name!r}: it is volume {there.volume!r} "
            f"(number {there.volume_id}) of node {there.node!r}{where}",
            hint=f"{instead}, or remove {MARKER_FILE} there{'' if ours else ' when nothing on it is needed any more'}",
        )
    raise WrongCluster(
        f"{volume.uri} cannot become a volume of node {event.name!r} as it is: it was volume {there.volume!r} "
        f"of node {there.node!r}, which has left",
        hint="Add it with --reuse, which clears it",
    )


def _claim(storage: Storage, volume: Volume, event: RegisterNode, metadata: ClusterMetadata) -> bool:
    """Make `volume` carry the marker of this registration; whether there was none before.

    Raises WrongCluster when it is somebody else's.
    """
    marker = VolumeMarker(
        cluster=metadata.identity.name,
        cluster_id=metadata.identity.cluster_id,
        node=event.name,
        host_id=event.host_id,
        volume_id=volume.volume_id,
        volume=volume.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if asides(storage, volume.uri):
        raise WrongCluster(
            f"{volume.uri} cannot become a volume of node {event.name!r} as it is: somebody began to clear it "
            "and has not finished",
            hint="Add it with --reuse",
        )
    try:
        there = prepare_volume(storage, volume.uri, marker)
    except WrongCluster:
        there = read_marker(storage, volume.uri)
        if (there.cluster_id, there.host_id) != (marker.cluster_id, marker.host_id):
            raise
    if (there.volume_id, there.volume) != (marker.volume_id, marker.volume):
        _replace_marker(storage, volume.uri, marker)
    return there is marker


def _replace_marker(storage: Storage, uri: str, marker: VolumeMarker) -> None:
    storage.replace_bytes(marker_uri(uri), msgspec.json.format(msgspec.json.encode(marker), indent=2))
