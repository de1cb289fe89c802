"""What nodes that were unregistered, and a root that was restored, rest on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "the number of a node that was unregistered is given again",
        "metastore/metadata/events/nodes.py",
        "    return max(metadata.directory.known, default=0) + 1\n",
        "    return max(metadata.directory.nodes, default=0) + 1\n",
        ("tests/unit/jobs/test_unregistered_nodes.py", "tests/unit/metastore/test_events.py"),
    ),
    Mutant(
        "the disk of a node that was unregistered is taken for one of an earlier try",
        "jobs/administration/markers.py",
        "    registered = {node.host_id for node in metadata.directory.known.values()}\n",
        "    registered = {node.host_id for node in metadata.directory.nodes.values()}\n",
        ("tests/unit/jobs/test_unregistered_nodes.py",),
    ),
    Mutant(
        "a node is unregistered while its disk has files that only vacuum would find",
        "jobs/administration/unregistering.py",
        "            left = tables_of_volume(call.storage, volume.uri, cluster_id, volume.volume_id)\n",
        "            left: list[str] = []\n",
        ("tests/unit/jobs/test_unregistered_nodes.py",),
    ),
    Mutant(
        "rows of a table that the log has never heard of are not missed",
        "jobs/upkeep/known_to_replicas.py",
        "    return max([*beyond, *with_rows(metadata, log, found)], key=lambda one: one[1], default=None)\n",
        "    return max(beyond, key=lambda one: one[1], default=None)\n",
        ("tests/unit/jobs/test_known_to_replicas.py",),
    ),
    Mutant(
        "a table that was dropped is taken for one of a lost epoch",
        "jobs/upkeep/known_to_replicas.py",
        "if one.table_id not in created\n",
        "if one.table_id\n",
        ("tests/unit/jobs/test_known_to_replicas.py",),
    ),
)
