"""Every part of the cluster metadata as an Arrow table: what people and Spark query, without a session or a JVM.

A table is a function of one version of the metadata. Each component names its own tables, and has the small ones in
its module; what is one row for each tablet or range is made in `metastore/tables/placements.py`. Columns and schemas
are those of `metastore/tables/columns.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import pyarrow as pa
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.component import TableFunction, components_of
from epochlake.metastore.metadata.components.directory import nodes, volumes
from epochlake.metastore.metadata.components.rings import operations
from epochlake.metastore.metadata.components.schema import keyspaces, tables
from epochlake.metastore.metadata.components.tablets import transitions
from epochlake.metastore.metadata.components.topology_requests import requests
from epochlake.metastore.metadata.differences import Difference
from epochlake.metastore.metadata.differences import diff as differences
from epochlake.metastore.tables import columns as c
from epochlake.metastore.tables.placements import read_placements, ring_ranges, tablets, write_placements
from epochlake.metastore.tables.rows import json_of, rows_of

__all__ = [
    "PARTS",
    "changes",
    "diff",
    "keyspaces",
    "nodes",
    "operations",
    "parts_of",
    "read_placements",
    "requests",
    "ring_ranges",
    "tables",
    "tablets",
    "transitions",
    "volumes",
    "write_placements",
]

_OF_SEVERAL_COMPONENTS = (read_placements, write_placements)
"""Where rows are read and written: tablets and rings together."""


def diff(before: ClusterMetadata, after: ClusterMetadata) -> pa.Table:
    """A row for each change from one version to another: see `differences.diff`."""
    return changes(differences(before, after))


def changes(found: Iterable[Difference]) -> pa.Table:
    """A row for each difference, values as JSON."""
    return rows_of(
        c.CHANGES_SCHEMA,
        ((one.component, one.name, one.field, json_of(one.before), json_of(one.after)) for one in found),
    )


@cache
def parts_of(kind: type[ClusterMetadata]) -> Mapping[str, TableFunction]:
    """Every table that follows from one version of the metadata, by name, for a class of metadata."""
    own = (function for component in components_of(kind).values() for function in component.tables)
    return {function.__name__: function for function in (*own, *_OF_SEVERAL_COMPONENTS)}


PARTS = parts_of(ClusterMetadata)
"""Every table that follows from one version of the metadata, by name."""
