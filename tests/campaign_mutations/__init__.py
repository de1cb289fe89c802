"""Broken versions of the code that the campaign must find: `make campaign-mutations`, or `python -m
tests.campaign_mutations NAME …`.

Each mutation takes away a rule of the protocol, or a mend that this project's history names. It imports and runs; that
something is wrong shows in histories under faults only: a row that is lost, stale, doubled or back, an outcome that is
false, a log with a gap, replicas that never agree, something that never ends, files that nobody needs or somebody
lacks. One that no history finds is a checker or a fault that is missing.
"""

from __future__ import annotations

from tests.campaign_mutations import (
    changes,
    checks,
    commits,
    disks,
    gate,
    log_members,
    log_storage,
    merges,
    moves,
    past,
    placing,
    shelves,
    together,
    upkeep,
)
from tests.campaign_mutations.mutation import Mutation

__all__ = ["AREAS", "MUTATIONS", "Mutation"]

AREAS: dict[str, tuple[Mutation, ...]] = {
    "commit protocol and offers": commits.MUTATIONS,
    "storage of the log": log_storage.MUTATIONS,
    "log members": log_members.MUTATIONS,
    "gate, writing": gate.WRITES,
    "gate, reading": gate.READS,
    "gate, merging": merges.MUTATIONS,
    "coordinator and moves": moves.MUTATIONS,
    "repair, compaction, vacuum, space": upkeep.MUTATIONS,
    "change streams": changes.MUTATIONS,
    "rows as they were": past.MUTATIONS,
    "checks and rollbacks": checks.MUTATIONS,
    "tables that were dropped": shelves.MUTATIONS,
    "placement and membership": placing.MUTATIONS,
    "storage layer": disks.MUTATIONS,
    "rules that stand behind each other": together.MUTATIONS,
}

MUTATIONS: tuple[Mutation, ...] = tuple(mutation for area in AREAS.values() for mutation in area)
