"""Stages of a tablet's transition: which replicas serve reads, which get writes, and where each stage may lead.

A transition takes a tablet from its old replicas to its new ones in steps, each of which changes reads or writes and
never both (seed 000, "Tablet transitions"). Everything that must agree about a stage (the gate, the coordinator, the
placements shown to people) reads the two tables here.
"""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """Kinds of a transition (seed 000)."""

    MIGRATION = "migration"
    INTRANODE_MIGRATION = "intranode_migration"
    REBUILD = "rebuild"


class Stage(StrEnum):
    """Stages of a transition, by the names of seed 000."""

    ALLOW_WRITE_BOTH_READ_OLD = "allow_write_both_read_old"
    WRITE_BOTH_READ_OLD = "write_both_read_old"
    STREAMING = "streaming"
    WRITE_BOTH_READ_NEW = "write_both_read_new"
    USE_NEW = "use_new"
    CLEANUP = "cleanup"
    END_MIGRATION = "end_migration"
    CLEANUP_TARGET = "cleanup_target"
    REVERT_MIGRATION = "revert_migration"


class Selector(StrEnum):
    """Which of a transition's replica sets a request goes to."""

    OLD = "old"
    BOTH = "both"
    NEW = "new"


FORWARD: dict[Stage, Stage | None] = {
    Stage.ALLOW_WRITE_BOTH_READ_OLD: Stage.WRITE_BOTH_READ_OLD,
    Stage.WRITE_BOTH_READ_OLD: Stage.STREAMING,
    Stage.STREAMING: Stage.WRITE_BOTH_READ_NEW,
    Stage.WRITE_BOTH_READ_NEW: Stage.USE_NEW,
    Stage.USE_NEW: Stage.CLEANUP,
    Stage.CLEANUP: Stage.END_MIGRATION,
    Stage.END_MIGRATION: None,
    Stage.CLEANUP_TARGET: Stage.REVERT_MIGRATION,
    Stage.REVERT_MIGRATION: None,
}
"""The stage after each when all goes well; None: the transition ends there."""

BACKWARD: dict[Stage, Stage] = {
    Stage.ALLOW_WRITE_BOTH_READ_OLD: Stage.CLEANUP_TARGET,
    Stage.WRITE_BOTH_READ_OLD: Stage.CLEANUP_TARGET,
    Stage.STREAMING: Stage.CLEANUP_TARGET,
    Stage.WRITE_BOTH_READ_NEW: Stage.WRITE_BOTH_READ_OLD,
}
"""The way back on an error, by the same small steps as the way there.

Seed 000 goes from `write_both_read_new` to `cleanup_target` at once, which moves reads and writes together: a reader
that still reads the new replicas would miss what is written to the old ones only. Here it goes back to
`write_both_read_old` first, with a barrier in between (docs/decisions/005-way-back.md).
"""

WRITES: dict[Stage, Selector] = {
    Stage.ALLOW_WRITE_BOTH_READ_OLD: Selector.OLD,
    Stage.WRITE_BOTH_READ_OLD: Selector.BOTH,
    Stage.STREAMING: Selector.BOTH,
    Stage.WRITE_BOTH_READ_NEW: Selector.BOTH,
    Stage.USE_NEW: Selector.NEW,
    Stage.CLEANUP: Selector.NEW,
    Stage.END_MIGRATION: Selector.NEW,
    Stage.CLEANUP_TARGET: Selector.OLD,
    Stage.REVERT_MIGRATION: Selector.OLD,
}
"""Where writes go in each stage."""

READS: dict[Stage, Selector] = {
    Stage.ALLOW_WRITE_BOTH_READ_OLD: Selector.OLD,
    Stage.WRITE_BOTH_READ_OLD: Selector.OLD,
    Stage.STREAMING: Selector.OLD,
    Stage.WRITE_BOTH_READ_NEW: Selector.NEW,
    Stage.USE_NEW: Selector.NEW,
    Stage.CLEANUP: Selector.NEW,
    Stage.END_MIGRATION: Selector.NEW,
    Stage.CLEANUP_TARGET: Selector.OLD,
    Stage.REVERT_MIGRATION: Selector.OLD,
}
"""Where reads go in each stage."""

SESSION_STAGES = frozenset({Stage.STREAMING})
"""Stages whose side effects run under a session of their own (seed 000, "Topology guards")."""

OUTCOME_NEW = frozenset({Stage.END_MIGRATION})
OUTCOME_OLD = frozenset({Stage.REVERT_MIGRATION})


def may_follow(stage: Stage, then: Stage) -> bool:
    """Whether `then` may come directly after `stage`, on either way."""
    return FORWARD[stage] is then or BACKWARD.get(stage) is then


def read_replicas(stage: Stage, old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """The replicas that serve reads in `stage`."""
    return old if READS[stage] is Selector.OLD else new


def write_sets(stage: Stage, old: tuple[int, ...], new: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The replica sets in **each** of which a write must reach its consistency level: one, or old and new."""
    selector = WRITES[stage]
    if selector is Selector.BOTH:
        return (old, new)
    return (old,) if selector is Selector.OLD else (new,)


def write_replicas(stage: Stage, old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """The replicas that must get writes in `stage`: old ones first, without repeats."""
    return tuple(dict.fromkeys(replica for replicas in write_sets(stage, old, new) for replica in replicas))


def goes_back(lost_old: int, lost_new: int) -> bool:
    """Whether `write_both_read_new` leads back on an error: when the new replicas have lost more than the old ones.

    Both sides have every acknowledged write there, so either is correct; the one with more live replicas serves better.
    """
    return lost_new > lost_old
