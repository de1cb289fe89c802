"""The metadata as Arrow tables: every row agrees with what the metadata itself says."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from epochlake.metastore.following.history import diff
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import PlacementKind
from epochlake.metastore.tables import columns
from epochlake.metastore.tables import metadata as tables
from epochlake.placement.tablets.tablet_map import TabletMap
from epochlake.placement.tokens import tablet_label, tablet_range

from tests.support.feature_event_cases import scenes
from tests.support.random_histories import random_history, small_cluster

SCHEMAS = {name: getattr(columns, f"{name.upper()}_SCHEMA") for name in tables.PARTS}


@pytest.mark.parametrize("part", tables.PARTS)
def test_a_table_has_its_documented_schema_also_when_the_cluster_is_empty(part: str) -> None:
    for metadata in (ClusterMetadata.empty(), small_cluster().metadata):
        assert tables.PARTS[part](metadata).schema.equals(SCHEMAS[part])
    assert tables.PARTS[part](ClusterMetadata.empty()).num_rows == 0


@pytest.mark.parametrize("part", tables.PARTS)
def test_every_column_says_what_it_holds_and_only_nullable_ones_hold_nulls(part: str, seed: int) -> None:
    assert all(columns.describe(SCHEMAS[part]).values())
    table = tables.PARTS[part](random_history(seed, 100).metadata)
    table.validate(full=True)
    assert not [field.name for field in table.schema if not field.nullable and table[field.name].null_count]


def test_nodes_are_those_of_the_directory(seed: int) -> None:
    metadata = random_history(seed, 100).metadata
    rows = tables.nodes(metadata).to_pylist()
    assert [row["node_id"] for row in rows] == sorted(metadata.directory.nodes)
    for row in rows:
        node = metadata.directory.nodes[row["node_id"]]
        for field in ("host_id", "datacenter", "rack", "replaces", "replaced_by", "epoch"):
            assert row[field] == getattr(node, field)
        assert (row["node"], row["state"], row["tokens"]) == (node.name, node.state.value, list(node.tokens))
        assert (row["volumes"], row["capacity"]) == (len(node.volumes), sum(v.capacity for v in node.volumes))


def test_volumes_are_those_of_the_directory_each_with_its_node(seed: int) -> None:
    metadata = random_history(seed, 100).metadata
    rows = {row["volume_id"]: row for row in tables.volumes(metadata).to_pylist()}
    of_nodes = {one.volume_id: one for node in metadata.directory.nodes.values() for one in node.volumes}
    assert sorted(rows) == sorted(of_nodes)
    for key, volume in of_nodes.items():
        node = metadata.directory.node_of_volume[key]
        assert rows[key] == {
            "volume_id": key,
            "volume": volume.name,
            "uri": volume.uri,
            "capacity": volume.capacity,
            "node_id": node.node_id,
            "node": node.name,
            "datacenter": node.datacenter,
            "rack": node.rack,
            "state": node.state.value,
        }


def test_nodes_that_were_unregistered_are_in_a_table_of_their_own() -> None:
    metadata = scenes()["unregistered"]
    [row] = tables.PARTS["unregistered_nodes"](metadata).to_pylist()
    assert (row["node_id"], row["node"], row["host_id"], row["volume_ids"]) == (4, "n4", "host-n4", [4])
    assert 4 not in tables.nodes(metadata)["node_id"].to_pylist()
    assert 4 not in tables.volumes(metadata)["volume_id"].to_pylist()


def test_keyspaces_and_tables_are_those_of_the_schema(seed: int) -> None:
    metadata = random_history(seed, 100).metadata
    [keyspace] = tables.keyspaces(metadata).to_pylist()
    assert keyspace["replication"] == [("dc1", 3)]
    assert keyspace["placement"] == PlacementKind.TABLETS.value
    rows = tables.tables(metadata).to_pylist()
    assert [f"{row['keyspace']}.{row['table']}" for row in rows] == sorted(metadata.schema.by_name)
    for row in rows:
        table = metadata.schema.tables[row["table_id"]]
        assert row["tablets"] == metadata.tablets.maps[table.table_id].count
        assert row["columns"] == [msgspec.to_builtins(column) for column in table.columns]
        assert (row["primary_key"], row["version"]) == (list(table.primary_key), table.version)


def test_tablets_have_the_ranges_labels_replicas_and_stages_of_the_maps(seed: int) -> None:
    metadata = random_history(seed, 120).metadata
    rows = tables.tablets(metadata).to_pylist()
    assert len(rows) == sum(tablet_map.count for tablet_map in metadata.tablets.maps.values())
    for row in rows:
        key = (row["table_id"], row["tablet"])
        tablet_map = metadata.tablets.maps[key[0]]
        transition = metadata.tablets.transitions.get(key)
        assert tuple(row["replicas"]) == tablet_map.replicas(key[1])
        assert (row["token_start"], row["token_end"]) == tablet_range(key[1], tablet_map.count)
        assert row["label"] == tablet_label(key[1], tablet_map.count)
        assert row["stage"] == (transition.stage.value if transition else None)


def test_transitions_and_requests_are_all_there(seed: int) -> None:
    metadata = next(m for m in reversed(random_history(seed, 150).versions) if m.tablets.transitions)
    rows = tables.transitions(metadata).to_pylist()
    assert {(row["table_id"], row["tablet"]) for row in rows} == set(metadata.tablets.transitions)
    for row in rows:
        transition = metadata.tablets.transitions[row["table_id"], row["tablet"]]
        plain = msgspec.to_builtins(transition)
        assert {name: row[name] for name in plain} == plain | {
            "replicas": list(transition.replicas),
            "new_replicas": list(transition.new_replicas),
        }
    requests = tables.requests(metadata).to_pylist()
    assert [row["request_id"] for row in requests] == list(metadata.requests)
    for row in requests:
        request = metadata.requests[row["request_id"]]
        assert row["node"] == metadata.directory.known[request.node_id].name
        assert (row["kind"], row["state"], row["detail"]) == (request.kind, request.state, request.detail)


def by_tablet(placements: pa.Table) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found = defaultdict(list)
    for row in placements.to_pylist():
        found[row["table_id"], row["tablet"]].append(row)
    return found


def test_placements_agree_with_the_metadata_at_every_epoch_of_a_random_history(seed: int) -> None:
    for metadata in random_history(seed, 150).versions[::3]:
        reads, writes = by_tablet(tables.read_placements(metadata)), by_tablet(tables.write_placements(metadata))
        for table_id, tablet_map in metadata.tablets.maps.items():
            for tablet in range(tablet_map.count):
                placement, key = metadata.placement(table_id, tablet), (table_id, tablet)
                assert [row["volume_id"] for row in reads[key]] == list(placement.reads)
                assert [row["volume_id"] for row in writes[key]] == list(placement.writes)
                assert [row["ordinal"] for row in writes[key]] == list(range(len(placement.writes)))
                assert write_sets(writes[key]) == [set(replicas) for replicas in placement.write_sets]


def write_sets(rows: list[dict[str, Any]]) -> list[set[int]]:
    """The sets that a reader of the rows must reach its level in."""
    members = {
        side: {row["volume_id"] for row in rows if row["write_set"] in (side, "both")} for side in ("old", "new")
    }
    return [replicas for replicas in members.values() if replicas]


def test_each_replica_comes_with_its_range_volume_and_node(seed: int) -> None:
    metadata = random_history(seed, 120).metadata
    for part in (tables.read_placements, tables.write_placements):
        for row in part(metadata).to_pylist():
            node, volume = (
                metadata.directory.node_of_volume[row["volume_id"]],
                metadata.directory.volumes[row["volume_id"]],
            )
            table = metadata.schema.tables[row["table_id"]]
            count = metadata.tablets.maps[table.table_id].count
            assert (row["token_start"], row["token_end"]) == tablet_range(row["tablet"], count)
            assert (row["keyspace"], row["table"]) == (table.keyspace, table.name)
            assert (row["volume"], row["uri"]) == (volume.name, volume.uri)
            assert (row["node_id"], row["node"], row["host_id"]) == (node.node_id, node.name, node.host_id)
            assert (row["datacenter"], row["rack"]) == (node.datacenter, node.rack)


def test_tablets_with_fewer_replicas_than_others_have_fewer_rows() -> None:
    metadata = small_cluster(nodes=4, tablets=4).metadata
    table_id = metadata.schema.by_name["air.flights"].table_id
    narrow = TabletMap.from_array(np.array([[1, 2, -1], [3, -1, -1], [1, 2, 3], [2, 3, -1]]))
    changed = msgspec.structs.replace(
        metadata, tablets=msgspec.structs.replace(metadata.tablets, maps={table_id: narrow})
    )
    assert tables.tablets(changed)["replicas"].to_pylist() == [[1, 2], [3], [1, 2, 3], [2, 3]]
    assert tables.read_placements(changed)["ordinal"].to_pylist() == [0, 1, 0, 0, 1, 2, 0, 1]


def test_changes_are_rows_with_values_as_json(seed: int) -> None:
    history = random_history(seed, 100)
    a, b = random.Random(seed).sample(history.versions[1:], 2)
    rows = tables.diff(a, b).to_pylist()
    assert [(row["component"], row["name"], row["field"]) for row in rows] == [
        (change.component, change.name, change.field) for change in diff(a, b)
    ]
    for row, change in zip(rows, diff(a, b), strict=True):
        for side in ("before", "after"):
            value = getattr(change, side)
            assert (None if row[side] is None else msgspec.json.decode(row[side])) == value


def test_a_million_tablets_take_about_a_second() -> None:
    metadata = small_cluster(nodes=4, tablets=4).metadata
    table_id = metadata.schema.by_name["air.flights"].table_id
    replicas = np.random.default_rng(1).permuted(np.tile(np.array([1, 2, 3, 4], np.int32), (2**20, 1)), axis=1)[:, :3]
    wide = TabletMap.from_array(replicas)
    large = msgspec.structs.replace(metadata, tablets=msgspec.structs.replace(metadata.tablets, maps={table_id: wide}))
    started = time.process_time()
    assert tables.tablets(large).num_rows == 2**20
    assert tables.write_placements(large).num_rows == 3 * 2**20
    # A row at a time would take twenty seconds and more.
    assert time.process_time() - started < 6
