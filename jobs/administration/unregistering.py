"""Taking nodes that have left out of the metadata for good, once nothing of them is needed any more.

What the log knows is for the event to check. Here storage is asked: files that vacuum has not deleted would be found by
nobody afterwards, and a log member on a volume may be what a lost root is restored from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from epochlake.jobs.replicas.volumes import require_volume
from epochlake.jobs.upkeep.clearing import tables_of_volume
from epochlake.metastore.committing.changes import Call, Change, Options
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.errors import Rejected, StorageUnavailable, WrongCluster
from epochlake.metastore.log import generations
from epochlake.metastore.log.log_place import LogWithMembers
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import UnregisterNodes
from epochlake.metastore.metadata.model import Node
from epochlake.metastore.metadata.names import node_names
from epochlake.metastore.metastore import log_below
from epochlake.metastore.storage import places
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster


def unregister_nodes(cluster: Cluster, *names: str, force: bool = False, **options: Unpack[Options]) -> Committed:
    """Take nodes that have left out of the metadata, all of these or none; earlier epochs still show them.

    Their names are free, their numbers, host ids and volumes are never given again, and a disk of theirs that comes
    back is still known as what it was. `force`: also where a drained node has files that vacuum has not deleted yet, or
    does not answer. Raises Rejected for a node that has not left, or of which something is needed still.
    """
    return cluster.commit(Unregistration(names, force=force), **options)


class Unregistration(Change[UnregisterNodes], frozen=True):
    """What `unregister_nodes` commits."""

    verb: ClassVar[str] = "unregister nodes"
    names: tuple[str, ...]
    force: bool = False

    def plan(self, metadata: ClusterMetadata, call: Call) -> UnregisterNodes:
        nodes = [_named(metadata, name) for name in self.names]
        event = UnregisterNodes(tuple(node.node_id for node in nodes))
        metadata.require_enabled(*event.features_used())
        event.check(metadata)  # before storage is asked about nodes that stay anyway
        members = _log_members(call)
        for node in nodes:
            _require_no_member(node, members)
            if not self.force:
                _require_cleared(metadata, node, call)
        return event


def _named(metadata: ClusterMetadata, name: str) -> Node:
    """The node of a name, also as lists show one whose name was used again: `name#number`."""
    called = {label: key for key, label in node_names(metadata.directory).items() if key in metadata.directory.nodes}
    return metadata.directory.nodes[called[name]] if name in called else metadata.node(name)


def _log_members(call: Call) -> tuple[str, ...]:
    place = log_below(call.configuration, call.storage)
    newest = generations.newest(place.storage, place.register) if isinstance(place, LogWithMembers) else None
    return newest.members if newest is not None else ()


def _require_no_member(node: Node, members: tuple[str, ...]) -> None:
    for volume in node.volumes:
        local = places.local_path(volume.uri)
        for member in members if local is not None else ():
            if f"{member}/".startswith(f"{str(local).rstrip('/')}/"):
                raise Rejected(
                    Code.IS_LOG_MEMBER,
                    f"{member} on volume {volume.name!r} of node {node.name!r} is a log member",
                    hint="Choose others by `epochlake metadata reconfigure` first",
                )


def _require_cleared(metadata: ClusterMetadata, node: Node, call: Call) -> None:
    """Raise Rejected where a node that was drained still has files. Those of lost storage are left alone by everybody,
    and in an object store people delete them.
    """
    for volume in node.volumes:
        if node.lost or places.local_path(volume.uri) is None:
            continue
        name = f"{node.name}/{volume.name}"
        cluster_id = metadata.identity.cluster_id
        try:
            require_volume(call.storage, volume.uri, cluster_id, volume.volume_id)
            left = tables_of_volume(call.storage, volume.uri, cluster_id, volume.volume_id)
        except WrongCluster:
            continue  # the place is somebody else's by now
        except StorageUnavailable as error:
            raise Rejected(
                Code.STORAGE_LEFT,
                f"whether vacuum has deleted what was on {name} cannot be told: {error.statement}",
                hint="Bring it back, or give --force when it is gone or may stay as it is",
            ) from error
        if left:
            raise Rejected(
                Code.STORAGE_LEFT,
                f"vacuum has not deleted yet what node {node.name!r} has left behind: {left[0]} is there",
                hint="Run `epochlake vacuum` first, which leaves alone what is younger than its --older-than (1h), or "
                "give --force when it may stay where it is",
            )
