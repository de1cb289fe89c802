"""The oracle cases of `tests/data/oracles`, computed by Apache Cassandra's own classes (see the README there)."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

from epochlake.placement.ring.strategies import Replication, replication_of
from epochlake.placement.ring.tokens import Location, Ring, ring_of

DIRECTORY = Path(__file__).parents[2] / "data" / "oracles"
PLACEMENT_FILES = ("placements_edge", "placements_random")
TRANSITION_FILES = (
    "transitions_hand",
    "transitions_locks",
    "transitions_single",
    "transitions_concurrent",
    "transitions_chain",
)


def document(file: str) -> dict[str, Any]:
    return json.loads(gzip.decompress((DIRECTORY / f"{file}.json.gz").read_bytes()))


def cases(*files: str) -> list[dict[str, Any]]:
    return [case for file in files for case in document(file)["cases"]]


def stripped(case: dict[str, Any]) -> dict[str, Any]:
    """The case with its answers taken out: what remains says which step of which operation comes next."""
    question = copy.deepcopy(case)
    for keyspace in question["keyspaces"]:
        keyspace.pop("ranges", None)
    for answer in ("start", "settled", "final_equivalent_to_fresh_calculation"):
        question.pop(answer, None)
    if "steps" in question:
        question["steps"] = [{"op": step["op"], "step": step["step"]} for step in question["steps"]]
    return question


def ring_of_case(case: dict[str, Any]) -> Ring:
    """The ring of the nodes that have joined."""
    joined = [node for node in case["nodes"] if node["state"] == "JOINED"]
    return ring_of(
        {node["id"]: node["tokens"] for node in joined},
        {node["id"]: Location(node["dc"], node["rack"]) for node in joined},
    )


def settings_of_case(case: dict[str, Any]) -> list[Replication]:
    """The replication of each keyspace."""
    return [
        replication_of(keyspace["strategy"], {name: int(n) for name, n in keyspace["replication"].items()})
        for keyspace in case["keyspaces"]
    ]
