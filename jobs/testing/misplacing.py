"""Where replicas have to be when nothing goes on."""

from __future__ import annotations

from epochlake.jobs.testing.rows import TABLE
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.placement.ring.state import NodeState


def misplaced(metadata: ClusterMetadata) -> list[str]:
    """At rest each range has as many replicas as asked for, on different nodes, in as many racks as there are."""
    table = metadata.table(TABLE)
    placements = metadata.placements(table.table_id)
    wanted = sum(metadata.schema.keyspaces[table.keyspace].replication.values())
    nodes = [node for node in metadata.directory.members() if node.state is NodeState.NORMAL]
    racks = len({node.rack for node in nodes})
    found = []
    for index in range(len(placements.lows)):
        placement = placements.placement(index)
        on = [metadata.directory.node_of_volume[volume] for volume in placement.writes]
        if {*placement.reads} != {*placement.writes} or len({node.node_id for node in on}) != wanted:
            found.append(f"range {index} at rest is read at {placement.reads} and written at {placement.writes}")
        elif len({node.rack for node in on}) != min(wanted, racks):
            found.append(f"range {index} at rest is in the racks {sorted(node.rack for node in on)}")
    return found
