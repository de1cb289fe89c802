"""The page that maps `system.topology` names columns that there are, and every column of the seed."""

from __future__ import annotations

import re
from pathlib import Path

from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.tables.metadata import PARTS

PAGE = (Path(__file__).parents[3] / "docs" / "topology.md").read_text(encoding="utf-8")
COLUMNS = {name: set(made(ClusterMetadata.empty()).column_names) for name, made in PARTS.items()}

OF_THE_SEED = """
key host_id datacenter ignore_msb node_state num_tokens rack rebuild_option release_version replaced_id ignore_nodes
shard_count tokens topology_request transition_state committed_cdc_generations unpublished_cdc_generations
global_topology_request global_topology_request_id new_cdc_generation_data_uuid upgrade_state
new_keyspace_rf_change_ks_name new_keyspace_rf_change_data
"""


def test_every_column_of_the_seed_has_its_row() -> None:
    rows = {name for line in PAGE.splitlines() if line.startswith("| `") for name in words(line.split("|")[1])}
    assert rows >= set(OF_THE_SEED.split())


def test_every_column_that_the_page_names_is_one_of_that_table() -> None:
    named = [
        tuple(word.split("."))
        for line in PAGE.splitlines()
        if line.startswith("| `")
        for word in re.findall(r"\b[a-z_]+\.[a-z_]+\b", line.split("|")[2])
    ]
    assert len(named) > 20
    wrong = [f"{table}.{column}" for table, column in named if column not in COLUMNS.get(table, set())]
    assert not wrong


def words(cell: str) -> list[str]:
    return re.findall(r"`([a-z_]+)`", cell)
