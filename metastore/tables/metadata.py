"""Every part of the cluster metadata as an Arrow table: what people and Spark query, without a session or a JVM.

A table is a function of one version of the metadata, `PARTS` has them all by name. What is one row for
each tablet or range is made in `metastore/tables/placements.py`, everything small here. Columns and schemas are those
of `metastore/tables/columns.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pyarrow as pa
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.differences import Change
from epochlake.metastore.metadata.differences import diff as differences
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.tables import columns as c
from epochlake.metastore.tables.placements import (
    by_name,
    read_placements,
    ring_ranges,
    rows_of,
    tablets,
    write_placements,
)
from epochlake.placement.ring.state import STEPS


def nodes(metadata: ClusterMetadata) -> pa.Table:
    """A row for each node, those that left included; by number."""
    rows = [metadata.directory.nodes[key] for key in sorted(metadata.directory.nodes)]
    return rows_of(
        c.NODES_SCHEMA,
        (
            (
                node.node_id,
                node.name,
                node.host_id,
                node.datacenter,
                node.rack,
                node.state.value,
                len(node.volumes),
                sum(volume.capacity for volume in node.volumes),
                list(node.tokens),
                node.replaces,
                node.replaced_by,
                node.epoch,
                node.maintenance,
                node.weight,
                list(node.tags),
            )
            for node in rows
        ),
    )


def volumes(metadata: ClusterMetadata) -> pa.Table:
    """A row for each volume of each node; by number."""
    known, node_of = metadata.directory.volumes, metadata.directory.node_of_volume
    return rows_of(
        c.VOLUMES_SCHEMA,
        (
            (
                key,
                known[key].name,
                known[key].uri,
                known[key].capacity,
                node_of[key].node_id,
                node_of[key].name,
                node_of[key].datacenter,
                node_of[key].rack,
                node_of[key].state.value,
            )
            for key in sorted(known)
        ),
    )


def keyspaces(metadata: ClusterMetadata) -> pa.Table:
    """A row for each keyspace; by name."""
    rows = [metadata.schema.keyspaces[name] for name in sorted(metadata.schema.keyspaces)]
    return rows_of(
        c.KEYSPACES_SCHEMA,
        ((k.name, k.placement.value, k.strategy, list(k.replication.items()), k.epoch) for k in rows),
    )


def tables(metadata: ClusterMetadata) -> pa.Table:
    """A row for each table; by name."""

    def row(table: Table) -> tuple[Any, ...]:
        tablet_map = metadata.tablets.maps.get(table.table_id)
        about_tablets: tuple[Any, ...] = (None, None, None)
        if tablet_map is not None:
            about_tablets = (tablet_map.count, tablet_map.resize_type, tablet_map.resize_seq_number)
        return (
            table.keyspace,
            table.name,
            table.table_id,
            [msgspec.to_builtins(column) for column in table.columns],
            list(table.primary_key),
            table.append_only,
            table.version,
            *about_tablets,
            table.epoch,
            table.options.target_bytes,
            table.options.min_count,
            table.options.max_count,
            list(table.options.tags),
            list(table.options.apart_from),
        )

    return rows_of(c.TABLES_SCHEMA, (row(table) for table in by_name(metadata)))


def transitions(metadata: ClusterMetadata) -> pa.Table:
    """A row for each tablet in transition."""
    under_way = metadata.tablets.transitions.values()
    named = [(metadata.schema.tables[transition.table_id], transition) for transition in under_way]
    named.sort(key=lambda pair: (pair[0].full_name, pair[0].table_id, pair[1].tablet))
    return rows_of(
        c.TRANSITIONS_SCHEMA,
        (
            (
                table.keyspace,
                table.name,
                t.table_id,
                t.tablet,
                t.kind.value,
                t.stage.value,
                list(t.replicas),
                list(t.new_replicas),
                t.leaving,
                t.pending,
                t.session,
                t.reason,
                t.error,
                t.started_epoch,
                t.epoch,
            )
            for table, t in named
        ),
    )


def operations(metadata: ClusterMetadata) -> pa.Table:
    """A row for each operation in flight on the ring, in the order in which they were prepared."""
    known, running = metadata.directory.nodes, metadata.rings.running
    return rows_of(
        c.OPERATIONS_SCHEMA,
        (
            (
                name,
                running[name].request_id,
                operation.kind.value,
                operation.node_id if operation.node_id in known else None,
                known[operation.node_id].name if operation.node_id in known else None,
                operation.replaced,
                operation.keyspace or None,
                list(operation.tokens),
                STEPS[operation.next_step - 1].value,
                None if operation.cancelling else STEPS[operation.next_step].value,
                operation.cancelling,
                sum(len(ranges.starts) for ranges in operation.locks.values()),
                running[name].session,
                running[name].started_epoch,
                running[name].epoch,
            )
            for name, operation in metadata.rings.operations.items()
        ),
    )


def requests(metadata: ClusterMetadata) -> pa.Table:
    """A row for each topology request, ended ones included; oldest first."""
    known = metadata.directory.nodes
    return rows_of(
        c.REQUESTS_SCHEMA,
        (
            (
                request.request_id,
                request.kind.value,
                request.node_id if request.node_id in known else None,
                known[request.node_id].name if request.node_id in known else None,
                request.keyspace or None,
                request.state.value,
                request.paused,
                request.reason,
                request.detail,
                request.requested_epoch,
                request.started_epoch,
                request.epoch,
                list(request.tokens),
                request.strategy or None,
                _json(request.replication or None),
                request.source_datacenter or None,
                request.force,
            )
            for request in sorted(metadata.requests.values(), key=lambda request: request.requested_epoch)
        ),
    )


def diff(before: ClusterMetadata, after: ClusterMetadata) -> pa.Table:
    """A row for each change from one version to another: see `differences.diff`."""
    return changes(differences(before, after))


def changes(found: Iterable[Change]) -> pa.Table:
    """A row for each change, values as JSON."""
    return rows_of(
        c.CHANGES_SCHEMA,
        ((change.component, change.name, change.field, _json(change.before), _json(change.after)) for change in found),
    )


PARTS: dict[str, Callable[[ClusterMetadata], pa.Table]] = {
    function.__name__: function
    for function in (
        nodes,
        volumes,
        keyspaces,
        tables,
        tablets,
        transitions,
        ring_ranges,
        operations,
        read_placements,
        write_placements,
        requests,
    )
}
"""Every table that follows from one version of the metadata, by name."""


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
