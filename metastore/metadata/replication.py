"""Which keyspaces are placed on the ring, and which replication setting decides where their rows are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochlake.metastore.metadata.model import Keyspace, PlacementKind
from epochlake.placement.ring.strategies import Replication, replication_of

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


def replication_setting(metadata: ClusterMetadata, keyspace: str) -> Replication:
    """The setting that decides where the rows of a ring keyspace are now."""
    found = metadata.schema.keyspaces[keyspace]
    return metadata.rings.changing.get(keyspace) or replication_of(found.strategy, found.replication)


def ring_keyspaces(metadata: ClusterMetadata) -> dict[str, Keyspace]:
    """Keyspaces with ring placement, by name."""
    return {
        name: keyspace
        for name, keyspace in metadata.schema.keyspaces.items()
        if keyspace.placement is PlacementKind.RING
    }
