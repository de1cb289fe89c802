"""The stages of a transition: what they select, and that no two of them next to each other lose a write."""

from __future__ import annotations

import pytest
from epochlake.placement.consistency import majorities_meet
from epochlake.placement.tablets.transitions import (
    BACKWARD,
    FORWARD,
    READS,
    WRITES,
    Stage,
    goes_back,
    may_follow,
    read_replicas,
    write_replicas,
    write_sets,
)

OLD, NEW = (1, 2, 3), (4, 2, 3)
STEPS = [(stage, then) for stage in Stage for then in Stage if may_follow(stage, then)]

SELECTED = [
    (Stage.ALLOW_WRITE_BOTH_READ_OLD, OLD, (OLD,)),
    (Stage.WRITE_BOTH_READ_OLD, OLD, (OLD, NEW)),
    (Stage.STREAMING, OLD, (OLD, NEW)),
    (Stage.WRITE_BOTH_READ_NEW, NEW, (OLD, NEW)),
    (Stage.USE_NEW, NEW, (NEW,)),
    (Stage.CLEANUP, NEW, (NEW,)),
    (Stage.END_MIGRATION, NEW, (NEW,)),
    (Stage.CLEANUP_TARGET, OLD, (OLD,)),
    (Stage.REVERT_MIGRATION, OLD, (OLD,)),
]


@pytest.mark.parametrize(("stage", "reads", "writes"), SELECTED)
def test_a_stage_selects_these_replicas(stage, reads, writes):
    assert read_replicas(stage, OLD, NEW) == reads
    assert write_sets(stage, OLD, NEW) == writes


def test_writes_go_to_each_replica_once():
    assert write_replicas(Stage.STREAMING, OLD, NEW) == (1, 2, 3, 4)


@pytest.mark.parametrize(("stage", "then"), STEPS)
@pytest.mark.parametrize(
    ("old", "new"),
    [(OLD, NEW), ((1, 2, 3), (4, 5, 6)), ((1, 2), (1, 3)), ((1,), (2,)), ((1, 2, 3, 4, 5), (6, 7, 8, 4, 5))],
)
def test_every_read_quorum_meets_every_write_quorum_of_two_stages_next_to_each_other(stage, then, old, new):
    """The two views may be in use at once. A write counts when it has a quorum in each of its sets: one must meet."""
    for reading in (stage, then):
        for writing in (stage, then):
            read = read_replicas(reading, old, new)
            assert any(majorities_meet(read, replicas) for replicas in write_sets(writing, old, new))


@pytest.mark.parametrize(("stage", "then"), STEPS)
def test_a_step_changes_reads_or_writes_but_not_both(stage, then):
    assert READS[stage] is READS[then] or WRITES[stage] is WRITES[then]


def test_the_way_there_is_that_of_seed_000():
    way, stage = [], Stage.ALLOW_WRITE_BOTH_READ_OLD
    while stage is not None:
        way.append(stage.value)
        stage = FORWARD[stage]
    assert way == [
        "allow_write_both_read_old",
        "write_both_read_old",
        "streaming",
        "write_both_read_new",
        "use_new",
        "cleanup",
        "end_migration",
    ]


@pytest.mark.parametrize("stage", list(BACKWARD))
def test_every_stage_with_a_way_back_ends_at_revert_migration(stage):
    visited = [stage]
    while FORWARD[stage] is not None:
        error_is_set = stage is Stage.WRITE_BOTH_READ_OLD and len(visited) > 1
        stage = BACKWARD[stage] if len(visited) == 1 or error_is_set else FORWARD[stage]
        visited.append(stage)
    assert stage is Stage.REVERT_MIGRATION
    assert Stage.CLEANUP_TARGET in visited


def test_an_error_leads_back_only_when_the_new_replicas_have_lost_more():
    assert goes_back(lost_old=0, lost_new=1)
    assert not goes_back(lost_old=1, lost_new=1)
    assert not goes_back(lost_old=1, lost_new=0)
