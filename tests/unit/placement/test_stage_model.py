"""Every interleaving of tablets in transition, with errors, late coordinators and slow writers, in small clusters.

The model (tests/support/stage_model.py) asks production what stages mean; each rule that is broken on purpose here is
found by it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from epochlake.placement import consistency
from epochlake.placement.ring.operations import plan_join
from epochlake.placement.ring.state import RingState, Step
from epochlake.placement.ring.steps import accepted, advanced, cancelled, retreated
from epochlake.placement.ring.tokens import range_of
from epochlake.placement.tablets import transitions
from epochlake.placement.tablets.transitions import BACKWARD, FORWARD, READS, WRITES, Kind, Selector, Stage

from tests.support.slices import THOROUGH, sliced
from tests.support.stage_model import Begin, Broken, Rules, Scenario, explore
from tests.unit.placement.ring_rings import KS, cluster, in_a_row, member, simple

MOVES, REBUILDS = Kind.MIGRATION, Kind.REBUILD
ONE = Scenario((((0,), (Begin(MOVES, 0, 1),)),))
AGAIN = Scenario((((0,), (Begin(MOVES, 0, 1), Begin(MOVES, 0, 1))),), late=0)
THERE_AND_BACK = Scenario((((0,), (Begin(MOVES, 0, 1), Begin(MOVES, 1, 0))),), late=0)
CROSSING = Scenario((((0,), (Begin(MOVES, 0, 1),)), ((1,), (Begin(MOVES, 1, 0),))), written=True)
TOGETHER = Scenario((((0,), (Begin(MOVES, 0, 1),)), ((0,), (Begin(MOVES, 0, 1),))), late=0, written=True)
PAIR = Scenario((((0, 1), (Begin(MOVES, 0, 2),)),), late=0)
PAIR_WITH_A_DEAD_ONE = Scenario((((0, 1), (Begin(REBUILDS, 0, 2),)),), late=0, mortal=(0,))
PAIRS_CROSSING = Scenario((((0, 1), (Begin(MOVES, 0, 2),)), ((2, 1), (Begin(MOVES, 2, 0),))), late=0, written=True)
THREE_WITH_A_DEATH = Scenario((((0, 1, 2), (Begin(REBUILDS, 0, 3),)),), mortal=(0, 3), written=True)
PAIR_WITH_A_LOST_ONE = Scenario((((0, 1), (Begin(MOVES, 0, 2),)),), late=0, declared=(0, 1, 2), written=True)
THREE_WITH_A_LOST_ONE = Scenario(
    (((0, 1, 2), (Begin(REBUILDS, 0, 3, errors=False),)),), late=0, declared=(0,), planned_in=Stage.USE_NEW
)

LONGEST = "two tablets that change places, and a coordinator that does something late"
"""It takes longer than all others together, and differs from those by both of its circumstances at once."""

SCENARIOS = {
    "one tablet, and a coordinator that does something late": ONE,
    "one tablet that goes the same way twice": AGAIN,
    "one tablet there and back": THERE_AND_BACK,
    LONGEST: CROSSING,
    "two tablets that go the same way": TOGETHER,
    "two tablets with two replicas that change places": PAIRS_CROSSING,
    "three replicas, of which one dies": THREE_WITH_A_DEATH,
    "two replicas": PAIR,
    "two replicas, of which one dies": PAIR_WITH_A_DEAD_ONE,
    "two replicas and a pending one, of which one is declared lost and comes back": PAIR_WITH_A_LOST_ONE,
    "three replicas, of which one is declared lost and comes back": THREE_WITH_A_LOST_ONE,
}


@sliced(at_least=2)
@pytest.mark.parametrize("what", [what for what in SCENARIOS if THOROUGH or what != LONGEST])
def test_whatever_happens_no_acknowledged_write_is_lost_and_every_transition_ends(what: str) -> None:
    found = explore(SCENARIOS[what])
    assert found["ends"] > found["moved"] > 0, "every transition may end in the new replicas, and in the old ones"


def weaker_blocking(count: int) -> int:
    return max(0, count - consistency.majority(count))


def without_old(
    level: object, old: tuple[int, ...], new: tuple[int, ...], fenced: set[int], where: object, lost: object
) -> bool:
    return len(fenced & {*new}) >= consistency.blocking(len(new))


BROKEN_TABLES: list[tuple[str, Scenario, Callable[[pytest.MonkeyPatch], None], str]] = [
    (
        "reads move before the rows have come",
        ONE,
        lambda patch: patch.setitem(READS, Stage.STREAMING, Selector.NEW),
        "acknowledged write is lost",
    ),
    (
        "old replicas get no writes one stage too early",
        ONE,
        lambda patch: patch.setitem(WRITES, Stage.WRITE_BOTH_READ_NEW, Selector.NEW),
        "acknowledged write is lost",
    ),
    (
        "streaming is left out",
        ONE,
        lambda patch: patch.setitem(FORWARD, Stage.WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_NEW),
        "acknowledged write is lost",
    ),
    (
        "what is left is not cleaned up",
        ONE,
        lambda patch: patch.setitem(FORWARD, Stage.USE_NEW, Stage.END_MIGRATION),
        "INV-TABL-1",
    ),
    (
        "the way back moves reads and writes together",
        ONE,
        lambda patch: patch.setitem(BACKWARD, Stage.WRITE_BOTH_READ_NEW, Stage.CLEANUP_TARGET),
        "acknowledged write is lost",
    ),
    (
        "barriers ask for one replica too few",
        ONE,
        lambda patch: patch.setattr(consistency, "blocking", weaker_blocking),
        "acknowledged write is lost",
    ),
    (
        "barriers do not ask the old replicas",
        ONE,
        lambda patch: patch.setattr(consistency, "barrier_passed", without_old),
        "acknowledged write is lost",
    ),
    (
        "a stage leads to itself",
        ONE,
        lambda patch: patch.setitem(FORWARD, Stage.CLEANUP, Stage.CLEANUP),
        "never end",
    ),
    (
        "streaming has no session",
        ONE,
        lambda patch: patch.setattr(transitions, "SESSION_STAGES", frozenset()),
        "ever comes to its end",
    ),
]


@sliced(at_least=2)
@pytest.mark.parametrize(("what", "scenario", "breaks", "found"), BROKEN_TABLES, ids=[row[0] for row in BROKEN_TABLES])
def test_a_broken_table_of_production_is_found(
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    scenario: Scenario,
    breaks: Callable[[pytest.MonkeyPatch], None],
    found: str,
) -> None:
    breaks(monkeypatch)
    with pytest.raises(Broken, match=found):
        explore(scenario)


LOST, MISPLACED = "acknowledged write is lost", "INV-TABL-"
BROKEN_RULES = [
    ("replicas do not look at fences", ONE, Rules(fences_refuse=False), f"{LOST}|{MISPLACED}"),
    ("late streaming is not refused", ONE, Rules(sessions_refuse=False, streams_are_fenced=False), MISPLACED),
    ("the pending replica need not be fenced", PAIR, Rules(pending_is_required=False), "stays open"),
    ("a pending replica is prepared twice", ONE, Rules(preparing_is_marked=False), LOST),
    ("old acknowledgements count", AGAIN, Rules(old_acknowledgements_are_forgotten=False), LOST),
    ("lost storage counts as fenced", THREE_WITH_A_LOST_ONE, Rules(lost_is_not_fenced=False), LOST),
]


@sliced(at_least=2)
@pytest.mark.parametrize(("what", "scenario", "rules", "found"), BROKEN_RULES, ids=[row[0] for row in BROKEN_RULES])
def test_a_broken_rule_is_found(what: str, scenario: Scenario, rules: Rules, found: str) -> None:
    with pytest.raises(Broken, match=found):
        explore(scenario, rules)


@sliced()
@pytest.mark.parametrize("rules", [Rules(sessions_refuse=False), Rules(streams_are_fenced=False)])
def test_late_streaming_is_stopped_by_its_session_as_well_as_by_the_fence(rules: Rules) -> None:
    assert explore(ONE, rules)["moved"] > 0


# The steps of an operation on the ring are the same stages by other names, without `write_both_read_old` on the way
# there; its way back over that stage is MID taken back.

RING_RULES = Rules(first_and_last_have_barriers=False, streaming_waits_for_a_barrier=True)
STAGE_OF_STEP = {
    Step.PREPARE: Stage.ALLOW_WRITE_BOTH_READ_OLD,
    Step.START: Stage.STREAMING,
    Step.MID: Stage.WRITE_BOTH_READ_NEW,
    Step.FINISH: Stage.USE_NEW,
}


@pytest.fixture
def ring_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORWARD, Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.STREAMING)


def held(state: RingState, token: int) -> tuple[set[int], set[int]]:
    """Who serves reads of a token, and who gets its writes."""
    placements = state.placements[state.keyspaces[KS]]
    found = []
    for side in (placements.reads, placements.writes):
        row = side.replicas[range_of(side.starts, token)]
        found.append({int(node) for node in row if node >= 0})
    return found[0], found[1]


def by_stage(stage: Stage, old: tuple[int, ...], new: tuple[int, ...]) -> tuple[set[int], set[int]]:
    return {*transitions.read_replicas(stage, old, new)}, {*transitions.write_replicas(stage, old, new)}


def test_the_steps_of_a_ring_operation_read_and_write_like_their_stages() -> None:
    """A join and the way back from each of its steps, as production does them: token 120 goes from node 2 to 20."""
    state = cluster([*in_a_row(3), member(20)], simple(1))
    operation = plan_join(state, "x", 20, [150])
    old, new = (2,), (20,)
    after, states = accepted(state, operation), {}
    for step in Step:
        states[step] = after
        assert held(after, 120) == by_stage(STAGE_OF_STEP[step], old, new), step
        after = advanced(after, "x") if after.operations else after
    back = retreated(states[Step.MID], "x")
    assert held(back, 120) == by_stage(Stage.WRITE_BOTH_READ_OLD, old, new)
    assert held(retreated(back, "x"), 120) == by_stage(Stage.CLEANUP_TARGET, old, new)
    assert held(cancelled(states[Step.START], "x"), 120) == by_stage(Stage.CLEANUP_TARGET, old, new)


@sliced()
@pytest.mark.parametrize("scenario", [ONE, AGAIN, TOGETHER, PAIR])
def test_whatever_happens_an_operation_on_the_ring_loses_no_acknowledged_write_and_ends(
    ring_steps: None, scenario: Scenario
) -> None:
    found = explore(scenario, RING_RULES)
    assert found["ends"] > found["moved"] > 0


@sliced()
@pytest.mark.parametrize(
    "rules",
    [
        RING_RULES._replace(preparing_is_marked=False),
        RING_RULES._replace(fences_refuse=False),
        RING_RULES._replace(sessions_refuse=False, streams_are_fenced=False),
    ],
)
def test_a_broken_rule_of_the_ring_is_found(ring_steps: None, rules: Rules) -> None:
    with pytest.raises(Broken, match=f"{LOST}|{MISPLACED}"):
        explore(ONE, rules)
