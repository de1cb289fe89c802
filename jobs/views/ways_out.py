"""What to do about storage that does not answer: bring it back, or the command by which its node is declared lost.

A command is only named when the metadata of now accepts it, so nobody is sent from a request that waits
for a dead disk to a command that is refused because of it (docs/decisions/028-a-way-out.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from epochlake.jobs.administration.topology_changes import NodeRemoval
from epochlake.metastore.committing.changes import Call
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events.losses import loss_of
from epochlake.metastore.metadata.lost_rows import require_rows_elsewhere
from epochlake.metastore.metadata.model import Node, RequestKind, VolumeId
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.rejections import Code

GIVEN_UP_BY_FORCE = frozenset({Code.ROWS_LOST, Code.ONLY_REPLICA})
"""Why a removal is refused that goes through by force: rows would be lost."""


def ways_out(storage: Storage, metadata: ClusterMetadata, silent: Iterable[VolumeId]) -> list[str]:
    """A line for each node that is not lost and has volumes among those that do not answer."""
    volumes: dict[int, list[str]] = defaultdict(list)
    for volume in sorted(set(silent)):
        node = metadata.directory.node_of_volume[volume]
        if volume not in metadata.directory.lost:
            volumes[node.node_id].append(metadata.describe(volume))
    return [
        f"volume(s) {', '.join(names)} do not answer: bring them back. "
        + way_out(storage, metadata, metadata.directory.nodes[node_id])
        for node_id, names in volumes.items()
    ]


def way_out(storage: Storage, metadata: ClusterMetadata, node: Node) -> str:
    """The command that takes a node out whose storage is lost, as the metadata of now accepts it."""
    refused = _refusal(storage, metadata, node)
    if not refused:
        return f"If they are lost, run `epochlake node remove {node.name}`"
    if refused <= GIVEN_UP_BY_FORCE:
        return (
            f"If they are lost, run `epochlake node remove {node.name} --force`: rows that only lost storage has are "
            "given up then"
        )
    force = " --force" if _rows_are_lost(metadata, node) else ""
    return (
        f"If they are lost, run `epochlake node replace {node.name} NEW --volume NAME=URI{force}`: too few other nodes "
        "are left to remove it"
    )


def _refusal(storage: Storage, metadata: ClusterMetadata, node: Node) -> frozenset[str]:
    """The codes by which its removal is refused now: none, one, or that of the rows with that of the forced one."""
    call = Call("(new)", storage, preview=True)
    codes = set()
    for force in (False, True):
        try:
            # Not `metadata.check`: changes that are paused are told by themselves.
            NodeRemoval(node.name, force=force).plan(metadata, call).check(metadata)
        except Rejected as rejected:
            codes.add(rejected.code)
        else:
            break
    return frozenset(codes)


def _rows_are_lost(metadata: ClusterMetadata, node: Node) -> bool:
    try:
        require_rows_elsewhere(metadata, node)
        loss_of(metadata, node, RequestKind.REPLACE)
    except Rejected as rejected:
        return rejected.code == Code.ROWS_LOST
    return False
