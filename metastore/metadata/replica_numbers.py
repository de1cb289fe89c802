"""Tablets that do not have as many replicas as their keyspace asks for, and keyspaces that are being brought there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from epochlake.metastore.metadata.model import Keyspace, PlacementKind, TableId
from epochlake.placement.tablets.tablet_map import NO_REPLICA
from numpy.typing import NDArray

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


def altering(metadata: ClusterMetadata) -> list[Keyspace]:
    """Keyspaces on tablets whose replication was altered, and whose tablets do not all have it yet; by name."""
    return [k for _, k in sorted(metadata.schema.keyspaces.items()) if k.before is not msgspec.UNSET]


def tablets_of(metadata: ClusterMetadata, keyspace: str) -> list[TableId]:
    """Ids of the tables of a keyspace that have tablets, sorted."""
    tables = metadata.schema.tables
    return sorted(table_id for table_id in metadata.tablets.maps if tables[table_id].keyspace == keyspace)


def tables_altering(metadata: ClusterMetadata) -> frozenset[TableId]:
    """The tables of `altering` keyspaces."""
    return frozenset(table_id for one in altering(metadata) for table_id in tablets_of(metadata, one.name))


def unlike(metadata: ClusterMetadata, table_id: TableId) -> NDArray[np.bool_]:
    """Of each tablet of a table whether some datacenter has more or fewer of its replicas than its keyspace asks for.

    A tablet in transition counts as it was before.
    """
    keyspace = metadata.schema.keyspaces[metadata.schema.tables[table_id].keyspace]
    replicas = metadata.tablets.maps[table_id].to_array()
    wanted = {name: factor for name, factor in keyspace.replication.items() if factor}
    names = {name: number for number, name in enumerate(sorted(wanted))}
    used = [volume for volume in np.unique(replicas).tolist() if volume != NO_REPLICA]
    place = np.full(max(used, default=0) + 2, len(names), dtype=np.int64)
    for volume in used:
        place[volume] = names.get(metadata.directory.datacenter_of(volume), len(names))
    where = np.where(replicas == NO_REPLICA, -1, place[replicas])
    wrong = (where == len(names)).any(axis=1)
    for name, number in names.items():
        wrong |= (where == number).sum(axis=1) != wanted[name]
    return wrong


def tablets_left(metadata: ClusterMetadata, keyspace: str) -> int:
    """How many tablets of a keyspace have another number of replicas than it asks for, or are about to."""
    left = 0
    for table_id in tablets_of(metadata, keyspace):
        wrong = unlike(metadata, table_id)
        for (table, tablet), transition in metadata.tablets.transitions.items():
            if table == table_id and len(transition.replicas) != len(transition.new_replicas):
                wrong[tablet] = True
        left += int(wrong.sum())
    return left


def most_of(keyspace: Keyspace) -> Mapping[str, int]:
    """The replicas by datacenter that tablets of a keyspace may have: the more of before and now, while it changes."""
    before = {} if keyspace.before is msgspec.UNSET else keyspace.before
    names = {**keyspace.replication, **before}
    return {name: max(keyspace.replication.get(name, 0), before.get(name, 0)) for name in names}


def on_tablets(keyspace: Keyspace) -> bool:
    return keyspace.placement is PlacementKind.TABLETS
