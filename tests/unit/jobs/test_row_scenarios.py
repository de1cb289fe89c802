"""What may be asked of a history of rows follows from what its scenario destroys."""

from __future__ import annotations

import pytest
from epochlake.jobs.testing.row_scenarios import goes_back_too_far, lossy_levels
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario, Settings


def destroying(*kinds: str, replication: int = 3, operations: tuple[Operation, ...] = ()) -> Scenario:
    """Each of these faults strikes another place."""
    faults = tuple(Fault(kind, 1.0, place=f"/disks/n{number}") for number, kind in enumerate(kinds, 1))
    parts = (Part("operator", "operator", (operations,)),)
    return Scenario("rows", 1, 5.0, Settings(replication=replication), parts, faults)


@pytest.mark.parametrize(
    ("scenario", "may_be_gone"),
    [
        (destroying("old storage"), {"ONE"}),
        (destroying("lost storage", "lost storage"), {"ONE", "QUORUM"}),
        (destroying("old storage", "lost storage"), {"ONE", "QUORUM"}),
        (destroying("old storage", "old storage", replication=5), {"ONE"}),
        (destroying("old storage", "old storage", operations=(Operation("remove", name="n1"),)), {"ONE", "QUORUM"}),
    ],
)
def test_what_so_few_replicas_have_acknowledged_may_be_gone_with_them(
    scenario: Scenario, may_be_gone: set[str]
) -> None:
    assert not goes_back_too_far(scenario)
    assert lossy_levels(scenario) >= may_be_gone
    assert "ALL" not in lossy_levels(scenario)


def test_a_quorum_that_comes_back_as_it_was_is_known_by_its_receipts_so_no_read_does_without_it() -> None:
    scenario = destroying("old storage", "old storage")
    assert goes_back_too_far(scenario)
    assert lossy_levels(scenario) == {"ONE"}
