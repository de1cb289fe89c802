"""What follows from a scenario of rows alone: what it destroys, and what may be asked of a history that plays it."""

from __future__ import annotations

from epochlake.jobs.testing.lost_epochs import is_of_the_log
from epochlake.jobs.testing.nemesis import DATA, EVERYBODY, MOUNTS, PLACES, PROCESSES
from epochlake.jobs.testing.row_drawing import place
from epochlake.jobs.testing.scenario import Fault, Operation, Scenario
from epochlake.jobs.testing.themes import DESTRUCTIVE, OPERATIONS, ROLLBACK, SHARED, SHELVED, SOME, UPKEEP


def is_one_range(scenario: Scenario) -> bool:
    return scenario.settings.tablets == 1 and all(one.kind != "resize" for one in operations_of(scenario))


def operations_of(scenario: Scenario) -> list[Operation]:
    return [one for part in scenario.parts for thread in part.threads for one in thread]


def stays_where_it_is(scenario: Scenario) -> bool:
    """Whether no row goes to other replicas, is lost, or is put together with others."""
    stays = {"balance", "snapshot", "repair", "repair bytes", "verify"}
    moves = {*OPERATIONS, *UPKEEP, SOME, SHARED, SHELVED, ROLLBACK} - stays
    return not harmed(scenario) and not any(one.kind in moves for one in operations_of(scenario))


def forgets_deletes(scenario: Scenario) -> bool:
    """Whether a compaction forgets deletes at once."""
    return any(one.kind in ("compact", SHARED) and one.on for one in operations_of(scenario))


def harmed(scenario: Scenario) -> set[str]:
    """Places whose storage faults or operators destroy."""
    operations = operations_of(scenario)
    by_operators = {f"/disks/{one.name}" for one in operations if one.kind in DESTRUCTIVE}
    # What takes the place of such a node has its rows only when it is rebuilt.
    by_operators |= {place(2000 + one.number) for one in operations if one.kind == "replace"}
    return by_operators | {fault.place for fault in _destroying(scenario)}


def _destroying(scenario: Scenario) -> list[Fault]:
    """Faults that destroy what replicas have."""
    return [fault for fault in scenario.faults if fault.kind in DATA and not is_of_the_log(fault)]


def goes_back_too_far(scenario: Scenario) -> bool:
    """Whether a quorum of replicas comes back as it was before, so that what only these have acknowledged is lost.

    Replicas that went back are known by their receipts: until somebody gives up what is lost, no read does without it
    that is told to have reached its level.
    """
    destroying = _destroying(scenario)
    if not all(fault.kind == "old storage" for fault in destroying):
        return False
    back = {fault.place for fault in destroying}
    by_operators = any(one.kind in DESTRUCTIVE for one in operations_of(scenario))
    return scenario.settings.replication > 2 and len(back) > scenario.settings.replication // 2 and not by_operators


def lossy_levels(scenario: Scenario) -> set[str]:
    """At which levels what was acknowledged may be gone: all that have counted it may be among what is destroyed."""
    if goes_back_too_far(scenario):
        return {"ONE"}
    replicas = scenario.settings.replication
    copies = {"ONE": 1, "QUORUM": replicas // 2 + 1, "ALL": replicas}
    places = len({fault.place for fault in _destroying(scenario)}) or bool(harmed(scenario))
    return {level for level, count in copies.items() if count <= places}


def all_are_announced(scenario: Scenario) -> bool:
    """Whether nobody could take a pipeline for dead that writes something: what deletes older rows may be forgotten
    then, and a batch that comes again has rows that are as old as it.
    """
    if any(one.kind.startswith("batch") for one in operations_of(scenario)):
        return False
    short = scenario.settings.session / 2
    return all(
        fault.kind in (*PLACES, *DATA, *MOUNTS, "access fails") or (fault.kind == "pause" and fault.seconds < short)
        for fault in scenario.faults
    )


def must_stay_for(scenario: Scenario, who: str) -> bool:
    """Whether a file that `who` has planned to read has to be there: nothing has destroyed it, nobody could take who
    reads for dead, and no clock is wrong by more than is allowed for.
    """
    faults = [fault for fault in scenario.faults if fault.kind not in ("kill", "access fails", "cut")]
    if harmed(scenario) or any(fault.kind in EVERYBODY for fault in faults):
        return False
    reader = who.partition("'")[0]
    return not any(fault.kind in PROCESSES and _may_strike(fault, (reader, "upkeep")) for fault in faults)


def is_kept_for(scenario: Scenario, who: str) -> bool:
    """Whether vacuum has to leave what `who` may read: as `must_stay_for` says, and no clocks are further apart than it
    takes them to be.
    """
    skews = [part.skew for part in scenario.parts]
    apart = max(skews, default=0.0) - min(skews, default=0.0)
    return apart <= scenario.settings.clock_margin and must_stay_for(scenario, who)


def _may_strike(fault: Fault, names: tuple[str, ...]) -> bool:
    return not fault.victim or fault.victim.startswith(names)


def damaged_places(scenario: Scenario) -> set[str]:
    """Places where something has happened that damages files: nothing but what destroys data does."""
    return {fault.place for fault in _destroying(scenario)}


def is_compacted(scenario: Scenario) -> bool:
    return is_one_range(scenario) and any(one.kind == "compact" for one in operations_of(scenario))
