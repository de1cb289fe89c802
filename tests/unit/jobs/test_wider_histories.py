"""What histories have beside moves: other numbers of replicas, holes, places that go back, rollbacks, checks.

Each is played once as the code is, and nothing is wrong; and once with the rule behind it broken, which is noticed.
"""

from __future__ import annotations

from itertools import combinations

import pytest
from epochlake.jobs.administration import past_rows
from epochlake.jobs.replicas import encoding
from epochlake.jobs.testing import row_checkers
from epochlake.jobs.testing.row_histories import row_history
from epochlake.jobs.testing.row_scenarios import lossy_levels
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario, Settings
from epochlake.metastore import delta_commits
from epochlake.metastore.metadata.model import Transition

THREE = ("r1", "r2", "r3")
FIVE = ("r1", "r2", "r3", "r4", "r5")
COORDINATOR = Part("coordinator0", "coordinator")


def writes(count: int, level: str = "QUORUM", wait: float = 0.3, kind: str = "write") -> tuple[Operation, ...]:
    return tuple(Operation(kind, wait, f"w{number}", (number % 4, 5), level) for number in range(count))


def wrong(scenario: Scenario) -> list[str]:
    return row_checkers.violations(row_history(scenario))


@pytest.mark.parametrize("tablets", [1, 0], ids=["tablets", "ring"])
def test_replicas_become_more_and_fewer_under_writes(tablets: int) -> None:
    # Each is over when the next one is asked for: while a change of the replication is under way, another is refused.
    wanted = tuple(Operation("replicas", wait, number=number) for wait, number in ((3.0, 3), (5.0, 1), (8.0, 5)))
    writing = Part("pipeline0", "pipeline", (writes(24, wait=0.6),))
    parts = (writing, COORDINATOR, Part("operator", "operator", (wanted,)))
    scenario = Scenario("rows", 5, 19.0, Settings(tablets=tablets, replication=5, racks=FIVE), parts)
    history = row_history(scenario)
    assert row_checkers.violations(history) == []
    assert sum(access.acknowledged for access in history.accesses if access.kind == "write") > 5
    assert history.outcomes == {}


def two_that_go() -> Scenario:
    """Five replicas become three, and whichever two go: some row is on these two and on one other alone."""
    pairs = combinations([f"/disks/n{number}" for number in range(1, 6)], 2)
    writers = [
        Part(f"pipeline{n}", "pipeline", ((Operation("write", 0.1, f"w{n}", (n,), "QUORUM"),),), blind=pair)
        for n, pair in enumerate(pairs)
    ]
    fewer = Part("operator", "operator", ((Operation("replicas", 3.0, number=3),),))
    settings = Settings(tablets=1, replication=5, racks=FIVE, append_only=True, latency=0.2)
    return Scenario("rows", 30, 9.0, settings, (*writers, COORDINATOR, fewer))


def test_rows_of_replicas_that_go_to_one_of_those_that_stay_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong(two_that_go()) == []
    monkeypatch.setattr(Transition, "receiving", property(lambda transition: (transition.pending,)))
    found = wrong(two_that_go())
    assert any("is missing at 2 of the 3 replicas" in one for one in found), found


def with_a_hole() -> Scenario:
    """Somebody has read a table at its beginning, and reads it again when a commit of one replica has vanished."""
    reads = (
        Operation("read", 0.1, level="QUORUM"),
        *(Operation("read", 3.5 * (n == 0), level="ALL") for n in range(3)),
    )
    parts = (Part("pipeline0", "pipeline", (writes(9),)), Part("pipeline1", "pipeline", (reads,)))
    hole = Fault("lost replica commit", 3.2, place="/disks/n1")
    return Scenario("rows", 4, 5.0, Settings(tablets=1, racks=THREE), (*parts, COORDINATOR), (hole,))


def test_a_read_over_a_hole_of_a_replica_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    history = row_history(with_a_hole())
    assert row_checkers.violations(history) == []
    assert history.harm == {"lost replica commit": 1}
    monkeypatch.setattr(delta_commits, "is_missing", lambda *_: False)
    found = wrong(with_a_hole())
    assert any("before the hole at" in one for one in found), found


def test_two_of_five_replicas_go_back_at_once_and_nothing_is_lost() -> None:
    parts = (
        Part("pipeline0", "pipeline", (writes(12),), blind=("/disks/n4", "/disks/n5")),
        Part("pipeline1", "pipeline", (tuple(Operation("read", 0.5, level="QUORUM") for _ in range(12)),)),
        COORDINATOR,
    )
    faults = tuple(Fault("old storage", 1.0, place=f"/disks/n{number}", seconds=1.0) for number in (1, 2))
    scenario = Scenario("rows", 6, 8.0, Settings(tablets=1, replication=5, racks=FIVE), parts, faults)
    history = row_history(scenario)
    assert row_checkers.violations(history) == []
    assert history.harm == {"old storage": 2}


@pytest.mark.parametrize(
    ("replicas", "places", "levels"),
    [(3, 0, set()), (3, 1, {"ONE"}), (3, 2, {"ONE", "QUORUM"}), (5, 2, {"ONE"}), (1, 1, {"ONE", "QUORUM", "ALL"})],
)
def test_what_may_be_lost_follows_from_how_many_places_are_destroyed(
    replicas: int, places: int, levels: set[str]
) -> None:
    faults = tuple(Fault("lost storage", 1.0, place=f"/disks/n{number}") for number in range(places))
    assert lossy_levels(Scenario("rows", 1, 5.0, Settings(replication=replicas), (), faults)) == levels


def rolled_back(*, changes: str = "") -> Scenario:
    back = tuple(Operation("roll back", 1.2, level="QUORUM", number=number) for number in (2, 7))
    written = (*writes(3), *writes(1, kind="delete"), *writes(5))
    reads = tuple(Operation("read", 0.4, level="QUORUM") for _ in range(10))
    parts = (
        Part("pipeline0", "pipeline", (written,)),
        Part("pipeline1", "pipeline", (reads,)),
        Part("operator", "operator", (back,)),
        COORDINATOR,
    )
    return Scenario("rows", 7, 5.0, Settings(tablets=2, racks=THREE, changes=changes), parts)


def test_a_rollback_that_leaves_what_has_come_since_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    history = row_history(rolled_back(changes="kept"))
    assert row_checkers.violations(history) == []
    done = [access for access in history.accesses if access.who == "operator" and access.acknowledged]
    assert {access.kind for access in done} == {"write", "delete"}
    assert history.stream is not None
    given = {change.written_at for change in history.stream.stream}
    assert all(given.intersection(access.times) for access in done), "a rollback is a change as any other"
    right = past_rows._are
    monkeypatch.setattr(past_rows, "_are", lambda found, *kinds: right(found, *({*kinds} - {past_rows.ADDED})))
    found = wrong(rolled_back())
    assert any("operator has rolled back to" in one and "stays" in one for one in found), found


def constrained() -> Scenario:
    alters = (
        Operation("add check", 0.5),
        Operation("alter columns", 0.3, on=True),
        Operation("add check", 0.3, number=1),
    )
    bad = tuple(
        Operation(kind, 0.4, f"b{number}", (number, 8), "QUORUM")
        for number, kind in enumerate(("write marked", "write null", "write") * 4)
    )
    reads = tuple(Operation("read", 0.4, level="QUORUM") for _ in range(8))
    parts = (
        Part("pipeline0", "pipeline", (bad,)),
        Part("pipeline1", "pipeline", (reads,)),
        Part("operator", "operator", (alters,)),
        COORDINATOR,
    )
    return Scenario("rows", 8, 5.0, Settings(tablets=1, racks=THREE), parts)


def test_rows_against_a_check_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    history = row_history(constrained())
    assert row_checkers.violations(history) == []
    assert {len(access.notes) for access in history.accesses if access.kind == "write" and not access.acknowledged} == {
        2
    }
    monkeypatch.setattr(encoding, "violation", lambda *_: None)
    found = wrong(constrained())
    for check in ("marked", "there"):
        assert any("was told that the row" in one and one.endswith(f"against {check}") for one in found), found
        assert any("is shown the row" in one and one.endswith(f"against {check}") for one in found), found
